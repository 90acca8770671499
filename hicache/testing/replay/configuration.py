"""The cache that a replay opens: with the given capacity, and a model of a few bytes per token."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hicache.config import (
    SINGLE_RANK,
    CacheConfig,
    EvictionPolicy,
    ExecutorKind,
    HostConfig,
    Layout,
    ModelShape,
    WritePolicy,
)
from hicache.errors import ConfigurationError
from hicache.testing.hybrid_model import reshaped
from hicache.testing.replay.storage import StorageSettings, storage_config
from hicache.testing.replay.survey import Survey
from hicache.types import Component, Pool

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
class ReplaySettings:
    """The settings of a replay. Raises ConfigurationError, naming the field, for a number that is too small.

    `capacity`: tokens, a share of the trace's footprint such as "25%", or "unlimited". `components`: components and
    sidecars. `running`: the number of requests that run at the same time. `check_every`: check the whole cache after
    every so many requests; 0 checks only at the end. `sliding_window_size`: tokens, for SWA. `host`: None for the
    device alone. `storage`: None for none; it needs a host.
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

    def __post_init__(self) -> None:
        for field, least in (("page_size", 1), ("sliding_window_size", 1), ("running", 1), ("check_every", 0)):
            value = getattr(self, field)
            if value < least:
                raise ConfigurationError(f"{field} must be {least} or more, got {value!r}")
        if self.storage is not None and self.host is None:
            raise ConfigurationError(f"storage {self.storage.backend!r} needs a host tier, and there is none")


def cache_config(settings: ReplaySettings, totals: Survey, directory: Path) -> CacheConfig:
    """The configuration to open. `directory`: a folder for storage that only this replay uses."""
    config = _two_tiers(settings, totals)
    if settings.storage is None or config.host is None:
        return config
    storage = storage_config(settings.storage, config.host, totals, settings.page_size, directory)
    return replace(config, storage=storage)


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

    For MAMBA that is two states per request: one where it ends, and one where it branches off.
    """
    # Rounded down to whole pages, at least one.
    tokens = max(1, _wanted_tokens(capacity, settings, totals) // settings.page_size) * settings.page_size
    states = 2 * (settings.running + totals.requests * tokens // max(1, totals.footprint_tokens))
    return {name: states if name == Component.MAMBA else tokens for name in components}


def _wanted_tokens(capacity: str, settings: ReplaySettings, totals: Survey) -> int:
    text = capacity.strip()
    if text == UNLIMITED:
        return totals.footprint_tokens + settings.running * settings.page_size
    number = _number(text.removesuffix("%"))
    if not 0 < number < float("inf"):
        raise ConfigurationError(f"capacity {capacity!r} is neither tokens, nor like '25%', nor {UNLIMITED!r}")
    return int(totals.footprint_tokens * number / 100) if text.endswith("%") else int(number)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
