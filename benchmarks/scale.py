"""Scale: how large the cache and the keys of one measurement are."""

from __future__ import annotations

from dataclasses import dataclass

from hicache.config import SINGLE_RANK, CacheConfig, EvictionPolicy, Layout, ModelShape
from hicache.types import Component

FULL, SWA, MAMBA = (component.value for component in Component)

WINDOW_TOKENS = 1024

SLIM_MODEL = ModelShape.hybrid(
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
"""The least data per slot: the tree and the allocators are measured, not the tensors."""


@dataclass(frozen=True, slots=True)
class Scale:
    """`nodes`: of the tree, without the measured prompts. `key_tokens`: of each prompt."""

    components: tuple[str, ...]
    page_size: int
    nodes: int
    key_tokens: int

    def __str__(self) -> str:
        return f"{'+'.join(self.components)}/page{self.page_size}/{self.nodes}nodes/{self.key_tokens}tokens"

    def config(self, prompts: int) -> CacheConfig:
        """A cache with room for the tree and `prompts` prompts."""
        return spacious(self.components, self.page_size, self.nodes * self.page_size + prompts * self.key_tokens)


def spacious(components: tuple[str, ...], page_size: int, tokens: int) -> CacheConfig:
    """A cache without events, with room for `tokens` tokens, a multiple of the page size, or as many states."""
    return CacheConfig(
        components=components,
        page_size=page_size,
        capacity_tokens=dict.fromkeys(components, tokens),
        sliding_window_size=WINDOW_TOKENS if SWA in components else None,
        mamba_chunk_size=page_size if MAMBA in components else None,
        policy=EvictionPolicy.LRU,
        bigram=False,
        events=False,
        layout=Layout.LAYER_FIRST,
        device="cpu",
        model=SLIM_MODEL,
        topology=SINGLE_RANK,
    )
