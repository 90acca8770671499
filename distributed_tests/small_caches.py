"""Configurations of several ranks: a few small pages on each tier, and on some ranks fewer than on others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from hicache.config import CacheConfig, WritePolicy
from hicache.testing.adapter import CacheAdapter
from hicache.types import Component, StopPolicy

from .configurations import configuration

PAGE = 2
WINDOW_TOKENS = 3


@dataclass(frozen=True, slots=True)
class RankVariant:
    """How a rank's configuration differs: `less` pages fewer, and perhaps the opposite order of its mappings."""

    less: int
    is_turned: bool

    def tokens(self, pages: Mapping[str, int]) -> dict[str, int]:
        """The capacities of this rank. `pages`: the largest number of pages of each component."""
        tokens = {name: (count - self.less) * _unit(name) for name, count in pages.items()}
        return dict(reversed(list(tokens.items()))) if self.is_turned else tokens


RANK_VARIANT = st.builds(RankVariant, less=st.sampled_from([0, 0, 1]), is_turned=st.booleans())


@st.composite
def small_caches(draw: st.DrawFn, adapter_type: type[CacheAdapter], ranks: int) -> list[CacheConfig]:
    """A configuration for each rank; they differ in their capacities, and in the order of their mappings."""
    config = configuration(adapter_type)
    assert config.host is not None, f"{config.name} has a host tier"
    assert config.storage is not None, f"{config.name} has storage"
    names = config.components
    device = {name: draw(st.integers(3, 8), label=f"{name} pages") for name in names}
    below = {name: draw(st.integers(3, 10), label=f"{name} pages on the host") for name in names}
    write_policy = draw(st.sampled_from([WritePolicy.WRITE_THROUGH, WritePolicy.WRITE_BACK]))
    stop_policy = draw(st.sampled_from([StopPolicy.TIMEOUT, StopPolicy.BEST_EFFORT, StopPolicy.WAIT_COMPLETE]))
    storage = replace(config.storage, stop_policy=stop_policy, limit_tokens=12 * PAGE)
    owns = draw(st.lists(RANK_VARIANT, min_size=ranks, max_size=ranks), label="by rank")
    return [
        replace(
            config,
            page_size=PAGE,
            sliding_window_size=WINDOW_TOKENS if Component.SWA in names else None,
            mamba_chunk_size=PAGE if Component.MAMBA in names else None,
            capacity_tokens=own.tokens(device),
            host=replace(config.host, write_policy=write_policy, capacity_tokens=own.tokens(below)),
            storage=storage,
        )
        for own in owns
    ]


def _unit(name: str) -> int:
    return 1 if name == Component.MAMBA else PAGE
