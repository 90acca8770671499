"""Page bytes as a function of namespace, token prefix, position, layer and pool; and the check of such bytes.

The bytes show whose data a slot holds without any help of the cache: the digests here share no code with the cache's
page hashes. `sha256` is bound at import: a test that makes the hashes of a cache equal leaves these alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from hicache.config import Topology
from hicache.testing.violation import violation
from hicache.types import Key, Namespace

Digests = npt.NDArray[np.uint64]
"""One number per page, a function of the namespace and of all tokens up to the page's end: uint64, [pages]."""

Bytes = npt.NDArray[np.uint8]
"""Raw bytes of some slots in one layer: uint8, [slots, bytes per slot and layer]."""

Place = Callable[[int], str]
"""Returns the description of one row of the bytes, for messages."""

TOKEN_BYTES = 4
WORD_BYTES = 8
DIGEST_WORDS = 4

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
_SHIFT_POSITION = np.uint64(32)


def element_bytes(bigram: bool) -> int:
    """Bytes of one element of a key: a token, or a pair of consecutive tokens."""
    return 2 * TOKEN_BYTES if bigram else TOKEN_BYTES


def elements_of(key: Key, bigram: bool) -> bytes:
    """The elements of a key as bytes: token ids as 4 bytes little-endian, or pairs of them; of media their identity."""
    tokens = key.identity().astype("<i4")
    if not bigram:
        return tokens.tobytes()
    return np.column_stack((tokens[:-1], tokens[1:])).tobytes() if len(tokens) > 1 else b""


@lru_cache(maxsize=1 << 10)
def seed(namespace: Namespace) -> bytes:
    """The first digest of a namespace's chain, different for each namespace."""
    fields = json.dumps([namespace.lora, namespace.salt, namespace.tenant])
    return sha256(fields.encode("ascii")).digest()


def chain(previous: bytes, elements: bytes, page_bytes: int) -> list[bytes]:
    """The digest of each page of `elements`, which continue `previous`; the last page may be incomplete."""
    digests: list[bytes] = []
    for start in range(0, len(elements), page_bytes):
        previous = sha256(previous + elements[start : start + page_bytes]).digest()
        digests.append(previous)
    return digests


def as_numbers(digests: Sequence[bytes]) -> Digests:
    """The first eight bytes of each digest."""
    return np.frombuffer(b"".join(digests), dtype="<u8")[::DIGEST_WORDS].astype(np.uint64)


def prefix_digests(key: Key, page_size: int, bigram: bool) -> Digests:
    """One digest for each whole page of a key."""
    page_bytes = page_size * element_bytes(bigram)
    elements = elements_of(key, bigram)
    return as_numbers(chain(seed(key.namespace), elements[: len(elements) // page_bytes * page_bytes], page_bytes))


def token_digests(namespace: Namespace, tokens: bytes) -> Digests:
    """One digest for each token: a function of the namespace and of all tokens up to it, with their positions.

    Sums of mixed numbers, one for each token at its position: computed for all tokens at once.
    """
    ids = np.frombuffer(tokens, dtype="<u4").astype(np.uint64)
    placed = (np.arange(len(ids), dtype=np.uint64) << _SHIFT_POSITION) | ids
    return _mixed(np.cumsum(_mixed(placed + _STEP)) + as_numbers([seed(namespace)]))


def state_digest(key: Key, page_size: int, bigram: bool) -> Digests:
    """The digest of the state after exactly this key, which may end inside a page: uint64 [1]."""
    start = seed(key.namespace)
    digests = chain(start, elements_of(key, bigram), page_size * element_bytes(bigram))
    return as_numbers([digests[-1] if digests else start])


def of_shard(digests: Digests, shard: str) -> Digests:
    """The digests of the same pages on a rank that holds this shard; an empty name is the whole page."""
    if not shard:
        return digests
    return digests ^ np.uint64(int.from_bytes(sha256(shard.encode("ascii")).digest()[:WORD_BYTES], "little"))


def shard_of(topology: Topology, *, is_shared: bool) -> str:
    """The name of the part of a pool's pages that a rank holds; empty with a single rank.

    `is_shared`: all ranks of a tensor-parallel group hold the same.
    """
    axes = ("cp", "pp") if is_shared else ("tp", "cp", "pp")
    sizes = {axis: getattr(topology, f"{axis}_size") for axis in axes}
    return ".".join(f"{axis}{getattr(topology, f'{axis}_rank')}of{size}" for axis, size in sizes.items() if size > 1)


def fill(digests: Digests, page_size: int, layer: int, pool: str, item_bytes: int) -> Bytes:
    """The bytes of whole pages in one layer of one pool: uint8 [pages * page_size, item_bytes].

    A state is a page of one slot. Every bit pattern can occur, also those that are NaN in a floating-point dtype.
    """
    words = -(-item_bytes // WORD_BYTES)
    salted = digests ^ _salt(pool, layer)
    counter = np.arange(1, page_size * words + 1, dtype=np.uint64) * _STEP
    mixed = _mixed(salted[:, None] + counter[None, :])
    raw = mixed.astype("<u8", copy=False).view(np.uint8).reshape(len(digests) * page_size, words * WORD_BYTES)
    return np.ascontiguousarray(raw[:, :item_bytes])


def _mixed(numbers: Digests) -> Digests:
    """Mix the bits of each number, in place. No two numbers become one."""
    numbers ^= numbers >> _SHIFT_1
    numbers *= _MIX_1
    numbers ^= numbers >> _SHIFT_2
    numbers *= _MIX_2
    numbers ^= numbers >> _SHIFT_3
    return numbers


@lru_cache(maxsize=1 << 13)
def _known_fill(digests: bytes, page_size: int, layer: int, pool: str, item_bytes: int) -> Bytes:
    return fill(np.frombuffer(digests, dtype=np.uint64), page_size, layer, pool, item_bytes)


@cache
def _salt(pool: str, layer: int) -> np.uint64:
    digest = sha256(f"{pool}/{layer}".encode("ascii")).digest()
    return np.uint64(int.from_bytes(digest[:WORD_BYTES], "little"))


def check_fill(actual: Bytes, digests: Digests, page_size: int, layer: int, pool: str, place: Place) -> None:
    """Raise InvariantError, naming the first slot that differs, unless the bytes are those of these pages (REQ-3)."""
    expected = _known_fill(digests.tobytes(), page_size, layer, pool, actual.shape[1])
    if expected.shape == actual.shape and expected.tobytes() == actual.tobytes():
        return
    is_of_shape = expected.shape == actual.shape
    row = int((expected != actual).any(axis=1).argmax()) if is_of_shape else 0
    shapes = "" if is_of_shape else f" (shape {actual.shape}, expected {expected.shape})"
    raise violation(
        "REQ-3",
        f"{place(row)}, pool {pool}, layer {layer}",
        f"bytes {expected[row : row + 1].tobytes().hex()}",
        f"{actual[row : row + 1].tobytes().hex()}{shapes}",
    )
