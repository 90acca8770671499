"""The reference as SGLang's radix cache: its slots and copies anywhere, the rest where SGLang is installed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hicache.engines.imports import installed_release
from hicache.engines.sglang.imports import import_from
from hicache.errors import ConfigurationError
from hicache.integrations import sglang_radix_cache
from hicache.integrations.sglang_slots import UNBOUND, SlotCopier, SlotMap, slot_tensors
from hicache.testing.adapter import Capability
from hicache.testing.configurations import standard_configurations
from hicache.tests.engines.sglang_drop_in import SglangDropIn
from hicache.transfer.job import NOT_STARTED, CopyJob, Move
from hicache.types import SHARED, Key, Slots, TransferKind

NEEDS_SGLANG = pytest.mark.skipif(
    installed_release("sglang") != SglangDropIn.version, reason=f"sglang {SglangDropIn.version} is not installed"
)


def array(*numbers: int) -> Slots:
    return np.array(numbers, dtype=np.int64)


# Slots: without SGLang.


def test_a_page_stands_for_any_slots() -> None:
    slots = SlotMap(pages=4, page_size=2, slots=20)
    slots.bind(array(3, 1), array(7, 8, 12, 11))
    assert slots.slots(array(1, 3)).tolist() == [12, 11, 7, 8], "each page has the slots that it was given"
    assert slots.pages(array(12, 11, 5, 6)).tolist() == [1, 0], "slots of no page have page 0"
    assert sorted(slots.all_slots().tolist()) == [7, 8, 11, 12], f"got {slots.all_slots()}"
    assert slots.unbind(array(2, 3)).tolist() == [7, 8], "a page that stands for none is left out"
    assert slots.slots(array(3)).tolist() == [UNBOUND, UNBOUND], "page 3 stands for none now"
    assert slots.pages(array(7, 8)).tolist() == [0], "its slots have no page now"


def copier_of(tensors: list[torch.Tensor], slots: SlotMap, taken: Slots | None) -> SlotCopier:
    return SlotCopier({"full": slots}, {"full": tensors}, {"full": 4}, lambda _name, _pages: taken)


def job(kind: TransferKind, device: Slots, host: Slots) -> CopyJob:
    return CopyJob(1, kind, ({"full": Move(device, host)},))


def test_bytes_go_to_the_host_and_come_back_to_other_slots() -> None:
    rows, slots = torch.arange(60, dtype=torch.float32).reshape(20, 3), SlotMap(pages=4, page_size=2, slots=20)
    expected = rows[[5, 9]].clone()
    slots.bind(array(1), array(5, 9))
    copier = copier_of([rows], slots, array(14, 2))
    assert copier.step(job(TransferKind.BACKUP, array(1), array(3)), NOT_STARTED).answers == (1,), "the copy is whole"
    rows.zero_()
    slots.unbind(array(1))
    assert copier.step(job(TransferKind.LOAD, array(2), array(3)), NOT_STARTED).answers == (1,), "the copy is whole"
    assert torch.equal(rows[[14, 2]], expected), f"expected {expected} at slots 14 and 2, got {rows}"
    assert not rows[[0, 1, 3, 5, 9]].any(), f"other slots are as they were, got {rows}"


def test_a_load_without_slots_has_failed() -> None:
    slots = SlotMap(pages=4, page_size=2, slots=20)
    progress = copier_of([torch.zeros(20, 3)], slots, None).step(
        job(TransferKind.LOAD, array(2), array(3)), NOT_STARTED
    )
    assert (progress.answers, progress.has_ended) == ((), True), f"no part is whole, got {progress}"


def test_pools_that_the_cache_would_not_copy_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="neither k_buffer"):
        slot_tensors(SimpleNamespace(), None, ["full"])
    indexed = SimpleNamespace(kv_buffer=[torch.zeros(4, 2)], index_k_with_scale_buffer=[torch.zeros(4)])
    with pytest.raises(ConfigurationError, match="indexer"):
        slot_tensors(indexed, None, ["full"])


def test_states_are_rows_of_all_layers() -> None:
    states = SimpleNamespace(mamba_cache=SimpleNamespace(conv=[torch.zeros(3, 5, 2)], temporal=torch.zeros(3, 5, 4)))
    found = slot_tensors(SimpleNamespace(kv_buffer=[torch.zeros(9, 2)]), states, ["full", "mamba"])
    shapes = {name: [tuple(one.shape) for one in tensors] for name, tensors in found.items()}
    assert shapes == {"full": [(9, 2)], "mamba": [(5, 3, 2), (5, 3, 4)]}, f"slots come first, got {shapes}"


def test_registering_twice_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[str, Any] = {}
    registry: Any = ModuleType(sglang_radix_cache.REGISTRY)
    registry.registered_radix_cache_backends = lambda: list(known)
    registry.register_radix_cache_backend = known.__setitem__
    monkeypatch.setitem(sys.modules, sglang_radix_cache.REGISTRY, registry)
    monkeypatch.setattr(sglang_radix_cache, "import_module", lambda name: sys.modules[name])
    for _ in range(2):
        sglang_radix_cache.register()
    assert known == {"hicache": sglang_radix_cache.open_backend}, f"expected one backend, got {known}"


# The cache: with SGLang's own pools and allocators.


def opened(name: str) -> SglangDropIn:
    wanted = (config for config in standard_configurations(frozenset(Capability)) if config.name == name)
    return SglangDropIn(next(wanted))


def prompt(tokens: int, first: int = 0) -> Key:
    return Key(np.arange(first, first + tokens, dtype=np.int32), SHARED)


def grown(cache: SglangDropIn, tokens: int, first: int = 0) -> Slots:
    slots = cache.allocate(tokens)
    assert slots is not None, f"there is room for {tokens} tokens"
    state = cache.allocate_state() if "mamba" in cache.config.components else None
    result = cache.insert(prompt(tokens, first), slots, shared=0, window_start=0, state=state, priority=0)
    if state is not None and not result.state_adopted:
        cache.free_state(state)
    return slots


def free(cache: SglangDropIn) -> Mapping[str, int]:
    return {name: sizes.free for name, sizes in cache.sizes().items()}


@NEEDS_SGLANG
@pytest.mark.parametrize("name", ["full/page1/lru", "full+swa/page3/lru", "full+mamba/page16/lru"])
def test_a_prompt_is_found_evicted_and_given_back(name: str) -> None:
    cache = opened(name)
    before, tokens = free(cache), 4 * cache.config.page_size
    slots = grown(cache, tokens)
    found = cache.match(prompt(tokens), chunked=False)
    cache.sanity_check()
    assert found.device_indices.tolist() == slots.tolist(), f"expected the request's slots, got {found}"
    grown(cache, tokens)
    assert free(cache)["full"] == before["full"] - tokens, f"duplicates are given back, got {free(cache)}"
    cache.evict("full", tokens)
    assert free(cache) == before, f"all is given back to SGLang's allocators, got {free(cache)}"


@NEEDS_SGLANG
def test_what_the_tree_refuses_stays_with_the_request() -> None:
    cache = opened("full+swa/page3/lru")
    before, slots = free(cache), cache.allocate(6)
    assert slots is not None, "there is room for 6 tokens"
    held = free(cache)
    cache.insert(prompt(6), slots, shared=0, window_start=6, state=None, priority=0)
    assert free(cache) == held, f"a running request goes on using them, got {free(cache)}"
    cache.free(slots)
    assert free(cache) == before, f"the request frees them, got {free(cache)}"


@NEEDS_SGLANG
def test_a_lock_protects_until_it_is_released() -> None:
    cache = opened("full/page1/lru")
    grown(cache, 4)
    receipt = cache.lock(cache.match(prompt(4), chunked=False).device_anchor)
    assert cache.evict("full", 4).freed["full"] == 0, "locked slots are not evicted"
    cache.unlock(receipt)
    assert cache.evict("full", 4).freed["full"] == 4, "unlocked slots are"


def backend_context(**changes: Any) -> Any:
    cache = opened("full/page1/lru")
    params = cache.cache._params
    server_args = SimpleNamespace(
        hicache_write_policy="write_through", hicache_ratio=2.0, hicache_size=0, hicache_storage_backend=None
    )
    fields = {"disable_radix_cache": False, "is_hybrid_swa": False, "is_hybrid_ssm": False}
    return SimpleNamespace(
        **{**fields, "enable_hierarchical_cache": True, "params": params, "server_args": server_args, **changes}
    )


@NEEDS_SGLANG
def test_the_factory_opens_both_tiers_and_bytes_come_back_from_the_host() -> None:
    (base, radix) = (import_from("sglang.srt.mem_cache." + name) for name in ("base_prefix_cache", "radix_cache"))
    cache = sglang_radix_cache.open_backend(backend_context())
    cache.load_back_threshold = 0
    allocator, keys = cache.token_to_kv_pool_allocator, cache.token_to_kv_pool_allocator.get_kvcache().k_buffer
    slots, tokens = allocator.alloc(4), np.arange(4).tolist()
    for layer, rows in enumerate(keys):
        rows[slots] = layer + 1
    cache.insert(base.InsertParams(key=radix.RadixKey(tokens), value=slots))
    cache.evict(base.EvictParams(num_tokens=4))
    for rows in keys:
        rows.zero_()
    found = cache.match_prefix(base.MatchPrefixParams(key=radix.RadixKey(tokens)))
    assert (found.device_prefix_len, found.host_hit_length) == (0, 4), f"expected it on the host, got {found}"
    request = SimpleNamespace(last_node=found.last_device_node)
    refused = cache.init_load_back(base.InitLoadBackParams(found.best_match_node, 4, mem_quota=-1, req=request))
    assert refused == (0, found.last_device_node), f"less than nothing may be loaded, got {refused}"
    loaded, node = cache.init_load_back(base.InitLoadBackParams(found.best_match_node, 4, req=request))
    assert loaded == 4, f"expected 4 tokens, got {loaded}"
    place = cache.path_device_indices(node)
    values = [rows[place].unique().tolist() for rows in keys]
    assert values == [[layer + 1] for layer in range(len(keys))], f"each layer has its bytes again, got {values}"


@NEEDS_SGLANG
def test_without_prefix_caching_the_cache_is_sglangs_own() -> None:
    context = backend_context(disable_radix_cache=True, enable_hierarchical_cache=False)
    registry = import_from("sglang.srt.mem_cache.registry")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(registry, "default_radix_cache_factory", lambda _: "SGLang's own")
        assert sglang_radix_cache.open_backend(context) == "SGLang's own", "nothing is cached, so it is left alone"


@NEEDS_SGLANG
def test_a_storage_tier_is_refused() -> None:
    context = backend_context()
    context.server_args.hicache_storage_backend = "file"
    with pytest.raises(ConfigurationError, match="no storage tier"):
        sglang_radix_cache.open_backend(context)
