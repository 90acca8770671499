"""StorageKeys: names that two caches share only where a page means the same to both, and that lead nowhere else."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache.config import BufferShape, Follows, ModelShape, PoolShape, Topology
from hicache.errors import KeyFormError
from hicache.storage.keys import MAX_CHARACTERS, Shard, StorageKeys, check_key, check_scope
from hicache.testing.hybrid_model import reshaped
from hicache.tests.cache.pools.two_tiers import stored_config
from hicache.types import Pool

LONGEST_HASH = "f" * 64


def scope_of(model: str) -> str:
    config = stored_config()
    assert config.storage is not None, "it has a storage tier"
    return StorageKeys.of(replace(config, storage=replace(config.storage, model=model))).scope


@pytest.mark.parametrize("other", ["org-llama", "org/llama ", "org//llama", "ORG/llama", "org.llama"])
def test_models_that_look_alike_in_a_name_share_nothing(other: str) -> None:
    assert scope_of(other) != scope_of("org/llama"), f"STORE-1: {other!r} is another model than 'org/llama'"


@pytest.mark.parametrize("fingerprint", [None, "a"])
def test_a_scope_says_its_version_and_whether_the_model_is_identified(fingerprint: str | None) -> None:
    config = stored_config()
    assert config.storage is not None, "it has a storage tier"
    given = replace(config, storage=replace(config.storage, model="org/m", model_fingerprint=fingerprint))
    form = r"org-m-v2-[0-9a-f]{32}" if fingerprint else r"org-m-v2-unidentified-[0-9a-f]{32}"
    scope = StorageKeys.of(given).scope
    assert re.fullmatch(form, scope), f"STORE-1: expected {form}, got {scope}"


@given(st.text(min_size=1, max_size=300))
def test_the_name_of_any_model_makes_a_scope(model: str) -> None:
    scope = scope_of(model)
    assert check_scope(scope) == scope, f"SEC-5: {model!r}"


@pytest.mark.parametrize("pool", Pool)
def test_every_key_keeps_to_the_grammar(pool: Pool) -> None:
    (key,) = StorageKeys.of(stored_config()).of_pages(pool, [LONGEST_HASH])
    assert check_key(key) == key, f"SEC-5: {key!r}"
    assert key.endswith(f"/{LONGEST_HASH}"), f"KEY-4: the hash of the prefix is in the key, got {key!r}"


def test_with_mla_a_pool_that_ranks_divide_has_a_key_for_each_rank() -> None:
    config = stored_config()
    rest = config.model.pools[1:] if config.model is not None else ()
    latent = PoolShape("kv", Follows.EVERY_PAGE, 1, (BufferShape("latent", (8,), "float32"),))
    draft = PoolShape("draft", Follows.EVERY_PAGE, 1, (BufferShape("kv", (2, 4, 2), "float32", 1),))
    mla = replace(config, model=ModelShape((latent, *rest, draft), is_mla=True))
    ranks = [StorageKeys.of(replace(mla, topology=Topology(tp_rank=rank, tp_size=2))) for rank in range(2)]
    shards = {name: {keys.shards[name] for keys in ranks} for name in ("kv", "draft")}
    assert len(shards["kv"]) == 1, f"RANK-6: all ranks have the same KV, got {shards}"
    assert len(shards["draft"]) == 2, f"RANK-6: each rank has its own heads of the draft model, got {shards}"
    assert all("draft" in keys.written for keys in ranks), "RANK-6: each rank writes its heads of the draft model"


NO_KEYS = (
    *("", "/", "a/", "/a", "a//b", ".", "..", "a/../b", "a/.b", "~", "a:b"),
    *("a\\b", "a b", "a\0b", "a\n", "ä", "x" * 201),
)


@pytest.mark.parametrize("key", NO_KEYS)
def test_what_could_lead_elsewhere_is_no_key(key: str) -> None:
    with pytest.raises(KeyFormError):
        check_key(key)
    with pytest.raises(KeyFormError):
        check_scope(key)


def test_a_scope_is_one_segment_and_a_key_may_be_several() -> None:
    longest = "x" * MAX_CHARACTERS
    assert check_key("kv.tp0of1/ab/cd") == "kv.tp0of1/ab/cd", "slashes divide a key"
    assert (check_key(longest), check_scope(longest)) == (longest, longest), "the longest there is"
    with pytest.raises(KeyFormError):
        check_scope("a/b")


@pytest.mark.parametrize("is_mla", [False, True])
def test_each_rank_that_writes_a_pool_has_a_number_of_its_own(is_mla: bool) -> None:
    sizes = {"tp_size": 3, "cp_size": 2, "pp_size": 2}
    ranks = [
        Topology(tp_rank=tp_rank, cp_rank=cp_rank, pp_rank=pp_rank, **sizes)
        for pp_rank in range(2)
        for cp_rank in range(2)
        for tp_rank in range(3)
    ]
    config = stored_config()
    model = reshaped(config.model, kv_heads=3, is_mla=is_mla)
    for pool, writers in ((Pool.KV, 4 if is_mla else 12), (Pool.MAMBA, 12)):
        of_all = [StorageKeys.of(replace(config, model=model, topology=ranks_of)) for ranks_of in ranks]
        shards = [Shard.of_key(keys.of_pages(pool, [LONGEST_HASH])[0]) for keys in of_all if pool in keys.written]
        expected = [Shard(pool.value, number) for number in range(writers)]
        assert shards == expected, f"STORE-15: expected {expected}, got {shards}"


@pytest.mark.parametrize("key", ["a", "kv/a", "kv.tp0of1/a", "room/0", "kv.tp1000of1.cp0of1.pp0of1/a", "a.b.c/d"])
def test_a_key_of_another_form_is_of_kv_and_rank_0(key: str) -> None:
    assert Shard.of_key(key) == Shard("kv", 0), f"STORE-15: {key}: expected KV of rank 0, got {Shard.of_key(key)}"
