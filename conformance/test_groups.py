"""POOL-12: a sidecar that has one entry for several pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

from hicache.config import ModelShape
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.hybrid_model import GROUPS
from hicache.types import Slots

from .scenario import Scenario

FORKS = ((1, 2, 3, 4, 5), (1, 2, 3, 8, 9), (1, 6, 7))
"""Prompts that part inside groups of two, three and four pages, and after them."""

GROUP_PAGES = pytest.mark.parametrize("group", [2, 3, 4])
ON_TIERS = (Capability.HOST, Capability.SNAPSHOT)


@contextmanager
def grouped(driver: Scenario, group: int) -> Iterator[Scenario]:
    """An empty cache whose sidecar has an entry for so many pages; what it has in every pool is checked at the end."""
    other = driver.open_variant(model=_model(driver, group))
    try:
        yield other
        other.check()
    finally:
        other.adapter.close()


def _model(driver: Scenario, group: int) -> ModelShape:
    model = driver.config.model
    assert model is not None, f"{driver.config.name} has a sidecar, and so a model"
    pools = [
        replace(pool, tokens_per_entry=group * driver.config.page_size) if pool.name == GROUPS else pool
        for pool in model.pools
    ]
    return replace(model, pools=tuple(pools))


def group_rows(driver: Scenario, prompts: Sequence[Sequence[int]]) -> dict[tuple[int, ...], int]:
    """The row of each whole group on the device, by the prefix that it ends."""
    found: dict[tuple[int, ...], int] = {}
    for prompt in prompts:
        slots: Slots = driver.match(driver.key_of(prompt), chunked=True).device_indices
        for page in driver.stored_pages(GROUPS, prompt):
            found[tuple(prompt[: page + 1])] = int(slots[page * driver.config.page_size]) // driver.config.page_size
    return found


@GROUP_PAGES
@clause("POOL-12")
def test_prompts_that_part_inside_a_group_share_no_row(driver: Scenario, group: int) -> None:
    with grouped(driver, group) as cache:
        for prompt in FORKS:
            cache.put_pages(prompt)
        rows = group_rows(cache, FORKS)
        assert len(rows) == len(set(rows.values())), f"POOL-12: expected a row for each group, got {rows}"
        for prompt in FORKS:
            cache.find(prompt)


@GROUP_PAGES
@clause("POOL-12")
def test_a_request_that_parts_inside_a_group_makes_the_entry_of_its_own(driver: Scenario, group: int) -> None:
    with grouped(driver, group) as cache:
        cache.put_pages(FORKS[0])
        for prompt in FORKS[1:]:
            cache.finish(cache.admit_pages(prompt, tail=1).request)
        for prompt in FORKS:
            cache.find(prompt)


@GROUP_PAGES
@clause("POOL-12", needs=ON_TIERS)
def test_groups_come_back_from_the_host(driver: Scenario, group: int) -> None:
    with grouped(driver, group) as cache:
        cache.put_on_host(*FORKS)
        for prompt in FORKS:
            cache.load(cache.key_of(prompt))


@GROUP_PAGES
@clause("POOL-12", needs=(*ON_TIERS, Capability.STORAGE))
def test_groups_come_back_from_storage(driver: Scenario, group: int) -> None:
    with grouped(driver, group) as cache:
        cache.put_in_storage_alone(*FORKS)
        names = {prompt: cache.object_keys(GROUPS, prompt) for prompt in FORKS}
        prefixes = {tuple(prompt[: page + 1]) for prompt in FORKS for page in cache.stored_pages(GROUPS, prompt)}
        stored = {names[prompt][page] for prompt in FORKS for page in cache.stored_pages(GROUPS, prompt)}
        lacking = stored - cache.store().objects.keys()
        assert len(stored) == len(prefixes), f"POOL-12: expected an object for each of {prefixes}, got {stored}"
        assert not lacking, f"POOL-12: all of {FORKS} was stored, {lacking} is missing"
        for prompt in FORKS:
            before = sum(cache.tier_hits(prompt))
            came = cache.prefetch_pages(prompt) if before < len(prompt) else 0
            assert before + came == len(prompt), f"FETCH-4: all of {prompt} is in storage, {came} pages came"
        for prompt in FORKS:
            cache.load(cache.key_of(prompt))


@GROUP_PAGES
@clause("POOL-12", needs=(*ON_TIERS, Capability.STORAGE))
def test_a_prefetch_begins_and_ends_inside_groups(driver: Scenario, group: int) -> None:
    prompt = FORKS[0]
    for begin in range(1, len(prompt)):
        with grouped(driver, group) as cache:
            # Nodes end at each page: what is stored of a group begins and ends inside it.
            cache.put_prefixes(prompt)
            cache.put_in_storage_alone(prompt)
            cache.put_pages(prompt[:begin])
            for end in range(begin + 1, len(prompt) + 1):
                came = cache.prefetch_pages(prompt[:end])
                assert came == 1, f"FETCH-4: {begin} of {prompt[:end]} are cached, expected one page, got {came}"
            cache.load(cache.key_of(prompt))


@GROUP_PAGES
@clause("POOL-12", needs=(*ON_TIERS, Capability.STORAGE))
def test_a_hit_ends_before_a_group_that_storage_lacks(driver: Scenario, group: int) -> None:
    prompt = FORKS[0]
    with grouped(driver, group) as cache:
        cache.put_prefixes(prompt)
        cache.put_in_storage_alone(prompt)
        last = cache.stored_pages(GROUPS, prompt)[-1]
        del cache.store().objects[cache.object_keys(GROUPS, prompt)[last]]
        came = cache.prefetch_pages(prompt)
        assert came == last, f"POOL-12: the entry of the group up to page {last} is lost: expected {last}, got {came}"
        cache.load(cache.key_of(prompt[:last]))
