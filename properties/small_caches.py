"""Small caches: drawn and fixed configurations with pools of a few pages that soon run out, and drawn prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum

from hypothesis import strategies as st

from hicache.config import (
    SINGLE_RANK,
    CacheConfig,
    EvictionPolicy,
    ExecutorKind,
    HostConfig,
    Layout,
    Recency,
    StorageConfig,
    WritePolicy,
)
from hicache.errors import ConfigurationError
from hicache.testing.adapter import Capability
from hicache.testing.geometry import GeometricConfig
from hicache.testing.hybrid_model import GROUPS, TINY_MODEL, tiny_model
from hicache.testing.storage.scripted import BACKEND
from hicache.types import SHARED, Component, Namespace, StopPolicy

NAMESPACE = st.sampled_from([SHARED, Namespace(lora="a", salt=None, tenant=None), Namespace(None, "a", None)])


class Drawn:
    """A drawn configuration, which a failure shows without its model and the fields that have their defaults."""

    def __init__(self, config: CacheConfig) -> None:
        self.config = config

    def __repr__(self) -> str:
        return _described(self.config)


@st.composite
def drawn(draw: st.DrawFn, configs: st.SearchStrategy[CacheConfig]) -> Drawn:
    """One of these configurations."""
    return Drawn(draw(configs))


def _described(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value)
    defaults = {
        one.name: one.default_factory() if callable(one.default_factory) else one.default for one in fields(value)
    }
    shown = {name: getattr(value, name) for name in defaults if name != "model"}
    given = [f"{name}={_described(own)}" for name, own in shown.items() if own != defaults[name]]
    return f"{type(value).__name__}({', '.join(given)})"


@st.composite
def configurations(
    draw: st.DrawFn, components: Sequence[str], sidecars: Sequence[str], capabilities: frozenset[Capability]
) -> CacheConfig:
    """A configuration with these components, within the capabilities of an adapter."""
    page_size = draw(st.sampled_from([1, 2, 3] if Capability.PAGED in capabilities else [1]))
    group_tokens = page_size * (draw(st.integers(2, 3), label="group") if GROUPS in sidecars else 1)
    pages = {component: draw(st.integers(2, 8), label=f"{component} pages") for component in components}
    policies = list(EvictionPolicy) if Capability.POLICIES in capabilities else [EvictionPolicy.LRU]
    return CacheConfig(
        components=tuple(components),
        page_size=page_size,
        capacity_tokens={c: n if c == Component.MAMBA else n * page_size for c, n in pages.items()},
        sliding_window_size=draw(st.integers(1, 3 * page_size), label="window")
        if Component.SWA in components
        else None,
        mamba_chunk_size=page_size * draw(st.integers(1, 2)) if Component.MAMBA in components else None,
        policy=draw(st.sampled_from(policies)),
        bigram=Capability.BIGRAM in capabilities and draw(st.booleans(), label="bigram"),
        events=Capability.EVENTS in capabilities,
        layout=draw(st.sampled_from(Layout)),
        device="cpu",
        model=tiny_model(tuple(sidecars), group_tokens),
        topology=SINGLE_RANK,
        recency=draw(st.sampled_from(Recency)) if Component.MAMBA in components else Recency.USED,
        mamba_max_states_per_path=draw(st.sampled_from([None, None, 1, 2])) if Component.MAMBA in components else None,
    )


def geometric(
    configs: Iterable[CacheConfig], components: Sequence[str], sidecars: Sequence[str]
) -> list[GeometricConfig]:
    """The configurations with a geometry of their own that have exactly these components."""
    wanted = (tuple(components), tuple(sidecars))
    return [one for one in configs if isinstance(one, GeometricConfig) and (one.components, one.sidecars) == wanted]


@st.composite
def small_geometries(draw: st.DrawFn, configs: Sequence[GeometricConfig]) -> GeometricConfig:
    """One of these configurations, with pools that have room for prompts of 1 to 6 pages.

    Raises ConfigurationError if there is none.
    """
    if not configs:
        raise ConfigurationError("it lists no such geometry")
    config = draw(st.sampled_from(configs))
    needed = config.geometry.blocks_of(draw(st.integers(1, 6), label="pages") * config.page_size + 1)
    least = sum(needed.values()) if config.geometry.shared_pool else max(needed.values())
    small = config.with_blocks(least + draw(st.integers(0, 4), label="more blocks"))
    if small.host is None:
        return small
    chunks = draw(st.integers(1, 6), label="chunks on the host")
    return replace(small, host=replace(small.host, capacity_tokens={Component.FULL.value: chunks * config.page_size}))


def steps_transfers(config: CacheConfig) -> bool:
    """Whether a test decides when the transfers of a configuration end."""
    return config.host is not None and config.host.executor is ExecutorKind.STEPPED


@st.composite
def with_hosts(draw: st.DrawFn, devices: st.SearchStrategy[CacheConfig], executor: ExecutorKind) -> CacheConfig:
    """One of these configurations with a host tier."""
    config = draw(devices)
    page = config.page_size
    pages = {component: draw(st.integers(1, 12), label=f"{component} host pages") for component in config.components}
    host = HostConfig(
        capacity_tokens={c: n if c == Component.MAMBA else n * page for c, n in pages.items()},
        layout=draw(st.sampled_from(Layout)),
        write_policy=draw(st.sampled_from(WritePolicy)),
        selective_hits=draw(st.integers(1, 2)),
        load_back_threshold_tokens=draw(st.sampled_from([0, 0, 0, 2 * page])),
        executor=executor,
    )
    return replace(config, host=host, device="cuda" if executor is ExecutorKind.STREAMS else config.device)


@st.composite
def with_storage(draw: st.DrawFn, hosts: st.SearchStrategy[CacheConfig], executor: ExecutorKind) -> CacheConfig:
    """One of these configurations with a storage tier, in a scripted store with a fixed name."""
    config = draw(hosts)
    page = config.page_size
    assert config.host is not None, "a storage tier needs a host tier"
    # A node that does not fit on the host is never stored.
    least = {component: 3 * (1 if component == Component.MAMBA else page) for component in config.components}
    capacity = {component: max(size, least[component]) for component, size in config.host.capacity_tokens.items()}
    storage = StorageConfig(
        backend=BACKEND,
        options={"store": "properties"},
        prefetch_threshold=draw(st.sampled_from([0, 0, 0, 2 * page])),
        prefetch_timeout_base=1.0,
        prefetch_timeout_per_ki_token=0.0,
        hicache_storage_pass_prefix_keys=draw(st.booleans()),
        model="tiny",
        stop_policy=draw(st.sampled_from(StopPolicy)),
        timeout_cap_s=10.0,
        limit_tokens=draw(st.sampled_from([12, 12, 3])) * page,
        executor=executor,
    )
    return replace(config, host=replace(config.host, capacity_tokens=capacity), storage=storage)


def fixed_config(
    device: Mapping[str, int], host: Mapping[str, int], write_policy: WritePolicy, *, events: bool
) -> CacheConfig:
    """A fixed configuration of two tiers: pages of one token, a window of one page, stepped transfers.

    `device`, `host`: the pages of each component's pool.
    """
    return CacheConfig(
        components=tuple(device),
        page_size=1,
        capacity_tokens=device,
        sliding_window_size=1 if Component.SWA in device else None,
        mamba_chunk_size=1 if Component.MAMBA in device else None,
        policy=EvictionPolicy.LRU,
        bigram=False,
        events=events,
        layout=Layout.LAYER_FIRST,
        device="cpu",
        model=TINY_MODEL,
        topology=SINGLE_RANK,
        host=HostConfig(
            capacity_tokens=host,
            layout=Layout.LAYER_FIRST,
            write_policy=write_policy,
            selective_hits=1,
            load_back_threshold_tokens=0,
            executor=ExecutorKind.STEPPED,
        ),
    )


PAGES = st.lists(st.integers(1, 3), max_size=6)
"""The whole pages of a prompt by number. With three page numbers both shared and diverging prefixes are likely."""

TAIL = st.integers(0, 2)
"""Tokens after the last whole page."""

USED = st.lists(st.tuples(PAGES.filter(len), NAMESPACE), min_size=1, max_size=3)
"""Prompts that are inserted first: a run that starts with an empty cache seldom reaches the interesting states."""

PRIORITY = st.integers(0, 2)
"""Of an insert. Only the policy of that name looks at it."""
