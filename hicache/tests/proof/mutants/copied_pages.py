"""A cache to break that copies parts of pages: a prompt that shares the beginning of a page gets a page of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hicache.config import CacheConfig
from hicache.errors import ConfigurationError
from hicache.testing.adapter import Admission, CacheAdapter, Capability, PageBytes
from hicache.testing.configurations import standard_configurations
from hicache.types import Key, Pool, Slots, Tokens

LAYERS, SLOT_BYTES, TOKEN_BYTES = 2, 8, 4


@dataclass(slots=True, eq=False)
class Page:
    """A page. `prefix`: the tokens before it; `part`: its own that are computed. `before`: both, if it is unwritten."""

    number: int
    prefix: bytes = b""
    part: bytes = b""
    before: tuple[bytes, bytes] | None = None
    readers: int = 0
    used: int = 0


@dataclass(slots=True, eq=False)
class PageRequest:
    """A running request, also its handle. `cached`, `copied`: how many tokens it found in shared and in own pages."""

    tokens: Tokens
    pages: list[Page]
    cached: int
    copied: int
    computed: int


class CopiedPages:
    """Pages by their whole prefix, shared by all who read them, and copied in part.

    A page that its request has not written keeps what it cached before. Of two equal pages all read the first; parts of
    the other can be copied.
    """

    def __init__(self, pages: int, size: int) -> None:
        self.size = size
        self.now = 0
        self.pages = [Page(number) for number in range(1, pages + 1)]
        self.by_prefix: dict[bytes, Page] = {}
        self.memory = np.zeros((LAYERS, (pages + 1) * size, SLOT_BYTES), dtype=np.uint8)

    def find(self, tokens: Tokens) -> list[Page]:
        """The pages of the longest cached prefix of whole pages."""
        found: list[Page] = []
        while (end := (len(found) + 1) * self.size) <= len(tokens):
            page = self.by_prefix.get(tokens[:end].tobytes())
            if page is None:
                break
            found.append(page)
        return found

    def admit(self, tokens: Tokens, limit: int) -> PageRequest | None:
        """Share the whole pages of the cached prefix, take the others, and copy a part; None when they are short.

        `limit`: the most tokens that may be found.
        """
        found = self.find(tokens[:limit])
        cached = len(found) * self.size
        prefix, part = tokens[:cached].tobytes(), tokens[cached:limit].tobytes()
        source, copied = self.source(prefix, part)
        read = found + [source] * bool(copied)
        for page in read:
            page.readers += 1
        taken = self.take(-(-len(tokens) // self.size) - len(found))
        if taken is None:
            self.release(read)
            # It may fit without the page that it copies from.
            return self.admit(tokens, cached) if copied else None
        if copied:
            source.readers -= 1
            start, end = source.number * self.size, taken[0].number * self.size
            self.memory[:, end : end + copied] = self.memory[:, start : start + copied]
            self.fill(taken[0], prefix, part[: copied * TOKEN_BYTES])
        return PageRequest(tokens, found + taken, cached, copied, cached + copied)

    def take(self, count: int) -> list[Page] | None:
        """Take pages without a reader: blank ones first, then those that were used longest ago."""
        free = sorted((page for page in self.pages if not page.readers), key=lambda page: (page.part != b"", page.used))
        if count > len(free):
            return None
        for page in free[:count]:
            if self.by_prefix.get(page.prefix + page.part) is page:
                del self.by_prefix[page.prefix + page.part]
            page.before, page.prefix, page.part = (page.prefix, page.part), b"", b""
            page.readers = 1
        return free[:count]

    def has(self, tokens: Tokens) -> bool:
        """Whether all of these tokens are cached, the last ones in a part of a page."""
        whole = len(tokens) // self.size * self.size
        prefix, rest = tokens[:whole].tobytes(), tokens[whole:].tobytes()
        has_rest = any(page.prefix == prefix and page.part.startswith(rest) for page in self.pages)
        return len(self.find(tokens)) * self.size == whole and (not rest or has_rest)

    def source(self, prefix: bytes, part: bytes) -> tuple[Page, int]:
        """The page that caches most of these tokens after this prefix, and how many there are."""
        lengths = [(common(page.part, part), page) for page in self.pages if page.prefix == prefix]
        copied, source = max(lengths, key=lambda found: found[0], default=(0, self.pages[0]))
        return source, copied

    def extend(self, request: PageRequest, tokens: Tokens) -> bool:
        """Append tokens to a request that is computed in full; False, with the same table, when pages are short."""
        for page in request.pages:
            page.before = None
        longer = np.concatenate([request.tokens, tokens])
        taken = self.take(-(-len(longer) // self.size) - len(request.pages))
        if taken is not None:
            self.compute(request, len(request.tokens))
            request.tokens, request.pages = longer, request.pages + taken
        return taken is not None

    def compute(self, request: PageRequest, tokens: int) -> None:
        """The first tokens of a request are computed; the whole pages among them are found from now on."""
        for index in range(request.computed // self.size, -(-tokens // self.size)):
            start, end = index * self.size, min((index + 1) * self.size, tokens)
            page = request.pages[index]
            found = self.fill(page, request.tokens[:start].tobytes(), request.tokens[start:end].tobytes())
            if found is not page:
                found.readers += 1
                self.release([page])
                request.pages[index] = found
        request.computed = tokens

    def fill(self, page: Page, prefix: bytes, part: bytes) -> Page:
        """A page has these tokens after this prefix. Returns the page that is found for them if it is whole."""
        page.prefix, page.part, page.before = prefix, part, None
        return self.by_prefix.setdefault(prefix + part, page) if len(part) == self.size * TOKEN_BYTES else page

    def release(self, pages: list[Page]) -> None:
        """A request reads these pages no more. The last one counts as used before the first."""
        for page in reversed(pages):
            self.now += 1
            page.readers, page.used = page.readers - 1, self.now
            if not page.readers and page.before is not None:
                self.fill(page, *page.before)


def common(one: bytes, other: bytes) -> int:
    """How many tokens both begin with."""
    length = min(len(one), len(other))
    while one[:length] != other[:length]:
        length = (length // TOKEN_BYTES - 1) * TOKEN_BYTES
    return length // TOKEN_BYTES


class CopiedPagesAdapter(CacheAdapter):
    """Requests over pages that are copied in part."""

    interface = 2
    profile = "blocks"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.REQUESTS, Capability.PAGED, Capability.TABLES, Capability.BYTES, Capability.PARTIAL_HITS}
    )

    def __init__(self, config: CacheConfig) -> None:
        if config.components != ("full",):
            raise ConfigurationError(f"no cache of {config.components}")
        self.cache = CopiedPages(config.capacity_tokens["full"] // config.page_size, config.page_size)

    def lookup(self, key: Key) -> int:
        return len(self.cache.find(key.tokens)) * self.cache.size

    def admit(self, key: Key) -> Admission | None:
        request = self.cache.admit(key.tokens, len(key.tokens) - 1)
        return None if request is None else self.admission(request, None)

    def admission(self, request: PageRequest, state: int | None) -> Admission:
        """What a request was given."""
        table = self.tables(request)["full"]
        return Admission(request, table, request.cached, state, loading=False, copied_tokens=request.copied)

    def extend(self, request: PageRequest, tokens: Tokens) -> Slots | None:
        return self.tables(request)["full"] if self.cache.extend(request, tokens) else None

    def checkpoint(self, request: PageRequest, computed_tokens: int) -> Slots:
        self.cache.compute(request, computed_tokens)
        return self.tables(request)["full"]

    def finish(self, request: PageRequest) -> None:
        self.cache.compute(request, len(request.tokens))
        self.cache.release(request.pages)

    def abort(self, request: PageRequest) -> None:
        self.cache.release(request.pages)

    def tables(self, request: PageRequest) -> Mapping[str, Slots]:
        first = np.array([page.number * self.cache.size for page in request.pages], dtype=np.int64)
        return {"full": (first[:, None] + np.arange(self.cache.size)).reshape(-1)}

    def layers(self, pool: str) -> int:
        return LAYERS if pool == Pool.KV else 0

    def slot_bytes(self, pool: str) -> int:
        return SLOT_BYTES

    def write(self, pool: str, slots: Slots, layer: int, data: PageBytes) -> None:
        self.cache.memory[layer, slots] = data

    def read(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        data: PageBytes = self.cache.memory[layer, slots]
        return data


class CopiedStatesAdapter(CopiedPagesAdapter):
    """Requests of a model with states: a hit ends at a state, which is kept where a chunk ended, also inside a page.

    `states`: by what they follow, the least recent first. `own`: that of each running request. `spare`: free slots.
    """

    capabilities = CopiedPagesAdapter.capabilities | {Capability.MAMBA}

    def __init__(self, config: CacheConfig) -> None:
        if config.components != ("full", "mamba"):
            raise ConfigurationError(f"no cache of {config.components}")
        self.cache = CopiedPages(config.capacity_tokens["full"] // config.page_size, config.page_size)
        self.spare = list(range(1, config.capacity_tokens["mamba"] + 1))
        self.states: dict[bytes, int] = {}
        self.own: dict[PageRequest, int] = {}
        self.memory = np.zeros((LAYERS, len(self.spare) + 1, SLOT_BYTES), dtype=np.uint8)

    @classmethod
    def configurations(cls) -> Sequence[CacheConfig]:
        capabilities = cls.capabilities
        return [one for one in standard_configurations(capabilities) if one.components == ("full", "mamba")]

    def reach(self, tokens: Tokens, step: int) -> int:
        """The most tokens, a multiple of `step`, that are cached with the state after them."""
        last = len(tokens) // step * step
        lengths = (length for length in range(last, 0, -step) if tokens[:length].tobytes() in self.states)
        return next((length for length in lengths if self.cache.has(tokens[:length])), 0)

    def lookup(self, key: Key) -> int:
        return self.reach(key.tokens, self.cache.size)

    def admit(self, key: Key) -> Admission | None:
        reached = self.reach(key.tokens[:-1], 1)
        source = self.states.get(key.tokens[:reached].tobytes(), 0)
        if not self.spare and set(self.states.values()) <= {source}:
            return None
        request = self.cache.admit(key.tokens, reached)
        if request is not None and request.computed < reached:
            # There was no room beside the page with the part.
            self.cache.release(request.pages)
            source, request = 0, self.cache.admit(key.tokens, 0)
        if request is None:
            return None
        own = self.take_state(but=source)
        assert own is not None, "a slot is free, or has a cached state that can go"
        self.memory[:, own] = self.memory[:, source]
        self.own[request] = own
        return self.admission(request, own)

    def take_state(self, but: int = 0) -> int | None:
        """A slot for a state. The cached state that was used longest ago makes room, but not this one."""
        oldest = next((prefix for prefix, slot in self.states.items() if slot != but), None)
        if not self.spare and oldest is not None:
            self.spare.append(self.states.pop(oldest))
        return self.spare.pop() if self.spare else None

    def keep(self, request: PageRequest) -> None:
        """Keep a copy of the state of a request, if there is a slot for it."""
        prefix = request.tokens[: request.computed].tobytes()
        slot = self.states.pop(prefix, None) or self.take_state()
        if slot is not None:
            self.memory[:, slot] = self.memory[:, self.own[request]]
            self.states[prefix] = slot

    def checkpoint(self, request: PageRequest, computed_tokens: int) -> Slots:
        table = super().checkpoint(request, computed_tokens)
        self.keep(request)
        return table

    def finish(self, request: PageRequest) -> None:
        super().finish(request)
        # Its own slot keeps the state, in the place of one that may be cached.
        prefix, own = request.tokens.tobytes(), self.own.pop(request)
        self.spare += [self.states.pop(prefix)] if prefix in self.states else []
        self.states[prefix] = own

    def abort(self, request: PageRequest) -> None:
        super().abort(request)
        self.spare.append(self.own.pop(request))

    def tables(self, request: PageRequest) -> Mapping[str, Slots]:
        return {**super().tables(request), "mamba": np.array([self.own.get(request, 0)], dtype=np.int64)}

    def layers(self, pool: str) -> int:
        return LAYERS if pool in (Pool.KV, Pool.MAMBA) else 0

    def write(self, pool: str, slots: Slots, layer: int, data: PageBytes) -> None:
        (self.memory if pool == Pool.MAMBA else self.cache.memory)[layer, slots] = data

    def read(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        data: PageBytes = (self.memory if pool == Pool.MAMBA else self.cache.memory)[layer, slots]
        return data
