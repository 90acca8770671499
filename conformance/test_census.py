"""HOST-10: every tensor that is indexed by slot comes back through each tier, or is declared as not restored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np

from hicache.config import ExecutorKind, WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import StopPolicy, Tier

from .scenario import Scenario
from .snapshot_values import Pages

if TYPE_CHECKING:
    from hicache.testing.census import SlotTensor

PROMPT = (1, 2, 3)
NEEDS = (Capability.CENSUS, Capability.SNAPSHOT)
EXECUTORS = (ExecutorKind.STEPPED, ExecutorKind.THREADED)
"""The census reads and writes the tensors themselves, which a model of CUDA does not let it."""

Rows = Mapping[str, Mapping[Pages, bytes]]
"""By the path of a tensor and the prefix that ends with a page: the rows of that page's slots."""


def census(driver: Scenario, turn: int) -> list[SlotTensor]:
    """Every tensor of the cache that is indexed by slot, filled with the values of a turn."""
    # Imported here because it needs torch, which a cache without a census may not need.
    from hicache.testing.census import find_slot_tensors

    adapter = driver.adapter
    found = find_slot_tensors(adapter.slot_roots(), adapter.slot_counts(), driver.config.page_size, adapter.slot_axes)
    for one in found:
        one.fill(turn)
    seen = {one.component for one in found}
    assert seen == {*driver.config.components}, f"HOST-10: expected tensors of each component, found those of {seen}"
    return found


def cached_rows(driver: Scenario, tensors: Sequence[SlotTensor]) -> Rows:
    """What each tensor has for each page that is cached on the device."""
    cached = {component: driver.device_slots(component) for component in driver.config.components}
    return {
        one.path: {
            pages: one.read(np.array(slots))
            for pages, slots in cached[one.component].items()
            if one.tokens_per_row < driver.config.page_size or _have_entries(driver, pages)
        }
        for one in tensors
    }


def _have_entries(driver: Scenario, pages: Pages) -> bool:
    """Whether the last of these pages has an entry of each sidecar. A row of a page without an entry means nothing."""
    return all(len(pages) - 1 in driver.stored_pages(pool, pages) for pool in driver.config.sidecars)


def require_restored(driver: Scenario, before: Rows, after: Rows, tier: Tier) -> None:
    """Exactly the tensors come back from a tier that are not declared as lost on it or above."""
    came = {path: rows for path, rows in after.items() if rows}
    assert came.keys() == before.keys(), f"HOST-10: expected rows of {sorted(before)}, loaded were {sorted(came)}"
    lost = {path for path, rows in came.items() if any(before[path].get(pages) != own for pages, own in rows.items())}
    passed = [Tier.HOST] if tier is Tier.HOST else [Tier.HOST, Tier.STORAGE]
    declared = {
        path
        for path in before
        for pattern, first in driver.adapter.not_restored.items()
        if first in passed and fnmatchcase(path, pattern)
    }
    assert lost == declared, (
        f"HOST-10: back from the {tier.value}, other rows than before in {sorted(lost)}; declared as not restored are "
        f"{sorted(declared)}"
    )


@clause("HOST-10", needs=NEEDS, executors=EXECUTORS, write_policies=[WritePolicy.WRITE_THROUGH])
def test_every_tensor_by_slot_comes_back_from_the_host(driver: Scenario) -> None:
    tensors = census(driver, turn=0)
    driver.put_on_both(PROMPT)
    before = cached_rows(driver, tensors)
    driver.evict_all()
    in_the_way = driver.allocate(driver.config.page_size)
    assert in_the_way is not None, "EVICT-1: the device is free"
    census(driver, turn=1)
    driver.load(driver.key_of(PROMPT))
    require_restored(driver, before, cached_rows(driver, tensors), Tier.HOST)
    driver.free(in_the_way)


@clause("HOST-10", needs=(*NEEDS, Capability.STORAGE), executors=EXECUTORS, stop_policies=[StopPolicy.WAIT_COMPLETE])
def test_every_tensor_by_slot_comes_back_from_storage(driver: Scenario) -> None:
    tensors = census(driver, turn=0)
    driver.put_on_both(PROMPT)
    before = cached_rows(driver, tensors)
    driver.put_in_storage_alone(PROMPT)
    tensors = census(driver, turn=1)
    came = driver.prefetch_pages(PROMPT)
    assert came == len(PROMPT), f"FETCH-4: all of {PROMPT} is in storage, {came} pages came"
    driver.load(driver.key_of(PROMPT))
    require_restored(driver, before, cached_rows(driver, tensors), Tier.STORAGE)
