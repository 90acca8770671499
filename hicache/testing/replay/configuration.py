"""The settings of a replay, and the cache that it opens: the given capacity, and a model of a few bytes per token."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from hicache.config import (
    SINGLE_RANK,
    CacheConfig,
    EvictionPolicy,
    ExecutorKind,
    HostConfig,
    Layout,
    ModelShape,
    Recency,
    StorageConfig,
    WritePolicy,
    read_extra_config,
)
from hicache.errors import ConfigurationError
from hicache.storage.registry import conceal_options, refuse_inline_secrets
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.geometry import GeometricConfig
from hicache.testing.hybrid_model import reshaped
from hicache.testing.replay.limits import Survey
from hicache.testing.storage.scripted import BACKEND as SCRIPTED
from hicache.testing.storage.subject import BackendSubject
from hicache.types import Component, Pool, StopPolicy

SMALLEST_MODEL = ModelShape.hybrid(
    full_layers=1,
    swa_layers=1,
    mamba_layers=1,
    kv_heads=1,
    head_dim=1,
    conv_elements=1,
    state_elements=1,
    dtype="float32",
    is_mla=False,
)
"""Eight bytes per token and component."""

UNLIMITED = "unlimited"

FOLDER = "{directory}"
"""A placeholder in an option: an empty folder, which is removed after the replay."""

NEVER = 1.0
"""The value of `restart_at` for no restart."""

_LONGEST_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class HostSettings:
    """The host tier of a replay. `capacity`: as for the device.

    `executor`: what copies the bytes. THREADED copies while requests are served. STEPPED finishes the transfers that
    one request starts before the next but one is served, so that a replay is reproducible. STREAMS needs a GPU.
    """

    capacity: str
    write_policy: WritePolicy
    layout: Layout
    executor: ExecutorKind


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """The storage tier of a replay. Raises ConfigurationError, naming the field, for a number out of range.

    `backend`: as in StorageConfig. `extra`: an extra configuration, as JSON or as @path; without an option for the
    place of its pages, a backend of this project uses a folder that is removed afterwards. `queue_steps`: how many
    steps a request waits in the queue during its prefetch before the prefetch is checked. `restart_at`: the share of
    the requests after which the cache is closed and another one opened on the same storage; 1 for never.
    """

    backend: str
    extra: str
    stop_policy: StopPolicy
    queue_steps: int
    restart_at: float

    def __post_init__(self) -> None:
        if self.queue_steps < 0:
            raise ConfigurationError(f"queue_steps must be 0 or more, got {self.queue_steps!r}")
        if not 0 < self.restart_at <= NEVER:
            raise ConfigurationError(f"restart_at must be above 0 and at most 1, got {self.restart_at!r}")

    def middle(self, requests: int) -> int:
        """The number of requests before the restart, or in the first half when there is no restart."""
        return int(requests * self.restart_at) if self.restart_at < NEVER else requests // 2


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """The settings of a replay. Raises ConfigurationError, naming the field, for a number that is too small.

    `capacity`: tokens, a share of the trace's footprint such as "25%", or "unlimited", which is also the most: more
    than the trace and its running requests need would only take memory. `components`: components and
    sidecars. `running`: the number of requests that run at the same time. `check_every`: check the whole cache after
    every so many requests; 0 checks only at the end. `sliding_window_size`: tokens, for SWA. `host`: None for the
    device alone. `storage`: None for none; it needs a host. `recency`, `mamba_checkpoint_interval`,
    `mamba_max_states_per_path`: as in CacheConfig, for MAMBA. `mamba_capacity`: states on the device beside two for
    each running request, or a share of the requests such as "5%"; None for two for each request that `capacity` holds.
    """

    page_size: int
    capacity: str
    components: tuple[str, ...]
    policy: EvictionPolicy
    sliding_window_size: int
    running: int
    check_every: int
    host: HostSettings | None
    storage: StorageSettings | None
    recency: Recency = Recency.USED
    mamba_checkpoint_interval: int | None = None
    mamba_max_states_per_path: int | None = None
    mamba_capacity: str | None = None

    def __post_init__(self) -> None:
        for field, least in (("page_size", 1), ("sliding_window_size", 1), ("running", 1), ("check_every", 0)):
            value = getattr(self, field)
            if value < least:
                raise ConfigurationError(f"{field} must be {least} or more, got {value!r}")
        for capacity in (self.capacity, self.mamba_capacity, None if self.host is None else self.host.capacity):
            if capacity is not None:
                parsed_capacity(capacity)
        if self.storage is not None and self.host is None:
            raise ConfigurationError(f"storage {self.storage.backend!r} needs a host tier, and there is none")


def cache_config(settings: ReplaySettings, totals: Survey, directory: Path) -> CacheConfig:
    """The configuration to open. `directory`: a folder for storage that only this replay uses."""
    config = _two_tiers(settings, totals)
    if settings.storage is None or config.host is None:
        return config
    storage = storage_config(settings.storage, config.host, totals, settings.page_size, directory)
    return replace(config, storage=storage)


def lacks_for_replay(profile: str, capabilities: Collection[Capability]) -> tuple[Capability, ...]:
    """What a cache does not declare of what a replay needs: verbs, or of blocks requests whose tables it shows."""
    if Capability.VERBS in capabilities:
        return ()
    by_requests = (Capability.REQUESTS, Capability.TABLES)
    needs = by_requests if profile == "blocks" else (Capability.VERBS,)
    return tuple(one for one in needs if one not in capabilities)


def with_geometry(config: CacheConfig, adapter: type[CacheAdapter]) -> CacheConfig:
    """The configuration in a geometry of a cache that lists some: the first for these components, in whole pages.

    With a shared pool, which is as large as FULL alone would need. Raises ConfigurationError where none is listed.
    """
    listed = [one for one in adapter.configurations() or () if isinstance(one, GeometricConfig)]
    if not listed or Capability.VERBS in adapter.capabilities:
        return config
    of_these = [one for one in listed if set(one.components) == set(config.components)]
    if not of_these:
        raise ConfigurationError(f"{adapter.__qualname__} lists no geometry for {', '.join(config.components)}")
    geometry = replace(of_these[0].geometry, block_tokens=dict.fromkeys(config.components, config.page_size))
    blocks = config.capacity_tokens[Component.FULL] // config.page_size
    slots = {name: blocks * geometry.slots(name) for name in config.components}
    kept = {one.name: getattr(config, one.name) for one in fields(config)}
    return GeometricConfig(**kept | ({"capacity_tokens": slots} if geometry.shared_pool else {}), geometry=geometry)


def _two_tiers(settings: ReplaySettings, totals: Survey) -> CacheConfig:
    has_index = Pool.INDEXER in settings.components
    components = tuple(name for name in settings.components if name != Pool.INDEXER)
    return CacheConfig(
        components=components,
        page_size=settings.page_size,
        capacity_tokens=_capacities(settings.capacity, components, settings, totals),
        sliding_window_size=settings.sliding_window_size if Component.SWA in components else None,
        mamba_chunk_size=settings.page_size if Component.MAMBA in components else None,
        policy=settings.policy,
        bigram=False,
        events=False,
        layout=Layout.LAYER_FIRST,
        device="cuda" if settings.host is not None and settings.host.executor is ExecutorKind.STREAMS else "cpu",
        model=reshaped(SMALLEST_MODEL, index_dim=1 if has_index else 0),
        topology=SINGLE_RANK,
        host=_host_config(settings.host, components, settings, totals),
        recency=settings.recency,
        mamba_checkpoint_interval=settings.mamba_checkpoint_interval,
        mamba_max_states_per_path=settings.mamba_max_states_per_path,
    )


def _host_config(
    host: HostSettings | None, components: tuple[str, ...], settings: ReplaySettings, totals: Survey
) -> HostConfig | None:
    if host is None:
        return None
    return HostConfig(
        capacity_tokens=_capacities(host.capacity, components, settings, totals),
        layout=host.layout,
        write_policy=host.write_policy,
        selective_hits=1,
        load_back_threshold_tokens=0,
        executor=host.executor,
    )


def _capacities(capacity: str, components: tuple[str, ...], settings: ReplaySettings, totals: Survey) -> dict[str, int]:
    """The capacity of each component on one tier, for the same share of the trace.

    For MAMBA that is two states per request: one where it ends, and one where it branches off; or `mamba_capacity`.
    """
    # Rounded down to whole pages, at least one.
    tokens = max(1, _wanted_tokens(capacity, settings, totals) // settings.page_size) * settings.page_size
    states = 2 * totals.requests * tokens // max(1, totals.footprint_tokens)
    if settings.mamba_capacity is not None:
        number = parsed_capacity(settings.mamba_capacity) or 2 * totals.requests
        states = int(totals.requests * number / 100 if settings.mamba_capacity.strip().endswith("%") else number)
    states += 2 * settings.running
    return {name: states if name == Component.MAMBA else tokens for name in components}


def _wanted_tokens(capacity: str, settings: ReplaySettings, totals: Survey) -> int:
    unlimited = totals.footprint_tokens + settings.running * settings.page_size
    number = parsed_capacity(capacity)
    if number is None:
        return unlimited
    wanted = totals.footprint_tokens * number / 100 if capacity.strip().endswith("%") else number
    # A larger pool would hold the same tokens, and only take memory.
    return int(min(wanted, unlimited))


def parsed_capacity(capacity: str) -> float | None:
    """Tokens, or percent if the text ends with %; None for unlimited. Raises ConfigurationError for another text."""
    text = capacity.strip()
    if text == UNLIMITED:
        return None
    number = _number(text.removesuffix("%"))
    if not 0 < number < float("inf"):
        raise ConfigurationError(f"capacity {capacity!r} is neither tokens, nor like '25%', nor {UNLIMITED!r}")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def storage_config(
    settings: StorageSettings, host: HostConfig, totals: Survey, page_size: int, directory: Path
) -> StorageConfig:
    """The configuration to open; prefetches in flight may load as many tokens as the host can hold.

    `directory`: a folder that only this replay uses. Raises ConfigurationError for an invalid extra configuration.
    """
    extra = read_extra_config(settings.extra)
    refuse_inline_secrets(settings.backend, extra.options, settings.extra)
    defaults = default_options(settings.backend, totals.footprint_tokens // page_size)
    options = {**defaults, **conceal_options(settings.backend, extra.options)}
    is_stepped = host.executor is ExecutorKind.STEPPED
    return StorageConfig(
        backend=settings.backend,
        **asdict(
            replace(extra, options=BackendSubject(settings.backend, options).options_for({FOLDER: str(directory)}))
        ),
        model="replay",
        model_fingerprint="no model",
        stop_policy=settings.stop_policy,
        timeout_cap_s=_LONGEST_WAIT_S,
        limit_tokens=host.capacity_tokens[Component.FULL],
        executor=ExecutorKind.STEPPED if is_stepped else ExecutorKind.THREADED,
    )


def default_options(backend: str, footprint_pages: int) -> Mapping[str, Any]:
    """The default options that tell a backend where to store pages, with capacity for all of them."""
    options: Mapping[str, Mapping[str, Any]] = {
        SCRIPTED: {"store": FOLDER},
        "memory": {"store": FOLDER},
        "file": {"root": FOLDER},
        "slotfile": {"root": FOLDER, "capacity_slots": max(1, footprint_pages)},
    }
    return options.get(backend, {})
