"""Sound caches of designs that the reference does not have, which no suite may accuse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import ClassVar

import numpy as np

from hicache.config import CacheConfig
from hicache.request import Request, RequestManager
from hicache.testing.adapter import Capability
from hicache.testing.caches.block_cache import BlockCache, BlockCacheConfig, BlockRequest, Content
from hicache.testing.caches.blocks import CONFIGURATIONS, BlockCacheAdapter
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.configurations import standard_configurations
from hicache.testing.geometry import GeometricConfig, Geometry, Publish, geometry_of
from hicache.types import MatchResult, Namespace, Slots, Tokens


class LateTree(ReferenceAdapter):
    """A tree that never rewrites the table of a request: its copies of cached pages stay until it ends.

    With Publish.REQUEST it caches nothing before the end of a request, as LightLLM does.
    """

    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            *(Capability.VERBS, Capability.REQUESTS, Capability.RESET, Capability.PAGED, Capability.NAMESPACES),
            *(Capability.SWA, Capability.MAMBA, Capability.BYTES, Capability.SNAPSHOT, Capability.SIZES),
            *(Capability.EVENTS, Capability.HITS, Capability.REFUSALS, Capability.EARLY_UNLOCK),
        }
    )

    def __init__(self, config: CacheConfig) -> None:
        super().__init__(config)
        self.is_late = geometry_of(config).publish is Publish.REQUEST
        self.copies: dict[Request, list[tuple[int, Slots]]] = {}
        """Of a request, its copies of what the tree has, each with its start in the table."""

    @classmethod
    def configurations(cls) -> Sequence[CacheConfig]:
        standard = {config.name: config for config in standard_configurations(cls.capabilities)}
        late = ("full/page3/lru", "full+swa/page3/lru", "full+mamba/page16/lru")
        return [
            *(with_geometry(standard[name], publish=Publish.REQUEST) for name in late),
            *(with_geometry(standard[name], duplicates=True) for name in ("full/page1/lru", "full/page3/lru")),
            with_geometry(standard["full/page1/lru"], publish=Publish.REQUEST, duplicates=True),
        ]

    def extend(self, request: Request, tokens: Tokens) -> Slots | None:
        return None if super().extend(request, tokens) is None else self.table_of(request)

    def checkpoint(self, request: Request, computed_tokens: int) -> Slots:
        if self.is_late:
            request.computed_tokens = computed_tokens
            self._requests._release_window(request)
            return request.table.copy()
        key = self.cache.key(request.tokens[:computed_tokens], request.namespace)
        known = self.cache.match(key, chunked=True).device_indices
        start, end = request.shared_tokens, len(known)
        if start < end:
            self.copies.setdefault(request, []).append((start, request.table[start:end].copy()))
            request.table[start:end] = known[start:]
        super().checkpoint(request, computed_tokens)
        return self.table_of(request)

    def finish(self, request: Request) -> None:
        super().finish(request)
        self.free_copies(request)

    def abort(self, request: Request) -> None:
        super().abort(request)
        self.free_copies(request)

    def table_of(self, request: Request) -> Slots:
        """The table that the model reads."""
        table = request.table.copy()
        for start, slots in self.copies.get(request, ()):
            table[start : start + len(slots)] = slots
        return table

    def free_copies(self, request: Request) -> None:
        """Free the copies of a request that has ended."""
        for _, slots in self.copies.pop(request, ()):
            self.cache.free(slots)


FULL_ALONE = [config for config in CONFIGURATIONS if config.components == ("full",)]
"""The geometries of the block cache that have FULL alone."""


class GivingBack(BlockCache):
    """Blocks that a request never wrote have their old content again when it ends, as in exllamav3.

    With the next token it publishes what was computed until then.
    """

    def __init__(self, config: BlockCacheConfig, **hooks: object) -> None:
        super().__init__(config, **hooks)  # type: ignore[arg-type] # by name
        self.before: dict[int, Content] = {}

    def extend(self, request: BlockRequest, tokens: Tokens) -> bool:
        self.checkpoint(request, len(request.tokens))
        return super().extend(request, tokens)

    def abort(self, request: BlockRequest) -> None:
        blank = request.tables[0][-(-request.computed // self.block_tokens[0]) :]
        super().abort(request)
        for number in blank if self.config.publish is not Publish.SCHEDULED else ():
            if number in self.before:
                self._store(self._blocks[number], self.before.pop(number))
                self._queue.move_to_end(number)

    def _allocate(self) -> int:
        content = self._blocks[next(iter(self._queue))].content
        number = super()._allocate()
        self.before.pop(number, None)
        if content is not None:
            self.before[number] = content
        return number


class GivingBackAdapter(BlockCacheAdapter):
    """By requests. What is given back counts as used then, which is an order of its own."""

    departures = frozenset({"EVICT-2"})
    cache_type = GivingBack

    @classmethod
    def configurations(cls) -> Sequence[CacheConfig]:
        return [config for config in FULL_ALONE if not config.geometry.lookahead]


class SharingBlocks(BlockCache):
    """A request shares the whole blocks that a running one with the same tokens has, before they are computed."""

    def _take(self, request: BlockRequest, found: Sequence[int]) -> None:
        self._touch(found)
        self._touch(self.shared(request))
        request.tables[0] += self.shared(request)
        self._grow(request)

    def shared(self, request: BlockRequest) -> list[int]:
        """The blocks that a running request has after those of the hit, as far as both have the same tokens."""
        size, start = self.block_tokens[0], len(request.tables[0])
        for other in self._requests:
            common = min(len(request.tokens), len(other.tokens))
            differ = np.flatnonzero(request.tokens[:common] != other.tokens[:common])
            whole = (differ[0] if len(differ) else common) // size
            if other.namespace == request.namespace and whole > start:
                return other.tables[0][start:whole]
        return []

    def _publish_block(self, request: BlockRequest, group: int, index: int) -> None:
        if self._blocks[request.tables[group][index]].content is None:
            super()._publish_block(request, group, index)


class SharingBlocksAdapter(BlockCacheAdapter):
    """By requests."""

    cache_type = SharingBlocks

    @classmethod
    def configurations(cls) -> Sequence[CacheConfig]:
        return [
            replace(config, geometry=replace(config.geometry, shares_uncomputed=True))
            for config in FULL_ALONE
            if config.geometry.publish is Publish.CHUNK
        ]


def output_of(tokens: int) -> int:
    """The tokens of output that a prompt of so many tokens reserves slots for."""
    return 1 + tokens % 3


class ReservingBlocks(BlockCache):
    """An admission takes blocks for the output too, and an extension uses them first."""

    def __init__(self, config: BlockCacheConfig, **hooks: object) -> None:
        super().__init__(config, **hooks)  # type: ignore[arg-type] # by name
        self.until: dict[BlockRequest, int] = {}
        """How many tokens the blocks of a request are for at least."""

    def _missing(self, request: BlockRequest, tokens: int) -> int:
        prompt = len(request.tokens)
        return super()._missing(request, max(tokens, self.until.setdefault(request, prompt + output_of(prompt))))

    def _grow(self, request: BlockRequest) -> None:
        tokens = max(len(request.tokens), self.until[request])
        for group, table in enumerate(request.tables):
            while len(table) < self._table_length(group, tokens, request.computed):
                table.append(self._allocate())

    def _close(self, request: BlockRequest) -> None:
        del self.until[request]
        super()._close(request)


class ReservingBlocksAdapter(BlockCacheAdapter):
    """By requests."""

    cache_type = ReservingBlocks

    @classmethod
    def configurations(cls) -> Sequence[CacheConfig]:
        return [config for config in CONFIGURATIONS if config.page_size in (1, 4)]

    def reserved_tokens(self, tokens: int) -> int:
        return output_of(tokens)


class ReservingRequests(RequestManager):
    """Requests whose admission takes slots for the output too."""

    reserve = 0

    def _start(self, tokens: Tokens, namespace: Namespace | None, found: MatchResult) -> Request | None:
        self.reserve = output_of(len(tokens))
        try:
            return super()._start(tokens, namespace, found)
        finally:
            self.reserve = 0

    def _missing(self, tokens: int, held: int) -> int:
        return super()._missing(tokens + self.reserve, held)


class ReservingTree(ReferenceAdapter):
    """A tree, by verbs and by requests."""

    capabilities = LateTree.capabilities - {Capability.SWA, Capability.MAMBA, Capability.EARLY_UNLOCK}

    def __init__(self, config: CacheConfig) -> None:
        super().__init__(config)
        self._requests = ReservingRequests(self.cache)

    def reserved_tokens(self, tokens: int) -> int:
        return output_of(tokens)


def with_geometry(config: CacheConfig, **rules: object) -> GeometricConfig:
    """A configuration with these rules in its geometry."""
    given = {one.name: getattr(config, one.name) for one in fields(config)}
    geometry = Geometry(dict.fromkeys(config.components, config.page_size), **rules)  # type: ignore[arg-type] # by name
    return GeometricConfig(**given, geometry=geometry)
