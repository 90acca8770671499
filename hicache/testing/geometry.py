"""Geometry: how a cache lays out tokens and what it finds, as data of a configuration.

The suites read sizes from here and take none for granted: blocks that differ by component, one pool or several, when
computed tokens are cached, and how much of a prompt a hit may be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from hicache.config import CacheConfig
from hicache.errors import ConfigurationError
from hicache.types import Component

MAMBA = Component.MAMBA.value


class Publish(str, Enum):
    """When the computed tokens of a request are cached, so that other requests find them.

    A state is cached at the end of a chunk at the earliest, because it does not exist before.
    """

    SCHEDULED = "scheduled"
    CHUNK = "chunk"
    REQUEST = "request"


@dataclass(frozen=True, slots=True)
class Geometry:
    """The blocks of each component, and the rules that depend on the design of a cache. Lengths are in tokens.

    `block_tokens`: by component, the tokens of one block on one rank; for MAMBA the distance between two states that
    can be cached. `shared_pool`: all components take their blocks from one pool. `duplicates`: equal blocks may be
    cached more than once, and the tables of requests are never rewritten, they grow. `recomputed_tokens`: how many
    tokens of a prompt an admission computes at least: 0 or 1. `lookahead`: slots that a request has beyond its tokens,
    for speculative decoding. `context_parallel`: the ranks that share the tokens of a block of FULL or SWA; every rank
    has a state whole. `publish`: when computed tokens are cached. `chunk_tokens`: for a cache beside the device, which
    keeps chunks on a host tier and nothing on the device: the tokens of a chunk, a multiple of the block; else None.
    `shares_uncomputed`: requests with the same tokens may share whole blocks that none of them has computed.
    Raises ConfigurationError, naming the field and its value, for what contradicts itself.
    """

    block_tokens: Mapping[str, int]
    shared_pool: bool = False
    duplicates: bool = False
    recomputed_tokens: int = 1
    lookahead: int = 0
    context_parallel: int = 1
    publish: Publish = Publish.CHUNK
    chunk_tokens: int | None = None
    shares_uncomputed: bool = False

    def __post_init__(self) -> None:
        for component, tokens in self.block_tokens.items():
            if tokens < 1:
                raise ConfigurationError(f"geometry.block_tokens[{component!r}] must be positive, got {tokens!r}")
        if Component.FULL not in self.block_tokens:
            raise ConfigurationError(f"geometry.block_tokens lacks 'full', got {dict(self.block_tokens)}")
        if self.recomputed_tokens not in (0, 1):
            raise ConfigurationError(f"geometry.recomputed_tokens must be 0 or 1, got {self.recomputed_tokens!r}")
        if self.lookahead < 0:
            raise ConfigurationError(f"geometry.lookahead must not be negative, got {self.lookahead!r}")
        if self.context_parallel < 1:
            raise ConfigurationError(f"geometry.context_parallel must be positive, got {self.context_parallel!r}")
        if self.chunk_tokens is not None:
            self._check_chunks(self.chunk_tokens)

    def _check_chunks(self, tokens: int) -> None:
        if tokens < 1 or set(self.block_tokens) != {Component.FULL} or tokens % self.tokens(Component.FULL):
            expected = "positive whole blocks, with FULL alone"
            raise ConfigurationError(f"geometry.chunk_tokens must be {expected}, got {tokens!r}")

    def tokens(self, component: str) -> int:
        """The tokens of one block over all ranks; for MAMBA the distance between two states."""
        return self.block_tokens[component] * (1 if component == MAMBA else self.context_parallel)

    def slots(self, component: str) -> int:
        """The slots of one block: one for each token, and one for a state. Slot = block * slots of a block + offset."""
        return 1 if component == MAMBA else self.tokens(component)

    def cached_tokens(self, component: str) -> int:
        """The tokens that are cached and evicted as one: a chunk, or else a block."""
        return self.chunk_tokens or self.tokens(component)

    @property
    def merges_early(self) -> bool:
        """Whether a request may take over a cached block before it has computed it: it then computes it in place."""
        return self.publish is Publish.SCHEDULED and not self.duplicates

    @property
    def alignment(self) -> int:
        """The unit of hits: a block of every component ends there, and a chunk."""
        return math.lcm(*(self.tokens(component) for component in self.block_tokens), self.chunk_tokens or 1)

    @property
    def finest(self) -> int:
        """The tokens of the smallest block of FULL or SWA: what a request can grow by."""
        return min(self.tokens(component) for component in self.block_tokens if component != MAMBA)

    def blocks_of(self, tokens: int, *, hit: int = 0, window: int = 0) -> dict[str, int]:
        """By component, the blocks that a request of so many tokens has when it is admitted.

        `hit`: how many of the tokens it finds. Blocks of SWA that lie before the `window` of the hit are not needed.
        The state of a hit and the request's own state are two blocks.
        """
        blocks: dict[str, int] = {}
        for component in self.block_tokens:
            size = self.tokens(component)
            whole = -(-(tokens + self.lookahead) // size)
            passed = max(0, hit - window) // size if component == Component.SWA else 0
            blocks[component] = 1 + (hit > 0) if component == MAMBA else whole - passed
        return blocks

    def fits(self, needed: Mapping[str, int], room: Mapping[str, int]) -> bool:
        """Whether so many blocks fit. `room`: by component; with a shared pool that of the pool for each."""
        if self.shared_pool:
            return sum(needed.values()) <= min(room.values())
        return all(needed[component] <= count for component, count in room.items())

    def in_blocks(self, slots: Mapping[str, int]) -> dict[str, int]:
        """Numbers of slots by component, such as capacities, as numbers of blocks."""
        return {component: count // self.slots(component) for component, count in slots.items()}

    @property
    def name(self) -> str:
        """A short name for test ids: the blocks by component, then what differs from the defaults."""
        words = [f"{component}{tokens}" for component, tokens in self.block_tokens.items()]
        words += [f"ranks{self.context_parallel}"] if self.context_parallel > 1 else []
        words += [f"lookahead{self.lookahead}"] if self.lookahead else []
        words += ["whole"] if not self.recomputed_tokens else []
        words += [f"chunk{self.chunk_tokens}"] if self.chunk_tokens else []
        words += ["shares"] if self.shares_uncomputed else []
        words += [self.publish.value] if self.publish is not Publish.CHUNK else []
        return "-".join(["shared" if self.shared_pool else "pools", *words])


@dataclass(frozen=True, slots=True)
class GeometricConfig(CacheConfig):
    """A configuration with a geometry of its own. `page_size` is the unit of hits, which is the geometry's alignment.

    `capacity_tokens`: with a shared pool what each component could have alone: the pool's blocks, in slots.
    Raises ConfigurationError, naming the field and its value, for a combination that cannot be served.
    """

    geometry: Geometry = field(kw_only=True)

    def __post_init__(self) -> None:
        super(GeometricConfig, self).__post_init__()
        geometry = self.geometry
        if set(geometry.block_tokens) != set(self.components):
            given = sorted(geometry.block_tokens)
            raise ConfigurationError(
                f"geometry.block_tokens is given for {given}, components are {sorted(self.components)}"
            )
        if self.page_size != geometry.alignment:
            raise ConfigurationError(f"page_size must be {geometry.alignment}, the unit of hits, got {self.page_size}")
        if self.bigram or (self.host is None) != (geometry.chunk_tokens is None):
            raise ConfigurationError(
                "a configuration with a geometry has keys of tokens, and a host tier exactly when it has chunks"
            )
        blocks = geometry.in_blocks(self.capacity_tokens)
        if geometry.shared_pool and len(set(blocks.values())) > 1:
            raise ConfigurationError(
                f"capacity_tokens={dict(self.capacity_tokens)} are {blocks} blocks: expected one number, as for a "
                "shared pool"
            )

    @property
    def name(self) -> str:
        """A short name for tables and test ids, such as `full+mamba/page8/lru/shared-full4-mamba8`."""
        return f"{super(GeometricConfig, self).name}/{self.geometry.name}"

    @property
    def block_step(self) -> int:
        """What the number of a pool's blocks must be a multiple of, so that every capacity is whole pages."""
        geometry = self.geometry
        return math.lcm(*(self.page_size // geometry.tokens(name) for name in self.components if name != MAMBA))

    def with_blocks(self, blocks: int) -> GeometricConfig:
        """The same configuration with so many blocks in each pool, rounded up to a multiple of `block_step`."""
        count = -(-blocks // self.block_step) * self.block_step
        return replace(self, capacity_tokens={name: count * self.geometry.slots(name) for name in self.components})


def geometry_of(config: CacheConfig) -> Geometry:
    """The geometry of any configuration.

    One without a geometry of its own has a pool and blocks of page_size tokens for each component, and no duplicates.
    """
    if isinstance(config, GeometricConfig):
        return config.geometry
    return Geometry(dict.fromkeys(config.components, config.page_size))
