"""pool_specs: what one rank of a model holds of each pool."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hicache.config import SINGLE_RANK, CacheConfig
from hicache.errors import ConfigurationError
from hicache.stacks import pool_specs
from hicache.testing.hybrid_model import reshaped
from hicache.tests.pools.two_tiers import two_tier_config
from hicache.types import Pool

OF_TWO = replace(SINGLE_RANK, tp_size=2)


def with_heads(kv_heads: int, *, is_mla: bool) -> CacheConfig:
    """The first of two tensor-parallel ranks of a model with so many heads."""
    config = two_tier_config()
    return replace(config, model=reshaped(config.model, kv_heads=kv_heads, is_mla=is_mla), topology=OF_TWO)


def heads_of(config: CacheConfig, pool: Pool) -> int:
    return pool_specs(config)[pool].buffers[0].shape[1]


@pytest.mark.parametrize("pool", [Pool.KV, Pool.SWA])
def test_ranks_divide_the_heads_of_a_model_unless_each_holds_all(pool: Pool) -> None:
    assert heads_of(with_heads(4, is_mla=False), pool) == 2, "RANK-5: two of four heads each"
    assert heads_of(with_heads(1, is_mla=True), pool) == 1, "STORE-1: with MLA every rank holds the same KV"


def test_a_model_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"axis 1 of kv\.kv \(2, 1, 4\) cannot be divided over tp_size=2"):
        pool_specs(with_heads(1, is_mla=False))
