"""What a cache is built from: CacheConfig with its tiers, ModelShape, Topology."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from hicache.errors import ConfigurationError
from hicache.extra_config import ExtraConfig
from hicache.types import Component, Pool, StopPolicy


class EvictionPolicy(str, Enum):
    """The order in which device leaves are evicted."""

    LRU = "lru"
    LFU = "lfu"
    FIFO = "fifo"
    FILO = "filo"
    MRU = "mru"
    PRIORITY = "priority"
    SLRU = "slru"


class Layout(str, Enum):
    """How a pool's tensor is ordered.

    Layer first: [layers, slots, item]. Page first: [slots, layers, item]. Page first direct: [pages, layers, page
    size, item], so that one page of one layer is one run.
    """

    LAYER_FIRST = "layer_first"
    PAGE_FIRST = "page_first"
    PAGE_FIRST_DIRECT = "page_first_direct"


class WritePolicy(str, Enum):
    """When a node is copied to the host: with its first use, its second, or when it must leave the device."""

    WRITE_THROUGH = "write_through"
    WRITE_THROUGH_SELECTIVE = "write_through_selective"
    WRITE_BACK = "write_back"


class ExecutorKind(str, Enum):
    """Who moves the bytes: a test, step by step; a thread; or CUDA streams."""

    STEPPED = "stepped"
    THREADED = "threaded"
    STREAMS = "streams"


@dataclass(frozen=True, slots=True)
class Topology:
    """Ranks and sizes of the parallel groups that a cache is part of. Every pool stack takes them from here."""

    tp_rank: int
    tp_size: int
    cp_rank: int
    cp_size: int
    pp_rank: int
    pp_size: int
    dp_rank: int
    dp_size: int

    def __post_init__(self) -> None:
        for axis in ("tp", "cp", "pp", "dp"):
            rank, size = getattr(self, f"{axis}_rank"), getattr(self, f"{axis}_size")
            if not 0 <= rank < size:
                raise ConfigurationError(f"{axis}_rank {rank} is not in range({axis}_size={size})")


SINGLE_RANK = Topology(tp_rank=0, tp_size=1, cp_rank=0, cp_size=1, pp_rank=0, pp_size=1, dp_rank=0, dp_size=1)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What one model stores: layers by kind, sizes in elements, and torch's name of the dtype ("float32").

    `is_mla`: all ranks of a tensor-parallel group hold the same KV, undivided.
    """

    full_layers: int
    swa_layers: int
    mamba_layers: int
    kv_heads: int
    head_dim: int
    conv_elements: int
    state_elements: int
    index_dim: int
    dtype: str
    is_mla: bool


TINY_MODEL = ModelShape(
    full_layers=2,
    swa_layers=2,
    mamba_layers=2,
    kv_heads=1,
    head_dim=4,
    conv_elements=4,
    state_elements=8,
    index_dim=4,
    dtype="float32",
    is_mla=False,
)


@dataclass(frozen=True, slots=True)
class HostConfig:
    """The host tier of a cache.

    `capacity_tokens`: per component, as in CacheConfig. `layout`: of the host pools. `selective_hits`: from how many
    hits on write_through_selective backs a node up. `load_back_threshold_tokens`: a load of fewer FULL tokens is not
    worth it; a load of other components alone is never below it.
    """

    capacity_tokens: Mapping[str, int]
    layout: Layout
    write_policy: WritePolicy
    selective_hits: int
    load_back_threshold_tokens: int
    executor: ExecutorKind

    def __post_init__(self) -> None:
        for field, least in (("selective_hits", 1), ("load_back_threshold_tokens", 0)):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigurationError(f"host.{field} must be {least} or more, got {value!r}")

    @property
    def name(self) -> str:
        """A short name for tables and test ids, such as `write_back-page_first-stepped`."""
        return f"{self.write_policy.value}-{self.layout.value}-{self.executor.value}"


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """The storage tier of a cache, below its host tier.

    `backend`: a registered name, an entry point or `module:Class`. `extra`: what the backend and the prefetches are
    told. `model`: name of the model and its weights, part of every key. `timeout_cap_s`: the longest that a prefetch is
    waited for. `limit_tokens`: FULL tokens that prefetches may bring at a time. `executor`: who asks the backend,
    stepped or threaded.
    """

    backend: str
    extra: ExtraConfig
    model: str
    stop_policy: StopPolicy
    timeout_cap_s: float
    limit_tokens: int
    executor: ExecutorKind

    def __post_init__(self) -> None:
        if not self.backend or not self.model:
            raise ConfigurationError(f"storage needs a backend and a model, got {self.backend!r} and {self.model!r}")
        cap: object = self.timeout_cap_s
        if isinstance(cap, bool) or not isinstance(cap, int | float) or not 0 <= cap < math.inf:
            raise ConfigurationError(f"storage.timeout_cap_s must be a number of seconds, 0 or more, got {cap!r}")
        if not _is_positive(self.limit_tokens):
            raise ConfigurationError(f"storage.limit_tokens must be positive, got {self.limit_tokens!r}")
        if self.executor is ExecutorKind.STREAMS:
            raise ConfigurationError("storage.executor is stepped or threaded: no storage is asked on a CUDA stream")

    @property
    def name(self) -> str:
        """A short name for tables and test ids, such as `memory-wait_complete-stepped`."""
        backend = self.backend.rpartition(":")[2]
        return f"{backend}-{self.stop_policy.value}-{self.executor.value}"


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """One way to open a cache.

    `capacity_tokens`: per component, on the device; a multiple of `page_size` (for MAMBA: states, any number).
    `sliding_window_size`: tokens; needed with SWA. `mamba_chunk_size`: tokens between the states that a model can
    give; needed with MAMBA. `bigram`: keys are pairs of neighbouring tokens (EAGLE). `events`: keep an event log.
    Raises ConfigurationError, naming the field and its value, for a combination that cannot be served.
    """

    components: tuple[str, ...]
    sidecars: tuple[str, ...]
    page_size: int
    capacity_tokens: Mapping[str, int]
    sliding_window_size: int | None
    mamba_chunk_size: int | None
    policy: EvictionPolicy
    bigram: bool
    events: bool
    layout: Layout
    device: str
    model: ModelShape
    topology: Topology
    host: HostConfig | None
    storage: StorageConfig | None

    def __post_init__(self) -> None:
        if self.storage is not None and self.host is None:
            raise ConfigurationError("storage needs a host tier: its pages come and go through host memory")
        self._check_components()
        self._check_sizes("capacity_tokens", self.capacity_tokens)
        if self.host is not None:
            self._check_sizes("host.capacity_tokens", self.host.capacity_tokens)

    def _check_components(self) -> None:
        if len(set(self.components)) != len(self.components):
            raise ConfigurationError(f"components {self.components} names one twice")
        if Component.FULL not in self.components:
            raise ConfigurationError(f"components {self.components} lacks 'full': the tree's slots are FULL's slots")
        if Component.SWA in self.components and not _is_positive(self.sliding_window_size):
            raise ConfigurationError(f"'swa' needs a positive sliding_window_size, got {self.sliding_window_size!r}")
        if Component.MAMBA in self.components and not _is_positive(self.mamba_chunk_size):
            raise ConfigurationError(f"'mamba' needs a positive mamba_chunk_size, got {self.mamba_chunk_size!r}")
        for sidecar in self.sidecars:
            if sidecar != Pool.INDEXER:
                raise ConfigurationError(f"sidecar {sidecar!r} is unknown; known: {Pool.INDEXER.value!r}")

    def _check_sizes(self, field: str, capacity_tokens: Mapping[str, int]) -> None:
        if not _is_positive(self.page_size):
            raise ConfigurationError(f"page_size must be a positive integer, got {self.page_size!r}")
        if set(capacity_tokens) != set(self.components):
            raise ConfigurationError(
                f"{field} is given for {sorted(capacity_tokens)}, components are {sorted(self.components)}"
            )
        for component, tokens in capacity_tokens.items():
            unit = 1 if component == Component.MAMBA else self.page_size
            if not _is_positive(tokens) or tokens % unit:
                raise ConfigurationError(f"{field}[{component!r}]={tokens!r} is no positive multiple of {unit}")

    @property
    def name(self) -> str:
        """A short name for tables and test ids, such as `full+swa/page16/lru`."""
        below = [tier.name for tier in (self.host, self.storage) if tier is not None]
        extras = [self.policy.value, *(("bigram",) if self.bigram else ()), *below]
        return f"{'+'.join([*self.components, *self.sidecars])}/page{self.page_size}/{'/'.join(extras)}"


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
