"""Weak keys: caches that find a page by less than all of its tokens, and that compare no contents.

WEAK_KEYS has one row for each such key. DOUBLES has one entry for each cache of the kit and each door to it, and names
what its keys are used for. `ADAPTERS` has a class for each double with each key that makes a difference to it.
"""

from __future__ import annotations

import binascii
import hashlib
import inspect
import zlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial, wraps
from types import ModuleType
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

import hicache.cache
from hicache.cache import UnifiedRadixCache
from hicache.config import CacheConfig
from hicache.keys import TOKEN_BYTES, RadixKey
from hicache.parallel.group import Group
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.caches import reference
from hicache.testing.caches.block_cache import Block, BlockCache, BlockRequest, Content
from hicache.testing.caches.blocks import BlockCacheAdapter
from hicache.testing.caches.dictionary import DictionaryAdapter
from hicache.testing.caches.offload import OffloadCacheAdapter
from hicache.testing.caches.offload_cache import Identity, OffloadCache
from hicache.testing.caches.paged_dictionary import PagedDictionaryAdapter
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.tiers import prefetch
from hicache.tree import hashes
from hicache.types import SHARED, InsertResult, Key, MatchResult, Namespace, Slots, TokenIds, Tokens

Pages = npt.NDArray[np.int64]
"""The whole pages of a prompt: token ids, shape [pages, tokens of a page]; with bigram keys both of each pair."""

SALT_CHARACTERS = 32


def _all_tokens(pages: Pages) -> Pages:
    return pages


@dataclass(frozen=True, slots=True)
class WeakKey:
    """What a cache finds a page by: what is left of its tokens, of its namespace and of the pages before it.

    `tokens`: what is left of each page, a row for each. `is_chained`: the pages before it count. `in_one_token`:
    whether pages of one token are taken for one another. `restarts_after`: pages after which the chain begins anew;
    only its place is left of those before. `named_pages`: pages of a prompt that its namespace counts for. None: all.
    """

    tokens: Callable[[Pages], npt.NDArray[Any]] = _all_tokens
    namespace: Callable[[Namespace], object] = lambda namespace: namespace
    is_chained: bool = True
    in_one_token: bool = False
    restarts_after: int | None = None
    named_pages: int | None = None

    @property
    def is_of_namespaces(self) -> bool:
        """Whether only prompts of different namespaces are taken for one another."""
        return self.tokens is _all_tokens and self.is_chained

    def names(self, tokens: Tokens, namespace: Namespace, size: int) -> list[bytes]:
        """The name of each whole page of a prompt."""
        pages, named = tokens[: len(tokens) // size * size].reshape(-1, size), self.named_pages
        found = self._restarted(pages, self.seed(namespace))
        return found if named is None else found[:named] + self._restarted(pages, self.seed(SHARED))[named:]

    def seed(self, namespace: Namespace) -> bytes:
        """The name before the first page."""
        return hashlib.sha256(repr(self.namespace(namespace)).encode()).digest()

    def _restarted(self, pages: npt.NDArray[np.int32], seed: bytes) -> list[bytes]:
        count = self.restarts_after
        if count is None:
            return self.chain(pages, seed)
        starts = range(0, len(pages), count)
        return [name for at in starts for name in self.chain(pages[at : at + count], seed + at.to_bytes(8, "little"))]

    def chain(self, pages: npt.NDArray[np.int32], previous: bytes) -> list[bytes]:
        """The names of pages, each with the name before it, unless pages before a page are ignored."""
        found = [previous]
        for row in self.tokens(pages.astype(np.int64)):
            found.append(hashlib.sha256(found[-1 if self.is_chained else 0] + row.tobytes()).digest())
        return found[1:]


def _without(place: Callable[[int], int], pages: Pages) -> Pages:
    return np.delete(pages, place(pages.shape[1]), axis=1)


def _each_page(digest: Callable[[bytes], int], pages: Pages) -> Pages:
    return np.array([[digest(page.astype("<i4").tobytes())] for page in pages], dtype=np.int64)


def _polynomial(pages: Pages) -> Pages:
    value = np.zeros(len(pages), dtype=np.int64)
    for column in pages.T:
        value = (value * 31 + column) % (1 << 32)
    return value[:, None]


def _in_words(text: Callable[[int], str], between: str, pages: Pages) -> Pages:
    """A digest of each page as a text, without the tokens of which nothing is written."""
    texts = (between.join(filter(None, map(text, page.tolist()))) for page in pages)
    return np.array([[int.from_bytes(hashlib.sha256(one.encode()).digest()[:7], "little")] for one in texts])


def _short_digest(page: bytes) -> int:
    return int.from_bytes(hashlib.sha256(page).digest()[:2], "little")


def _fields_with(between: str, own: Namespace) -> object:
    """The fields, with what stands between two of them; and which are absent."""
    fields = (own.lora, own.salt, own.tenant)
    return between.join(field or "" for field in fields), [field is None for field in fields]


def _as_a_number(salt: str | None) -> str | None:
    return str(int(salt)) if salt is not None and salt.isdecimal() else salt


SOUND = WeakKey()
"""Finds a page by all of its tokens, by those before it and by its namespace."""

WEAK_KEYS: dict[str, WeakKey] = {
    "first_token": WeakKey(tokens=lambda pages: pages[:, :1]),
    "last_token": WeakKey(tokens=lambda pages: pages[:, -1:]),
    "low_16_bits": WeakKey(tokens=lambda pages: pages & 0xFFFF, in_one_token=True),
    "low_24_bits": WeakKey(tokens=lambda pages: pages & 0xFFFFFF, in_one_token=True),
    "single_precision": WeakKey(tokens=lambda pages: pages.astype(np.float32), in_one_token=True),
    "first_and_last_token": WeakKey(tokens=lambda pages: pages[:, [0, -1]]),
    "second_token_dropped": WeakKey(tokens=partial(_without, lambda size: min(1, size - 1)), in_one_token=True),
    "inner_token_dropped": WeakKey(tokens=partial(_without, lambda size: size // 3), in_one_token=True),
    "last_token_dropped": WeakKey(tokens=lambda pages: pages[:, :-1], in_one_token=True),
    "sorted_tokens": WeakKey(tokens=lambda pages: np.sort(pages, axis=1)),
    "sum": WeakKey(tokens=lambda pages: pages.sum(axis=1, keepdims=True)),
    "exclusive_or": WeakKey(tokens=lambda pages: np.bitwise_xor.reduce(pages, axis=1, keepdims=True)),
    "polynomial": WeakKey(tokens=_polynomial),
    "joined_digits": WeakKey(tokens=partial(_in_words, str, "")),
    "joined_padded_digits": WeakKey(tokens=partial(_in_words, "{:05d}".format, "")),
    "joined_padded_hexadecimal": WeakKey(tokens=partial(_in_words, "{:04x}".format, "")),
    "zeros_dropped": WeakKey(tokens=partial(_in_words, lambda token: str(token or ""), " ")),
    "modulo_50257": WeakKey(tokens=lambda pages: pages % 50_257, in_one_token=True),
    "modulo_151936": WeakKey(tokens=lambda pages: pages % 151_936, in_one_token=True),
    "crc_16": WeakKey(tokens=partial(_each_page, lambda page: binascii.crc_hqx(page, 0)), in_one_token=True),
    "crc_32": WeakKey(tokens=partial(_each_page, zlib.crc32)),
    "adler_32": WeakKey(tokens=partial(_each_page, zlib.adler32)),
    "digest_of_16_bits": WeakKey(tokens=partial(_each_page, _short_digest), in_one_token=True),
    "length_and_parent": WeakKey(tokens=lambda pages: pages[:, :0], in_one_token=True),
    "parent_ignored": WeakKey(is_chained=False, in_one_token=True),
    "namespace_ignored": WeakKey(namespace=lambda _: SHARED),
    "salt_ignored": WeakKey(namespace=lambda own: replace(own, salt=None)),
    "salt_cut_off": WeakKey(namespace=lambda own: replace(own, salt=own.salt and own.salt[:SALT_CHARACTERS])),
    "fields_joined": WeakKey(namespace=lambda own: "".join(filter(None, (own.lora, own.salt, own.tenant)))),
    "fields_with_a_bar": WeakKey(namespace=lambda own: "|".join(map(str, filter(None, (own.lora, own.salt))))),
    "fields_with_a_colon": WeakKey(namespace=partial(_fields_with, ":")),
    "fields_with_a_unit_separator": WeakKey(namespace=partial(_fields_with, "\x1f")),
    "salt_as_a_number": WeakKey(namespace=lambda own: replace(own, salt=_as_a_number(own.salt))),
    "fields_in_any_order": WeakKey(namespace=lambda own: frozenset((own.lora, own.salt, own.tenant))),
    "empty_is_absent": WeakKey(namespace=lambda own: Namespace(own.lora or None, own.salt or None, own.tenant or None)),
}
"""By name: the three of a report, those with the same effect, and keys of namespaces."""

CHAIN_KEYS: dict[str, WeakKey] = {
    "restarted_after_3_pages": WeakKey(restarts_after=3),
    "restarted_after_8_pages": WeakKey(restarts_after=8),
    "restarted_after_512_pages": WeakKey(restarts_after=512),
    "named_in_4_pages": WeakKey(named_pages=4),
}
"""Keys that ignore pages far before a page. A tree compares all pages on the path, so they do not weaken it."""

PAIR_KEYS: dict[str, WeakKey] = {
    "first_of_each_pair": WeakKey(tokens=lambda pages: pages[:, ::2], in_one_token=True),
    "second_of_each_pair": WeakKey(tokens=lambda pages: pages[:, 1::2], in_one_token=True),
    "pairs_in_any_order": WeakKey(
        tokens=lambda pages: np.sort(pages.reshape(len(pages), -1, 2), axis=2), in_one_token=True
    ),
}
"""Keys of pairs. With keys of single tokens every second token is left out."""


class OtherParts(ReferenceAdapter):
    """The reference cache with another class in the place of some parts.

    `parts`: a module, a name in it, and what stands there while the cache is opened.
    """

    parts: ClassVar[tuple[tuple[ModuleType, str, object], ...]]

    def __init__(self, config: CacheConfig, groups: Mapping[str, Group] | None = None) -> None:
        with ExitStack() as replaced:
            for part in self.parts:
                replaced.enter_context(patch.object(*part))
            super().__init__(config, groups)


class OtherCalls(ReferenceAdapter):
    """The reference with other functions in the place of some, while one of its verbs runs.

    `calls`: a module, a name in it, and what stands there.
    """

    calls: ClassVar[tuple[tuple[ModuleType, str, object], ...]]

    def __init_subclass__(cls) -> None:
        for name, verb in inspect.getmembers(ReferenceAdapter, inspect.isfunction):
            if not name.startswith("_"):
                setattr(cls, name, _within(cls, verb))


def _within(cls: type[OtherCalls], verb: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(verb)
    def replaced(self: OtherCalls, *arguments: Any, **named: Any) -> Any:
        with ExitStack() as entered:
            for call in cls.calls:
                entered.enter_context(patch.object(*call))
            return verb(self, *arguments, **named)

    return replaced


class _WeakDictionary(DictionaryAdapter):
    """Stands before a dictionary adapter, and replaces each page by a number that stands for its name."""

    weak: ClassVar[WeakKey]
    page_size: int = 1

    def __init__(self, config: CacheConfig) -> None:
        self._numbers: dict[bytes, int] = {}
        super().__init__(config)

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        return super().match(self._weakened(key), chunked=chunked)

    def insert(
        self, key: Key, slots: Slots, *, shared: int, window_start: int, state: int | None, priority: int
    ) -> InsertResult:
        own = self._weakened(key)
        return super().insert(own, slots, shared=shared, window_start=window_start, state=state, priority=priority)

    def _weakened(self, key: Key) -> Key:
        names = self.weak.names(key.tokens, key.namespace, self.page_size)
        numbers = [self._numbers.setdefault(name, len(self._numbers)) for name in names]
        return Key(np.repeat(np.array(numbers, dtype=np.int32), self.page_size), SHARED)


class _WeakTree(UnifiedRadixCache):
    """The reference with pages that are replaced by a number that stands for their name."""

    weak: ClassVar[WeakKey]

    def key(self, tokens: TokenIds, namespace: Namespace | None = None) -> RadixKey:
        own, size = super().key(tokens, namespace), self.tree.radix.bytes_per_page
        names = self.weak.names(np.frombuffer(own.data, dtype="<i4"), own.namespace, size // TOKEN_BYTES)
        # Of a page of one token and of a pair four bytes are left for its name: it is numbered.
        numbers = [_NUMBERS.setdefault(name, len(_NUMBERS)) for name in names]
        return RadixKey(b"".join(number.to_bytes(size, "little") for number in numbers), SHARED)


_NUMBERS: dict[bytes, int] = {}
"""The numbers of names, in the order in which they were made."""


class _WeakBlocks(BlockCache):
    weak: ClassVar[WeakKey]

    def _extend_chain(self, request: BlockRequest) -> None:
        names = self.weak.names(request.tokens, request.namespace, self.config.hash_block)
        request.digests[:] = [repr(self.weak.namespace(request.namespace)).encode(), *names]

    def _copies(self, content: Content) -> list[Block]:
        return list(self._cached.get((content.group, content.digest), []))


class _Named(tuple[bytes, Namespace, bytes]):
    """The identity of a chunk, which equals another one with the same digest."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple) and self[0] == other[0]

    def __hash__(self) -> int:
        return hash(self[0])


class _WeakChunks(OffloadCache):
    weak: ClassVar[WeakKey]

    def identities(self, tokens: Tokens, namespace: Namespace) -> list[Identity]:
        names = self.weak.names(tokens, namespace, self.config.chunk_tokens)
        known = super().identities(tokens, namespace)
        return [_Named((name, own[1], own[2])) for name, own in zip(names, known, strict=True)]

    def object_name(self, identity: Identity) -> str:
        return identity[0].hex()


class _WeakNames(OffloadCache):
    weak: ClassVar[WeakKey]

    def object_name(self, identity: Identity) -> str:
        _, namespace, prefix = identity
        tokens = np.frombuffer(prefix, dtype="<i4")
        return self.weak.names(tokens, namespace, self.config.chunk_tokens)[-1].hex()


def _of_adapter(weak: WeakKey) -> dict[str, object]:
    """The attribute of an adapter that replaces pages itself."""
    return {"weak": weak}


def _another(base: type, attribute: str, weak: WeakKey) -> dict[str, object]:
    """The attribute of an adapter that has the class of its cache: a subclass with this key."""
    return {attribute: type(base.__name__, (base,), {"weak": weak})}


def _other_tree(weak: WeakKey) -> dict[str, object]:
    """What OtherParts replaces for a weak key in the tree, and so on every tier."""
    return {"parts": ((reference, "UnifiedRadixCache", type("_WeakTree", (_WeakTree,), {"weak": weak})),)}


def _other_names(weak: WeakKey) -> dict[str, object]:
    """What OtherCalls replaces for a sound tree whose pages have weak names in storage."""

    def chain_seed(namespace: Namespace) -> bytes:
        return weak.seed(namespace)

    def hash_pages(data: bytes, bytes_per_page: int, previous: bytes) -> list[bytes]:
        pages = np.frombuffer(data, dtype="<i4").reshape(-1, bytes_per_page // TOKEN_BYTES)
        return weak.chain(pages, previous)

    calls = (("chain_seed", chain_seed), ("hash_pages", hash_pages))
    return {"calls": tuple((module, *call) for module in (hicache.cache, hashes, prefetch) for call in calls)}


@dataclass(frozen=True, slots=True)
class Double:
    """A cache of the kit, as one door to it shows it.

    `weaken`: the attributes that give its adapter a weak key. `keys`: the names of the keys that it is given.
    """

    bases: tuple[type[CacheAdapter], ...]
    capabilities: frozenset[Capability]
    weaken: Callable[[WeakKey], Mapping[str, object]]
    keys: tuple[str, ...]


_REQUESTS = frozenset({Capability.REQUESTS, Capability.PAGED, Capability.NAMESPACES})
_TABLES = _REQUESTS | {Capability.TABLES}
_VERBS = frozenset({Capability.VERBS, Capability.RESET, Capability.PAGED, Capability.NAMESPACES})

_OF_ONE_TOKEN = tuple(name for name, key in WEAK_KEYS.items() if key.in_one_token and key.is_chained)
_OF_PAGES = tuple(name for name, key in WEAK_KEYS.items() if key.is_chained and not key.is_of_namespaces)
_CHAINED = tuple(name for name, key in WEAK_KEYS.items() if key.is_chained)
_ALL = tuple(WEAK_KEYS)

_OF_BLOCKS = partial(_another, _WeakBlocks, "cache_type")
_OF_CHUNKS = partial(_another, _WeakChunks, "cache_type")
_OF_OBJECTS = partial(_another, _WeakNames, "cache_type")

_TRUSTING = OffloadCacheAdapter.capabilities - {Capability.COLLISIONS}

DOUBLES: Mapping[str, Double] = {
    "dictionary": Double((_WeakDictionary,), DictionaryAdapter.capabilities, _of_adapter, _OF_ONE_TOKEN),
    "pages": Double(
        (_WeakDictionary, PagedDictionaryAdapter), PagedDictionaryAdapter.capabilities, _of_adapter, _OF_PAGES
    ),
    "tree_by_verbs": Double((OtherParts,), _VERBS, _other_tree, _CHAINED),
    "tree_by_requests": Double((OtherParts,), _REQUESTS, _other_tree, _CHAINED),
    "tree_of_pairs": Double((OtherParts,), _VERBS | _REQUESTS | {Capability.BIGRAM}, _other_tree, tuple(PAIR_KEYS)),
    "blocks_by_requests": Double((BlockCacheAdapter,), _TABLES, _OF_BLOCKS, (*_ALL, *CHAIN_KEYS)),
    "chunks_by_requests": Double((OffloadCacheAdapter,), _TABLES | {Capability.HOST}, _OF_CHUNKS, _ALL),
    "objects_of_a_tree": Double((OtherCalls,), OtherCalls.capabilities - {Capability.COLLISIONS}, _other_names, _ALL),
    "objects_of_chunks": Double((OffloadCacheAdapter,), _TRUSTING, _OF_OBJECTS, _ALL),
}
"""By name. A tree compares the pages before a page by design: none ignores the parent."""


def _weakened(name: str, double: Double, key: str) -> type[CacheAdapter]:
    named = {"__module__": __name__, "__doc__": f"{name} with the key {key}."}
    attributes = double.weaken((WEAK_KEYS | CHAIN_KEYS | PAIR_KEYS | {"sound": SOUND})[key])
    return type(f"{name}_{key}", double.bases, {"capabilities": double.capabilities, **attributes, **named})


ADAPTERS: Mapping[str, type[CacheAdapter]] = {
    adapter.__name__: adapter
    for name, double in DOUBLES.items()
    for adapter in (_weakened(name, double, key) for key in (*double.keys, "sound"))
}
"""Each double with each of its keys, and with a sound one, by the name of the class."""

globals().update(ADAPTERS)
