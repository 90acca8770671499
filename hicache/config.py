"""What a cache is opened with: CacheConfig, HostConfig, StorageConfig, ModelShape, Topology; and how files say it."""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any

from hicache.errors import ConfigurationError
from hicache.keys import page_bytes
from hicache.types import Component, Pool, StopPolicy

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class EvictionPolicy(str, Enum):
    """The order in which leaves are evicted from the device."""

    LRU = "lru"
    LFU = "lfu"
    FIFO = "fifo"
    FILO = "filo"
    MRU = "mru"
    PRIORITY = "priority"
    SLRU = "slru"


class Recency(str, Enum):
    """Which states of MAMBA a use of a prefix refreshes, and so which of them are evicted first.

    `PATH`: all on the path that was used. `USED`: the state that the request reads alone (sglang#31648). `COVERAGE`: as
    `USED`, and of the path of the least recent state the one is evicted that costs least to compute again
    (sglang#38000): the state after which another one follows soonest.
    """

    PATH = "path"
    USED = "used"
    COVERAGE = "coverage"


class Layout(str, Enum):
    """The order of a pool's tensor in memory.

    Layer first: [layers, slots, item]. Page first: [slots, layers, item]. Page first direct: [pages, layers, page
    size, item], so that one page of one layer is one run.
    """

    LAYER_FIRST = "layer_first"
    PAGE_FIRST = "page_first"
    PAGE_FIRST_DIRECT = "page_first_direct"


class WritePolicy(str, Enum):
    """When a node is copied to the host: at its first use, at its second, or when it is evicted from the device."""

    WRITE_THROUGH = "write_through"
    WRITE_THROUGH_SELECTIVE = "write_through_selective"
    WRITE_BACK = "write_back"


class ExecutorKind(str, Enum):
    """Who moves the bytes: a test, step by step; a thread; or CUDA streams."""

    STEPPED = "stepped"
    THREADED = "threaded"
    STREAMS = "streams"


class IoBackend(str, Enum):
    """How bytes cross between device and host.

    Kernel: one operation gathers all pages, another scatters them; on a GPU kernels read and write pinned memory.
    Direct: each run of pages is a copy of its own; on a GPU the copy engines do it, and the multiprocessors are free.
    """

    KERNEL = "kernel"
    DIRECT = "direct"

    @classmethod
    def of(cls, device: str) -> IoBackend:
        """What suits a device of torch: a kernel on a CUDA device, direct copies elsewhere."""
        return cls.KERNEL if device.startswith("cuda") else cls.DIRECT


class Follows(str, Enum):
    """Which slots a pool has entries for: each page of a prefix, the last window of it, or the state at its end."""

    EVERY_PAGE = "every_page"
    WINDOW = "window"
    LAST_STATE = "last_state"

    @property
    def component(self) -> str:
        """The component whose slots these are."""
        return _FOLLOWED[self]


_FOLLOWED = {
    Follows.EVERY_PAGE: Component.FULL.value,
    Follows.WINDOW: Component.SWA.value,
    Follows.LAST_STATE: Component.MAMBA.value,
}


def _take_choices(config: Any, prefix: str, **choices: type[Enum]) -> None:
    """Turn each field that is given by a value, such as "lru", into the choice that it names."""
    for name, kind in choices.items():
        value = getattr(config, name)
        try:
            object.__setattr__(config, name, kind(value))
        except ValueError:
            known = ", ".join(repr(choice.value) for choice in kind)
            raise ConfigurationError(f"{prefix}{name} must be one of {known}, got {value!r}") from None


def _check_types(config: Any, prefix: str, **types: type | tuple[type, None]) -> None:
    """Raise ConfigurationError unless each field is of its type. `None` beside a type: it may be None."""
    for name, kind in types.items():
        value, kinds = getattr(config, name), kind if isinstance(kind, tuple) else (kind,)
        if not (isinstance(value, kinds[0]) or (value is None and None in kinds)):
            expected = kinds[0].__name__ + (" or None" if None in kinds else "")
            raise ConfigurationError(f"{prefix}{name} must be a {expected}, got {value!r}")


def _check_counts(config: Any, prefix: str, **least: int) -> None:
    """Raise ConfigurationError unless each field is an integer, from its least value to MOST."""
    for name, first in least.items():
        value = getattr(config, name)
        # Not isinstance: a bool would pass as an integer.
        if type(value) is not int or not first <= value <= MOST:
            raise ConfigurationError(f"{prefix}{name} must be an integer from {first} to {MOST}, got {value!r}")


DTYPES = frozenset(
    {
        *("float16", "float32", "float64", "bfloat16", "half", "float", "double"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
        *("int8", "int16", "int32", "int64", "short", "int", "long", "uint8", "uint16", "uint32", "uint64", "bool"),
        *("complex32", "complex64", "complex128", "chalf", "cfloat", "cdouble"),
    }
)
"""Torch's names of the dtypes of a pool: those whose elements are whole bytes. Torch is not imported to read them."""

DEVICE_TYPES = frozenset(
    {
        *("cpu", "cuda", "hip", "xpu", "mps", "hpu", "mtia", "maia", "ipu", "xla", "ve", "fpga", "vulkan", "meta"),
        *("lazy", "privateuseone"),
    }
)
"""Torch's names of the types of devices, without those that it has no tensors on."""

_DEVICE = re.compile(r"([a-z]+)(?::(0|[1-9][0-9]{0,2}))?")
_LAST_INDEX = 127
"""Of a device: torch keeps the index in 8 bits, and takes 256 for 0."""

_POOL_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
"""A part of the keys in storage."""


def _nearest(name: str, known: Iterable[str]) -> str:
    (nearest,) = get_close_matches(name, sorted(known), n=1, cutoff=0)
    return f"the nearest is {nearest!r}"


def check_device(device: str) -> None:
    """Raise ConfigurationError unless torch knows the type of the device. Whether it is there, the opening checks."""
    found = _DEVICE.fullmatch(device)
    if found is None or found[1] not in DEVICE_TYPES or int(found[2] or 0) > _LAST_INDEX:
        raise ConfigurationError(
            f"device {device!r} is not a device of torch: a type, or a type with an index from 0 to {_LAST_INDEX}, "
            f"such as 'cuda:0'; {_nearest(device.partition(':')[0], DEVICE_TYPES)}"
        )


def _check_names(values: Iterable[Any], name: str) -> None:
    """Raise ConfigurationError for two values of one name."""
    repeated = [one for one, count in Counter(value.name for value in values).items() if count > 1]
    if repeated:
        raise ConfigurationError(f"{name} has two of the name {repeated[0]!r}")


MOST = 1 << 40
"""The largest number of tokens, layers, elements or ranks: no machine has more, and arrays can be as long."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The place of a rank among the ranks of one model, along each axis: tensor, context, pipeline, data.

    `tp_rank`, `cp_rank`, `pp_rank`, `dp_rank`: its numbers, from 0. `tp_size`, `cp_size`, `pp_size`, `dp_size`: how
    many ranks there are. Raises ConfigurationError for a rank that is not below its size.
    """

    tp_rank: int = 0
    tp_size: int = 1
    cp_rank: int = 0
    cp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    dp_rank: int = 0
    dp_size: int = 1

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if type(value) is not int or value > MOST:
                raise ConfigurationError(f"topology.{one.name} must be an integer up to {MOST}, got {value!r}")
        for axis in ("tp", "cp", "pp", "dp"):
            rank, size = getattr(self, f"{axis}_rank"), getattr(self, f"{axis}_size")
            if not 0 <= rank < size:
                raise ConfigurationError(f"{axis}_rank {rank} is not in range({axis}_size={size})")


SINGLE_RANK = Topology()


@dataclass(frozen=True, slots=True)
class BufferShape:
    """One tensor of a pool: the item of one entry in one layer.

    `name`: of the tensor in its pool. `shape`: of the item, in elements. `dtype`: torch's name of it, such as
    "bfloat16". `tp_axis`: the axis of the shape that tensor-parallel ranks divide; None when each rank has all of it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    tp_axis: int | None = None

    def __post_init__(self) -> None:
        _check_types(self, "buffer ", name=str, shape=tuple, dtype=str)
        if not self.name:
            raise ConfigurationError("buffer name must be a text of one character or more, got ''")
        if not self.shape or any(type(size) is not int or not 1 <= size <= MOST for size in self.shape):
            raise ConfigurationError(
                f"buffer {self.name!r}: shape must be one integer or more, each from 1 to {MOST}, got {self.shape!r}"
            )
        if self.dtype not in DTYPES:
            raise ConfigurationError(
                f"buffer {self.name!r}: dtype {self.dtype!r} is not a dtype of torch with elements of whole bytes; "
                f"{_nearest(self.dtype, DTYPES)}"
            )
        axis: object = self.tp_axis
        if axis is not None and (type(axis) is not int or not 0 <= axis < len(self.shape)):
            raise ConfigurationError(
                f"buffer {self.name!r}: tp_axis must be None or an axis of {self.shape}, from 0, got {axis!r}"
            )


@dataclass(frozen=True, slots=True)
class PoolShape:
    """One pool of a model.

    `name`: of the pool. `follows`: the slots that it has entries for. `buffers`: its tensors. `layers`: of the whole
    model, before the pipeline divides them; 0 only for "kv", where other pools have layers. `tokens_per_entry`: it has
    one entry for so many tokens. Either the page size is a multiple of it, or it is a multiple of the page size: then
    whole pages form a group, and the group's entry is in the row of its last page.
    """

    name: str
    follows: Follows
    layers: int
    buffers: tuple[BufferShape, ...]
    tokens_per_entry: int = 1

    def __post_init__(self) -> None:
        _check_types(self, "pool ", name=str, buffers=tuple)
        if not _POOL_NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"pool name must be up to 100 letters, digits and ._-, the first of them not a dot, got {self.name!r}"
            )
        pool = f"pool {self.name!r}: "
        _take_choices(self, pool, follows=Follows)
        _require_each(self.buffers, BufferShape, f"{pool}buffers")
        _check_names(self.buffers, f"{pool}buffers")
        # "kv" numbers the slots of FULL, also where all layers of the model are those of other pools.
        _check_counts(self, pool, layers=0 if self.name == Pool.KV else 1, tokens_per_entry=1)
        if not self.buffers:
            raise ConfigurationError(f"{pool}buffers must have one or more, got ()")
        if self.tokens_per_entry != 1 and self.follows is not Follows.EVERY_PAGE:
            raise ConfigurationError(
                f"{pool}tokens_per_entry={self.tokens_per_entry} is possible for pools that follow every page alone"
            )

    def pages_per_entry(self, page_size: int) -> int:
        """How many pages of a prefix share an entry, counted from its start. The last of them has it in its row."""
        return max(1, self.tokens_per_entry // page_size)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a model keeps for each prefix, as a list of pools.

    `pools`: the first is "kv" and follows every page. Other pools that follow every page are sidecars: they live in the
    slots of "kv". `is_mla`: all ranks of a tensor-parallel group have the same KV, undivided, and one of them stores
    it.
    """

    pools: tuple[PoolShape, ...]
    is_mla: bool = False

    def __post_init__(self) -> None:
        _check_types(self, "model.", pools=tuple, is_mla=bool)
        _require_each(self.pools, PoolShape, "model.pools")
        _check_names(self.pools, "model.pools")
        first = self.pools[0] if self.pools else None
        if first is None or (first.name, first.follows, first.tokens_per_entry) != (Pool.KV, Follows.EVERY_PAGE, 1):
            raise ConfigurationError(
                f"model.pools: the first pool of a model is 'kv' and follows every page, got {first}"
            )
        if not any(pool.layers for pool in self.pools):
            raise ConfigurationError(f"model.pools: layers is 0 in all of {[pool.name for pool in self.pools]}")

    @classmethod
    def hybrid(  # noqa: PLR0913 - a model has so many sizes
        cls,
        *,
        full_layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: str,
        swa_layers: int = 0,
        mamba_layers: int = 0,
        conv_elements: int = 0,
        state_elements: int = 0,
        index_dim: int = 0,
        is_mla: bool = False,
    ) -> ModelShape:
        """The pools of a model by its layers: "kv", and "swa", "mamba" and "indexer" where it has such layers.

        `full_layers`, `swa_layers`, `mamba_layers`: of each kind in the whole model. `kv_heads`, `head_dim`, `dtype`:
        of keys and values, over all tensor-parallel ranks. `conv_elements`, `state_elements`: of one Mamba state in one
        layer. `index_dim`: elements of one index entry, in each full-attention layer. `is_mla`: as in ModelShape.
        """
        # Keys and values lie side by side, so that a page of a layer is one run: half as many pieces to copy.
        kv = (BufferShape("kv", (2, kv_heads, head_dim), dtype, None if is_mla else 1),)
        pools = [PoolShape(Pool.KV.value, Follows.EVERY_PAGE, full_layers, kv)]
        if swa_layers:
            pools.append(PoolShape(Pool.SWA.value, Follows.WINDOW, swa_layers, kv))
        if mamba_layers:
            # The temporal state is float32 for every dtype of the model: it accumulates over the whole prompt.
            state = (
                BufferShape("conv", (conv_elements,), dtype, 0),
                BufferShape("temporal", (state_elements,), "float32", 0),
            )
            pools.append(PoolShape(Pool.MAMBA.value, Follows.LAST_STATE, mamba_layers, state))
        if index_dim:
            index = (BufferShape("index", (index_dim,), dtype),)
            pools.append(PoolShape(Pool.INDEXER.value, Follows.EVERY_PAGE, full_layers, index))
        return cls(tuple(pools), is_mla)

    @property
    def sidecars(self) -> tuple[str, ...]:
        """The pools that live in the slots of "kv"."""
        return tuple(pool.name for pool in self.pools[1:] if pool.follows is Follows.EVERY_PAGE)


@dataclass(frozen=True, slots=True)
class HostConfig:
    """The host tier of a cache.

    `capacity_tokens`: by component, as in CacheConfig. `layout`: of the host pools. `write_policy`: when nodes are
    copied to the host. `executor`: streams on a CUDA device, elsewhere threaded, or stepped in tests. `selective_hits`:
    from how many hits on write_through_selective backs a node up; the second request for a prompt is the first hit.
    `load_back_threshold_tokens`: a load-back of fewer FULL tokens is not started; one of other components alone is.
    `io_backend`: None for `kernel` on a CUDA device and `direct` on the CPU.
    """

    capacity_tokens: Mapping[str, int]
    layout: Layout = Layout.PAGE_FIRST_DIRECT
    write_policy: WritePolicy = WritePolicy.WRITE_THROUGH
    selective_hits: int = 1
    load_back_threshold_tokens: int = 10
    executor: ExecutorKind = ExecutorKind.THREADED
    io_backend: IoBackend | None = None

    def __post_init__(self) -> None:
        _take_choices(self, "host.", layout=Layout, write_policy=WritePolicy, executor=ExecutorKind)
        if self.io_backend is not None:
            _take_choices(self, "host.", io_backend=IoBackend)
        for name, least in (("selective_hits", 1), ("load_back_threshold_tokens", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigurationError(f"host.{name} must be {least} or more, got {value!r}")

    @property
    def name(self) -> str:
        """A short name for tables and test ids, such as `write_back-page_first-stepped`."""
        crossing = "" if self.io_backend is None else f"-{self.io_backend.value}"
        return f"{self.write_policy.value}-{self.layout.value}-{self.executor.value}{crossing}"


@dataclass(frozen=True, slots=True)
class ExtraConfig:
    """What SGLang's extra configuration says: the cache's own keys by their names there, and the backend's options.

    `prefetch_threshold`: FULL tokens below which nothing is prefetched. `prefetch_timeout_base`,
    `prefetch_timeout_per_ki_token`: seconds, and seconds for each 1,024 tokens, with the stop policy `timeout`.
    `hicache_storage_pass_prefix_keys`: give the backend the keys of the pages before. `options`: of the backend: all
    other keys. Raises ConfigurationError, naming the key, its value and its type, for a value of another kind.
    """

    prefetch_threshold: int = 256
    prefetch_timeout_base: float = 1.0
    prefetch_timeout_per_ki_token: float = 0.25
    hicache_storage_pass_prefix_keys: bool = False
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._check("prefetch_threshold", "an integer, 0 or above", (int,))
        self._check("prefetch_timeout_base", "a finite number, 0 or above", (int, float))
        self._check("prefetch_timeout_per_ki_token", "a finite number, 0 or above", (int, float))
        self._check("hicache_storage_pass_prefix_keys", "true or false", (bool,))
        for key in self.options:
            if not isinstance(key, str):
                raise ConfigurationError(f"the key {key!r} is of type {type(key).__name__}, not a string")
            if key in OWN_KEYS:
                raise ConfigurationError(f"{key} is the cache's own key, not an option of the backend")

    def _check(self, key: str, kind: str, types: tuple[type, ...]) -> None:
        value = getattr(self, key)
        # Not isinstance: a bool would pass as an integer. NaN is not below anything.
        if type(value) not in types or not 0 <= value <= sys.float_info.max:
            raise ConfigurationError(f"{key} is {value!r} ({type(value).__name__}), not {kind}")


OWN_KEYS = tuple(one.name for one in fields(ExtraConfig) if one.name != "options")
"""The keys that the cache reads itself. Any other key is an option of the backend, `options` too."""


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """The storage tier of a cache, below its host tier.

    `backend`: a registered name, an entry point or `module:Class`. `model`: the name of the model, such as "org/name".
    `model_fingerprint`: what identifies its weights and its configuration, as `hicache.fingerprint_of_model` gives it;
    without it, models of one name and shape share their pages, which is logged once. Both are part of every key.
    `extra_config`: what `read_extra_config` reads, as SGLang's option of this name. Its keys are those of this class,
    all others are options of the backend; once they are taken it is None. `options`: of the backend; `repr` leaves them
    out, because some are secret. `prefetch_threshold`, `prefetch_timeout_base`, `prefetch_timeout_per_ki_token`,
    `hicache_storage_pass_prefix_keys`: the keys of ExtraConfig. `stop_policy`: how long a request waits for its
    prefetch. `timeout_cap_s`: the longest wait for a prefetch with the stop policy `timeout`. `limit_tokens`: FULL
    tokens that prefetches may bring at a time. `answer_timeout_s`: how long one call of the backend may take before the
    cache goes on without the backend; with several ranks less than the deadline of a collective. `executor`: stepped or
    threaded.
    """

    backend: str
    model: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    prefetch_threshold: int = 256
    prefetch_timeout_base: float = 1.0
    prefetch_timeout_per_ki_token: float = 0.25
    hicache_storage_pass_prefix_keys: bool = False
    stop_policy: StopPolicy = StopPolicy.BEST_EFFORT
    timeout_cap_s: float = 30.0
    limit_tokens: int = 1 << 20
    answer_timeout_s: float = 30.0
    executor: ExecutorKind = ExecutorKind.THREADED
    model_fingerprint: str | None = None
    extra_config: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check_types(self, "storage.", backend=str, model=str, model_fingerprint=(str, None))
        if self.model_fingerprint == "":
            raise ConfigurationError(
                "storage.model_fingerprint must be None or a text of one character or more, got ''"
            )
        if not isinstance(self.options, Mapping):
            raise ConfigurationError(f"storage.options must be a Mapping, got a {type(self.options).__name__}")
        _ = self.extra  # checks the keys of ExtraConfig
        self._take_extra(self.extra_config)
        _take_choices(self, "storage.", stop_policy=StopPolicy, executor=ExecutorKind)
        if not self.backend or not self.model:
            raise ConfigurationError(f"storage needs a backend and a model, got {self.backend!r} and {self.model!r}")
        cap: object = self.timeout_cap_s
        if isinstance(cap, bool) or not isinstance(cap, int | float) or not 0 <= cap < math.inf:
            raise ConfigurationError(f"storage.timeout_cap_s must be a number of seconds, 0 or more, got {cap!r}")
        limit: object = self.answer_timeout_s
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit < math.inf:
            raise ConfigurationError(f"storage.answer_timeout_s must be a number of seconds above 0, got {limit!r}")
        if not _is_positive(self.limit_tokens):
            raise ConfigurationError(f"storage.limit_tokens must be positive, got {self.limit_tokens!r}")
        if self.executor is ExecutorKind.STREAMS:
            raise ConfigurationError("storage.executor is stepped or threaded: storage is not read on a CUDA stream")

    def _take_extra(self, source: object) -> None:
        """Take the keys and the options of an extra configuration. Refuses what is given twice, and differs."""
        if source is None:
            return
        if not isinstance(source, str):
            # A table may have a secret in it.
            raise ConfigurationError(f"storage.extra_config must be a str or None, got a {type(source).__name__}")
        try:
            extra, by_default = read_extra_config(source), ExtraConfig()
        except ConfigurationError as error:
            raise ConfigurationError(f"storage.extra_config: {error}") from error
        twice = [name for name in extra.options if name in self.options]
        if twice:
            # The values may be secret.
            raise ConfigurationError(f"storage.extra_config and storage.options both have {twice[0]!r}")
        for name in OWN_KEYS:
            own, found, default = getattr(self, name), getattr(extra, name), getattr(by_default, name)
            if own not in (found, default) and found != default:
                raise ConfigurationError(f"storage.extra_config and storage both have {name}: {found!r} and {own!r}")
            object.__setattr__(self, name, found if own == default else own)
        object.__setattr__(self, "options", {**self.options, **extra.options})
        object.__setattr__(self, "extra_config", None)

    @property
    def extra(self) -> ExtraConfig:
        """What SGLang's extra configuration would say."""
        return ExtraConfig(**{one.name: getattr(self, one.name) for one in fields(ExtraConfig)})

    @property
    def name(self) -> str:
        """A short name for tables and test ids, such as `memory-wait_complete-stepped`."""
        backend = self.backend.rpartition(":")[2]
        return f"{backend}-{self.stop_policy.value}-{self.executor.value}"


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """How to open a cache.

    `capacity_tokens`: by component, on the device; a multiple of `page_size` (for MAMBA: states, any number).
    `components`: "full", with "swa" and "mamba" in any combination. `sliding_window_size`: tokens; needed with SWA.
    `mamba_chunk_size`: tokens between the states that a model can give; needed with MAMBA. `policy`: the order of
    eviction on the device. `bigram`: keys are pairs of neighbouring tokens (EAGLE). `events`: keep an event log.
    `model`: the pools whose bytes the cache keeps; without one it manages slots and has no tensors. `device`, `layout`:
    of those pools. `topology`: this rank's place. `host`, `storage`: the tiers below. `recency`: which states of
    MAMBA a use refreshes. `mamba_checkpoint_interval`: a request keeps a state every so many tokens, or None for those
    at its end and where prompts part. `mamba_max_states_per_path`: how many states a path keeps, or None for all.
    Raises ConfigurationError, naming the field and its value, for a combination that cannot be served.
    """

    capacity_tokens: Mapping[str, int]
    page_size: int = 1
    components: tuple[str, ...] = (Component.FULL.value,)
    sliding_window_size: int | None = None
    mamba_chunk_size: int | None = None
    policy: EvictionPolicy = EvictionPolicy.LRU
    bigram: bool = False
    events: bool = False
    model: ModelShape | None = None
    device: str = "cpu"
    layout: Layout = Layout.LAYER_FIRST
    topology: Topology = SINGLE_RANK
    host: HostConfig | None = None
    storage: StorageConfig | None = None
    recency: Recency = Recency.USED
    mamba_checkpoint_interval: int | None = None
    mamba_max_states_per_path: int | None = None

    def __post_init__(self) -> None:
        _take_choices(self, "", policy=EvictionPolicy, layout=Layout, recency=Recency)
        _check_types(self, "", components=tuple, bigram=bool, events=bool, device=str, topology=Topology)
        _check_types(self, "", model=(ModelShape, None), host=(HostConfig, None), storage=(StorageConfig, None))
        check_device(self.device)
        if self.storage is not None and self.host is None:
            raise ConfigurationError("storage needs a host tier: its pages come and go through host memory")
        if self.storage is not None and self.model is None:
            raise ConfigurationError("storage needs a model: without one pages have no bytes to store")
        # Copies by a thread would not be ordered with the kernels of the model.
        if self.host is not None and (self.host.executor is ExecutorKind.STREAMS) != self.device.startswith("cuda"):
            raise ConfigurationError(
                f"host.executor is streams on a CUDA device, and nowhere else: "
                f"got {self.host.executor.value!r} on {self.device!r}"
            )
        self._check_io_backend()
        self._check_components()
        _check_counts(self, "", page_size=1)
        states = ("mamba_checkpoint_interval", "mamba_max_states_per_path")
        for name in ("sliding_window_size", "mamba_chunk_size", *states):
            if getattr(self, name) is not None:
                _check_counts(self, "", **{name: 1})
                if name in states and Component.MAMBA not in self.components:
                    raise ConfigurationError(f"{name} is {getattr(self, name)}, but components has no 'mamba'")
        if (self.mamba_checkpoint_interval or 0) % self.mamba_state_unit:
            raise ConfigurationError(
                f"mamba_checkpoint_interval must be a multiple of page_size and of mamba_chunk_size, so of "
                f"{self.mamba_state_unit}, got {self.mamba_checkpoint_interval}"
            )
        self._check_sizes("capacity_tokens", self.capacity_tokens)
        if self.host is not None:
            self._check_sizes("host.capacity_tokens", self.host.capacity_tokens)
        if self.model is not None:
            self._check_model(self.model)

    @property
    def mamba_state_unit(self) -> int:
        """Tokens: a state that a model gives at a chunk's end is kept at a page's end."""
        return math.lcm(self.page_size, self.mamba_chunk_size or 1)

    def _check_io_backend(self) -> None:
        """A GPU copies runs of memory. With page first a page has one for each slot in each layer."""
        layouts = [] if self.host is None else [self.layout, self.host.layout]
        if self.device.startswith("cuda") and self.io_backend is IoBackend.DIRECT and Layout.PAGE_FIRST in layouts:
            raise ConfigurationError(
                f"host.io_backend 'direct' on {self.device!r} needs pages that are one run in each layer, got layout="
                f"{self.layout.value!r} and host.layout={layouts[1].value!r}: take 'layer_first' or "
                "'page_first_direct', or host.io_backend 'kernel'"
            )

    def _check_components(self) -> None:
        if len(set(self.components)) != len(self.components):
            raise ConfigurationError(f"components {self.components} names one twice")
        if Component.FULL not in self.components:
            raise ConfigurationError(f"components {self.components} lacks 'full': the tree's slots are FULL's slots")
        if Component.SWA in self.components and not _is_positive(self.sliding_window_size):
            raise ConfigurationError(f"'swa' needs a positive sliding_window_size, got {self.sliding_window_size!r}")
        if Component.MAMBA in self.components and not _is_positive(self.mamba_chunk_size):
            raise ConfigurationError(f"'mamba' needs a positive mamba_chunk_size, got {self.mamba_chunk_size!r}")

    def _check_sizes(self, name: str, capacity_tokens: object) -> None:
        if not isinstance(capacity_tokens, Mapping):
            raise ConfigurationError(f"{name} is a table of tokens by component, got {capacity_tokens!r}")
        if set(capacity_tokens) != set(self.components):
            raise ConfigurationError(
                f"{name} is given for {sorted(capacity_tokens)}, components are {sorted(self.components)}"
            )
        for component, tokens in capacity_tokens.items():
            unit = 1 if component == Component.MAMBA else self.page_size
            if not _is_positive(tokens) or tokens % unit or tokens > MOST:
                bound = f" up to {MOST}" if _is_positive(tokens) and tokens > MOST else ""
                raise ConfigurationError(
                    f"{name}[{component!r}]={tokens!r} is not a positive multiple of {unit}{bound}"
                )

    def _check_model(self, model: ModelShape) -> None:
        followed = {pool.follows.component for pool in model.pools}
        for component in (Component.SWA.value, Component.MAMBA.value):
            if component in self.components and component not in followed:
                raise ConfigurationError(f"components has {component!r}, but no pool of the model follows it")
        for pool in model.pools:
            if self.page_size % pool.tokens_per_entry and pool.tokens_per_entry % self.page_size:
                raise ConfigurationError(
                    f"page_size={self.page_size} is not a multiple of tokens_per_entry={pool.tokens_per_entry} "
                    f"of pool {pool.name!r}, nor a divisor of it"
                )

    def require_divisible(self) -> None:
        """Raise ConfigurationError if tensor-parallel ranks cannot divide the pools of these components.

        A configuration can also describe the share of one rank, which is not divided again, so only those who divide
        the pools ask for it.
        """
        size = self.topology.tp_size
        of_model = () if self.model is None else self.model.pools
        for pool in (pool for pool in of_model if pool.follows.component in self.components):
            for buffer in pool.buffers:
                if buffer.tp_axis is not None and buffer.shape[buffer.tp_axis] % size:
                    raise ConfigurationError(
                        f"axis {buffer.tp_axis} of {pool.name}.{buffer.name} {buffer.shape} cannot be divided over "
                        f"tp_size={size}"
                    )

    @property
    def io_backend(self) -> IoBackend:
        """How bytes cross between device and host, as configured or as suits the device."""
        configured = None if self.host is None else self.host.io_backend
        return configured or IoBackend.of(self.device)

    @property
    def sidecars(self) -> tuple[str, ...]:
        """The model's pools that live in the slots of "kv"."""
        return () if self.model is None else self.model.sidecars

    @property
    def key_bytes_per_page(self) -> int:
        """Bytes of one page in a key."""
        return page_bytes(self.page_size, self.bigram)

    @property
    def name(self) -> str:
        """A short name for tables and test ids, such as `full+swa/page16/lru`."""
        below = [tier.name for tier in (self.host, self.storage) if tier is not None]
        extras = [self.policy.value, *(("bigram",) if self.bigram else ()), *below]
        return f"{'+'.join([*self.components, *self.sidecars])}/page{self.page_size}/{'/'.join(extras)}"


def _require_each(values: tuple[object, ...], kind: type, name: str) -> None:
    wrong = [value for value in values if not isinstance(value, kind)]
    if wrong:
        raise ConfigurationError(f"{name} has {kind.__name__}s alone, got {wrong[0]!r}")


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def read_extra_config(source: str | None) -> ExtraConfig:
    """Read a JSON string, or `@path` of a .json, .toml, .yaml or .yml file. Keys that are missing have their default.

    None and an empty string have no keys, as an option of SGLang that is not given.

    Raises ConfigurationError naming the file, or "inline JSON", and the key with its value and its type.
    """
    if source is None or source == "":
        return ExtraConfig()
    table = read_table(source)
    own = {key: table.pop(key) for key in OWN_KEYS if key in table}
    try:
        return replace(ExtraConfig(), **own, options=table)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name_of_source(source)}: {error}") from error


ENDINGS = (".json", ".toml", ".yaml", ".yml")
"""Of files, by which their format is known, in small letters or capitals."""


def read_table(source: str | Path) -> dict[str, Any]:
    """Read a JSON string, or a file of JSON, TOML or YAML by its ending: a Path, or `@` and a path.

    Raises ConfigurationError naming the file when it is missing, malformed, of another kind, no table, or has the same
    key twice.
    """
    if not isinstance(source, str | Path):
        raise ConfigurationError(f"a configuration is read from a str, a Path or a mapping, got {source!r}")
    name, is_file = name_of_source(source), isinstance(source, Path) or source.startswith("@")
    try:
        table = _parse(Path(name)) if is_file else _parse_inline(str(source))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{name}: {error}") from error
    if not isinstance(table, dict):
        raise ConfigurationError(f"{name}: the top level is a {type(table).__name__}, not a table")
    return table


def name_of_source(source: str | Path) -> str:
    """What an error calls a source: its path, or "inline JSON"."""
    if isinstance(source, Path):
        return str(source)
    if source.startswith("@"):
        return source[1:]
    return source if source.lower().endswith(ENDINGS) else "inline JSON"


def _parse_inline(text: str) -> Any:
    """A JSON string. Raises ValueError with the right form for what looks like a path."""
    if text.lower().endswith(ENDINGS):
        found = "a file" if Path(text).exists() else "no such file; a file"
        raise ValueError(f"{found} is given as '@{text}' or as a pathlib.Path, a str without '@' is JSON")
    try:
        return _parse_json(text)
    except ValueError as error:
        if text.lstrip().startswith(("{", "[")):
            raise
        raise ValueError(f"{error}; a file is given as '@PATH' or as a pathlib.Path") from error


def _parse(path: Path) -> Any:
    text, ending = path.read_text(encoding="utf-8"), path.suffix.lower()
    if ending == ".json":
        return _parse_json(text)
    if ending == ".toml":
        return tomllib.loads(text)
    if ending in (".yaml", ".yml"):
        return _parse_yaml(text)
    raise ValueError(f"cannot tell the format from the ending {path.suffix!r}; known: {' '.join(ENDINGS)}")


def _parse_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_table_of)


def _table_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _refuse_repeated(key for key, _ in pairs)
    return dict(pairs)


def _parse_yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise ValueError("YAML needs pyyaml: pip install 'hicache[yaml]'") from None

    class Loader(yaml.SafeLoader):
        def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
            node = super().compose_mapping_node(anchor)
            _refuse_repeated(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            return node

    try:
        return yaml.load(text, Loader)  # noqa: S506 - a SafeLoader that reads each key once
    except yaml.MarkedYAMLError as error:
        # The error's own text has the line of the file, which may have a secret.
        mark = error.problem_mark or error.context_mark
        place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ValueError(f"{error.problem or error.context}{place}") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _refuse_repeated(keys: Iterable[str]) -> None:
    repeated = [key for key, count in Counter(keys).items() if count > 1]
    if repeated:
        raise ValueError(f"the key {repeated[0]!r} is given twice")
