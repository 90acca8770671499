"""HybridModel: the parameters of ModelShape.hybrid, so that a configuration can change one of them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from hicache.config import BufferShape, Follows, ModelShape, PoolShape
from hicache.types import Pool


@dataclass(frozen=True, slots=True)
class HybridModel:
    """Layers by kind, sizes in elements, and torch's name of the dtype, as ModelShape.hybrid takes them.

    `others`: the pools that ModelShape.hybrid does not make. They do not change with the sizes.
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
    others: tuple[PoolShape, ...]

    @classmethod
    def of(cls, model: ModelShape | None) -> HybridModel:
        """The parameters that a shape was made with. Raises ValueError without a model."""
        if model is None:
            raise ValueError("the configuration has no model")
        pools = {pool.name: pool for pool in model.pools}
        _, kv_heads, head_dim = pools[Pool.KV].buffers[0].shape
        conv, state = (buffer.shape[0] for buffer in pools[Pool.MAMBA].buffers) if Pool.MAMBA in pools else (0, 0)
        return cls(
            full_layers=pools[Pool.KV].layers,
            swa_layers=_layers(pools, Pool.SWA),
            mamba_layers=_layers(pools, Pool.MAMBA),
            kv_heads=kv_heads,
            head_dim=head_dim,
            conv_elements=conv,
            state_elements=state,
            index_dim=pools[Pool.INDEXER].buffers[0].shape[0] if Pool.INDEXER in pools else 0,
            dtype=pools[Pool.KV].buffers[0].dtype,
            is_mla=model.is_mla,
            others=tuple(pool for name, pool in pools.items() if name not in Pool.__members__.values()),
        )

    @property
    def shape(self) -> ModelShape:
        """The pools of such a model."""
        sizes = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "others"}
        made = ModelShape.hybrid(**sizes)
        return replace(made, pools=(*made.pools, *self.others))


def _layers(pools: dict[str, PoolShape], pool: str) -> int:
    return pools[pool].layers if pool in pools else 0


def reshaped(model: ModelShape | None, **changes: Any) -> ModelShape:
    """The same model with other parameters, by their names in HybridModel."""
    return replace(HybridModel.of(model), **changes).shape


TINY_MODEL = ModelShape.hybrid(
    full_layers=2,
    swa_layers=2,
    mamba_layers=2,
    kv_heads=1,
    head_dim=4,
    conv_elements=4,
    state_elements=8,
    dtype="float32",
)
"""The model of most tests. An indexer is added where a configuration has one."""

TINY_INDEX_DIM = 4

DRAFT, SCALES, EXPERTS, SECOND_INDEX, GROUPS = "draft", "scales", "experts", "second_index", "groups"

_EACH_PAGE = Follows.EVERY_PAGE
OTHER_SIDECARS = {
    pool.name: pool
    for pool in (
        PoolShape(DRAFT, _EACH_PAGE, 1, (BufferShape("kv", (2, 4, 2), "float32", 1),)),
        PoolShape(SCALES, _EACH_PAGE, 2, (BufferShape("key", (1,), "uint8"), BufferShape("value", (1,), "uint8"))),
        PoolShape(EXPERTS, _EACH_PAGE, 3, (BufferShape("ids", (2,), "int16"),)),
        PoolShape(SECOND_INDEX, _EACH_PAGE, 2, (BufferShape("keys", (4,), "float32"),), tokens_per_entry=4),
        PoolShape(GROUPS, _EACH_PAGE, 2, (BufferShape("keys", (4,), "float32"),), tokens_per_entry=32),
    )
}
"""Sidecars besides the indexer: the KV of a draft model, which has fewer layers; the scales of quantised KV; the
experts that each token was routed to, in more layers than KV has; an index of one entry for four tokens; and one of an
entry for two pages of 16 tokens."""


def tiny_model(sidecars: tuple[str, ...], group_tokens: int = 32) -> ModelShape:
    """TINY_MODEL with the named sidecars: the indexer, and those of OTHER_SIDECARS, with so large groups."""
    grouped = {GROUPS: replace(OTHER_SIDECARS[GROUPS], tokens_per_entry=group_tokens)}
    others = tuple((OTHER_SIDECARS | grouped)[name] for name in sidecars if name != Pool.INDEXER)
    return reshaped(TINY_MODEL, index_dim=TINY_INDEX_DIM if Pool.INDEXER in sidecars else 0, others=others)
