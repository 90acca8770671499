"""DevicePools: FULL pages and their SWA partners are taken and given back together; and what each rank holds."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hicache.config import SINGLE_RANK, CacheConfig, Layout
from hicache.errors import ConfigurationError, SlotError
from hicache.pools.device import DevicePools
from hicache.stacks import pool_specs
from hicache.testing.hybrid_model import TINY_MODEL, reshaped
from hicache.tests.cache.pools.two_tiers import contents, fill, pages_of, two_tier_config
from hicache.types import Pool, Slots

FULL, SWA = "full", "swa"
PAGE_SIZE = 4
FULL_PAGES, SWA_PAGES = 6, 4


@pytest.fixture
def pools() -> DevicePools:
    return open_pools()


def open_pools() -> DevicePools:
    config = CacheConfig(
        components=(FULL, SWA),
        page_size=PAGE_SIZE,
        capacity_tokens={FULL: FULL_PAGES * PAGE_SIZE, SWA: SWA_PAGES * PAGE_SIZE},
        sliding_window_size=PAGE_SIZE,
        model=TINY_MODEL,
    )
    return DevicePools(config, pool_specs(config))


def taken(pools: DevicePools, pages: int) -> Slots:
    found = pools.allocate(pages)
    assert found is not None, f"the pools have room for {pages} pages"
    return found


def free_counts(pools: DevicePools) -> tuple[int, int]:
    return pools.allocators[FULL].free_pages, pools.allocators[SWA].free_pages


ACTIONS = st.lists(st.tuples(st.sampled_from(["allocate", "free", "free_window"]), st.integers(0, 4)), max_size=30)


@given(ACTIONS)
def test_partners_are_conserved_as_a_set(actions: list[tuple[str, int]]) -> None:
    pools, held = open_pools(), dict[int, int]()
    for action, count in actions:
        chosen = np.array(list(held)[:count], dtype=np.int64)
        if action == "allocate" and (fresh := pools.allocate(count)) is not None:
            held |= dict(zip(fresh.tolist(), pools.partners(fresh).tolist(), strict=True))
        elif action == "free":
            pools.free(chosen)
            held = {page: partner for page, partner in held.items() if page not in chosen}
        elif action == "free_window":
            pools.free_window(chosen)
            held |= dict.fromkeys(chosen.tolist(), 0)
        check(pools, held)


def check(pools: DevicePools, held: dict[int, int]) -> None:
    windows = {partner for partner in held.values() if partner}
    partners = pools.partners(np.array(list(held), dtype=np.int64)).tolist()
    assert partners == list(held.values()), f"expected the partners {held}, got {partners}"
    free_windows = set(pools.allocators[SWA].free_set().tolist())
    expected = set(range(1, SWA_PAGES + 1)) - windows
    assert free_windows == expected, f"POOL-1: {windows} are partners, expected {expected} to be free: {free_windows}"
    assert pools.allocators[FULL].free_pages == FULL_PAGES - len(held), f"POOL-1: {len(held)} FULL pages are held"


def test_what_does_not_fit_one_pool_is_taken_from_neither(pools: DevicePools) -> None:
    assert pools.allocate(SWA_PAGES + 1) is None, f"POOL-3: there are {SWA_PAGES} SWA pages"
    assert free_counts(pools) == (FULL_PAGES, SWA_PAGES), "POOL-3: what was taken is rolled back"


@pytest.mark.parametrize("pages", [[1, 1], [1, 3], [0], [99]], ids=["twice", "free", "padding", "foreign"])
@pytest.mark.parametrize("verb", ["free", "free_window"])
def test_a_refusal_changes_neither_pool(pools: DevicePools, verb: str, pages: list[int]) -> None:
    held = taken(pools, 2)
    partners = pools.partners(held).tolist()
    with pytest.raises(SlotError):
        getattr(pools, verb)(np.array(pages, dtype=np.int64))
    assert free_counts(pools) == (FULL_PAGES - 2, SWA_PAGES - 2), f"POOL-2: a refused {verb} gives nothing back"
    assert pools.partners(held).tolist() == partners, f"POOL-2: a refused {verb} changes no partner"


def test_a_window_starts_behind_the_last_page_without_a_partner(pools: DevicePools) -> None:
    pages = taken(pools, 4)
    assert pools.window_start(pages) == 0, "all have partners"
    pools.free_window(pages[[0, 2]])
    assert pools.window_start(pages) == 3, "pages 0 and 2 have none"
    pools.free_window(pages)
    assert pools.window_start(pages) == 4, "none has one"
    assert pools.window_start(pages[:0]) == 0, "an empty key lacks nothing"


def test_partners_move_once(pools: DevicePools) -> None:
    source, target = taken(pools, 2), taken(pools, 2)
    with pytest.raises(SlotError, match="partners cannot move"):
        pools.move_partners(source, target)
    pools.free_window(target)
    moved = pools.move_partners(source, target)
    assert pools.partners(target).tolist() == moved.tolist(), "the target has them"
    assert pools.partners(source).tolist() == [0, 0], "the source has none"
    pools.free(source)
    assert free_counts(pools) == (FULL_PAGES - 2, SWA_PAGES - 2), "POOL-5: freeing the source frees no partner"


def test_partners_are_shared_until_one_is_unpaired(pools: DevicePools) -> None:
    source, target = taken(pools, 2), taken(pools, 2)
    pools.free_window(target)
    pools.share_partners(source, target)
    assert pools.partners(source).tolist() == pools.partners(target).tolist(), "both have them"
    pools.unpair(source)
    pools.free(source)
    assert pools.partners(target).all(), "the target has them still"
    assert free_counts(pools) == (FULL_PAGES - 2, SWA_PAGES - 2), "POOL-5: freeing the source frees no partner"


PAGE_RUN = [list(range(PAGE_SIZE, 2 * PAGE_SIZE)), list(range(3 * PAGE_SIZE, 4 * PAGE_SIZE))]


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_whole_pages_of_slots_are_told_by_their_numbers(pools: DevicePools, order: list[int]) -> None:
    slots = np.array([slot for run in order for slot in PAGE_RUN[run]], dtype=np.int64)
    expected = [[1, 3][run] for run in order]
    assert pools.pages_of(slots).tolist() == expected, f"slots {slots}"
    assert pools.slots_of(pools.pages_of(slots)).tolist() == slots.tolist(), "POOL-4: and back"


@pytest.mark.parametrize(
    "slots",
    [
        [4, 5, 6],
        [5, 6, 7, 8],
        [7, 6, 5, 4],
        [4, 5, 6, 7, 8],
        [4, 5, 10, 11],
        [4, 9, 6, 7],
        [-4, -3, -2, -1],
        [4000] * 4,
    ],
    ids=["too few", "shifted", "reversed", "one more", "two halves", "a stranger within", "negative", "far away"],
)
def test_what_is_no_whole_page_is_refused(pools: DevicePools, slots: list[int]) -> None:
    with pytest.raises(SlotError, match="are not whole pages"):
        pools.pages_of(np.array(slots, dtype=np.int64))


# A state is copied when a request branches off: in the middle of the model's work, and often.


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operations on tensors: `all` by name, `crossing` those that have tensors on two devices."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.all: list[str] = []
        self.crossing: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        self.all.append(str(function))
        tensors = [one for one in tree_leaves((args, kwargs, made)) if isinstance(one, torch.Tensor)]
        if len({tensor.device for tensor in tensors}) > 1:
            self.crossing.append(str(function))
        return made


@pytest.mark.parametrize("layout", list(Layout))
def test_a_copy_of_a_state_sends_nothing_to_the_device(layout: Layout) -> None:
    config = two_tier_config(device_layout=layout, device="meta")
    pools = DevicePools(config, pool_specs(config))
    with Operations() as operations:
        pools.copy_state(pages_of(2), pages_of(5))
    assert not operations.crossing, f"each of these waits for all work of the model: {operations.crossing}"
    copies = operations.all.count("aten.copy_.default")
    assert copies == len(pools.buffers[Pool.MAMBA].raw), f"expected one copy for each tensor, got {operations.all}"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine")
def test_nobody_waits_for_a_copy_of_a_state_on_a_gpu() -> None:
    config = two_tier_config(device="cuda")
    pools = DevicePools(config, pool_specs(config))
    with warnings.catch_warnings():
        # Torch warns that this mode does not see every wait.
        warnings.simplefilter("ignore", UserWarning)
        try:
            torch.cuda.set_sync_debug_mode("error")
            pools.copy_state(pages_of(2), pages_of(5))
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("layout", list(Layout))
def test_a_copy_of_a_state_has_its_bytes_in_every_layer_and_changes_nothing_else(layout: Layout) -> None:
    config = two_tier_config(device_layout=layout)
    pools = DevicePools(config, pool_specs(config))
    fill(pools, seed=1)
    before = {pool: contents(pools, pool) for pool in Pool}
    pools.copy_state(pages_of(2), pages_of(5))
    before[Pool.MAMBA][5] = before[Pool.MAMBA][2]
    for pool, own in before.items():
        assert np.array_equal(contents(pools, pool), own), f"{pool} after a copy of state 2 to 5"


# pool_specs: what one rank of a model holds of each pool.

OF_TWO = replace(SINGLE_RANK, tp_size=2)


def with_heads(kv_heads: int, *, is_mla: bool) -> CacheConfig:
    """The first of two tensor-parallel ranks of a model with so many heads."""
    config = two_tier_config()
    return replace(config, model=reshaped(config.model, kv_heads=kv_heads, is_mla=is_mla), topology=OF_TWO)


def heads_of(config: CacheConfig, pool: str) -> int:
    return pool_specs(config)[pool].buffers[0].shape[1]


@pytest.mark.parametrize("pool", [Pool.KV, Pool.SWA])
def test_ranks_divide_the_heads_of_a_model_unless_each_holds_all(pool: str) -> None:
    assert heads_of(with_heads(4, is_mla=False), pool) == 2, "RANK-5: two of four heads each"
    assert heads_of(with_heads(1, is_mla=True), pool) == 1, "STORE-1: with MLA every rank holds the same KV"


def test_a_model_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"axis 1 of kv\.kv \(2, 1, 4\) cannot be divided over tp_size=2"):
        pool_specs(with_heads(1, is_mla=False))
