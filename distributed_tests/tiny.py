"""Tiny caches of several ranks: a few small pages on each tier, and on some ranks fewer than on others."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from hicache.config import CacheConfig, HostConfig, WritePolicy
from hicache.testing.adapter import CacheAdapter
from hicache.types import Component, StopPolicy

from .configurations import configuration

PAGE = 2
WINDOW_TOKENS = 3


@st.composite
def tiny_caches(draw: st.DrawFn, adapter_type: type[CacheAdapter], ranks: int) -> list[CacheConfig]:
    """A configuration for each rank; they differ in how many pages there are, and in nothing else."""
    config = configuration(adapter_type)
    assert config.host is not None, f"{config.name} has a host tier"
    assert config.storage is not None, f"{config.name} has storage"
    names = config.components
    device = {name: draw(st.integers(3, 8), label=f"{name} pages") for name in names}
    below = {name: draw(st.integers(3, 10), label=f"{name} pages on the host") for name in names}
    host = replace(config.host, write_policy=draw(st.sampled_from([WritePolicy.WRITE_THROUGH, WritePolicy.WRITE_BACK])))
    policy = draw(st.sampled_from([StopPolicy.TIMEOUT, StopPolicy.BEST_EFFORT, StopPolicy.WAIT_COMPLETE]))
    storage = replace(config.storage, stop_policy=policy, limit_tokens=12 * PAGE)
    config = replace(
        config,
        page_size=PAGE,
        sliding_window_size=WINDOW_TOKENS if Component.SWA in names else None,
        mamba_chunk_size=PAGE if Component.MAMBA in names else None,
        capacity_tokens=_tokens(device, 0),
        host=_of_size(host, below, 0),
        storage=storage,
    )
    lacking = draw(st.lists(st.sampled_from([0, 0, 1]), min_size=ranks, max_size=ranks), label="pages less, by rank")
    return [
        replace(config, capacity_tokens=_tokens(device, less), host=_of_size(host, below, less)) for less in lacking
    ]


def _of_size(host: HostConfig, pages: dict[str, int], less: int) -> HostConfig:
    return replace(host, capacity_tokens=_tokens(pages, less))


def _tokens(pages: dict[str, int], less: int) -> dict[str, int]:
    return {name: (count - less) * (1 if name == Component.MAMBA else PAGE) for name, count in pages.items()}
