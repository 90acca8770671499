"""Requests alone: what every cache owes its requests, whatever its design. No test calls a verb of the tree."""

from __future__ import annotations

import pytest

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import SHARED, Namespace

from .scenario import FULL, admit, cached_pages, decode, run, tokens_in_pages

REQUESTS = (Capability.REQUESTS,)
LOOKING = (*REQUESTS, Capability.SNAPSHOT, Capability.SIZES)


def free_pages(driver: Driver) -> int:
    """The pages of FULL that are free now: no request has them, and nothing is cached there."""
    return driver.adapter.sizes()[FULL].free // driver.config.page_size


# KEY-1, MATCH-1: what is found.


@clause("KEY-1", "MATCH-1", needs=REQUESTS, components=(FULL,), verbs=False)
def test_the_whole_pages_of_a_finished_prompt_are_cached(driver: Driver) -> None:
    run(driver, [1, 2, 3])
    for pages, expected in (([1, 2, 3], 3), ([1, 2, 3, 4], 3), ([1, 2], 2), ([1, 9, 3], 1), ([2, 3], 0)):
        found = cached_pages(driver, pages)
        assert found == expected, f"MATCH-1: (1, 2, 3) was computed: expected {expected} pages of {pages}, got {found}"


@clause("KEY-2", "SEC-3", needs=REQUESTS, verbs=False)
def test_a_prompt_is_cached_in_its_namespace_alone(driver: Driver) -> None:
    run(driver, [1, 2])
    other = Namespace(lora=None, salt="another", tenant=None)
    assert cached_pages(driver, [1, 2], SHARED) == 2, "KEY-2: expected the prompt in the namespace that computed it"
    found = cached_pages(driver, [1, 2], other)
    assert found == 0, f"SEC-3: expected nothing cached under another salt, got {found} pages"


@clause("MATCH-14", needs=REQUESTS, verbs=False)
def test_nothing_is_found_of_an_unknown_prompt(driver: Driver) -> None:
    found = cached_pages(driver, [7, 8])
    assert found == 0, f"MATCH-14: nothing was computed: expected 0 pages, got {found}"


@clause("SEC-2", needs=(*REQUESTS, Capability.COLLISIONS), verbs=False)
def test_a_prompt_whose_hashes_collide_finds_nothing_of_another(driver: Driver) -> None:
    with driver.adapter.colliding():
        run(driver, [1, 2, 3])
        for pages in ([4, 5, 6], [4, 2, 3], [2, 1, 3]):
            found = cached_pages(driver, pages)
            assert found == 0, f"SEC-2: all hashes are equal: expected nothing for {pages}, got {found} pages"
        run(driver, [4, 2, 3])
        both = [cached_pages(driver, pages) for pages in ([1, 2, 3], [4, 2, 3])]
        assert both == [3, 3], f"SEC-2: all hashes are equal: expected 3 pages of each prompt, got {both}"


# REQ-1: what is cached, and when.


@clause("REQ-1", needs=REQUESTS, verbs=False)
def test_decoded_tokens_are_cached_with_their_prompt(driver: Driver) -> None:
    admission = admit(driver, [1, 2])
    decode(driver, admission, [3, 4])
    driver.finish(admission.request)
    found = cached_pages(driver, [1, 2, 3, 4])
    assert found == 4, f"REQ-1: two pages were decoded after a prompt of two: expected 4 pages cached, got {found}"


@clause("REQ-1", "REQ-4", "POOL-1", needs=LOOKING, verbs=False)
@pytest.mark.parametrize("chunks", [(3,), (1, 3), (2, 3)], ids=str)
def test_equal_prompts_in_one_batch_each_read_their_own_pages(driver: Driver, chunks: tuple[int, ...]) -> None:
    admissions = [admit(driver, [1, 2, 3], tail=1) for _ in range(2)]
    for count in chunks:
        for admission in admissions:
            # The driver compares the bytes at every slot of the table with those that were written for the prompt.
            driver.checkpoint(admission.request, tokens_in_pages(driver, count))
    third = admit(driver, [1, 2, 3], tail=1)
    for admission in (*admissions, third):
        driver.finish(admission.request)
    found = cached_pages(driver, [1, 2, 3])
    assert found == 3, f"REQ-1: three requests computed three pages: expected them cached, got {found}"


@clause("REQ-1", "POOL-1", needs=LOOKING, verbs=False)
def test_a_prompt_that_is_sent_again_while_it_runs_is_computed_beside_it(driver: Driver) -> None:
    first = admit(driver, [1, 2, 3, 4], tail=1)
    driver.checkpoint(first.request, tokens_in_pages(driver, 2))
    second = admit(driver, [1, 2, 3, 4], tail=1)
    for admission in (second, first):
        driver.checkpoint(admission.request, tokens_in_pages(driver, 4))
    driver.abort(first.request)
    driver.finish(second.request)
    found = cached_pages(driver, [1, 2, 3, 4])
    assert found == 4, f"REQ-1: a request computed four pages and finished: expected them cached, got {found}"


# EVICT-1, EVICT-2: what makes room.


@clause("EVICT-1", needs=LOOKING, verbs=False)
def test_nothing_cached_is_evicted_while_free_slots_suffice(driver: Driver) -> None:
    run(driver, [1, 2, 3])
    run(driver, [4], tail=1)
    others = list(range(100, 100 + free_pages(driver)))
    driver.abort(admit(driver, others).request)
    found = cached_pages(driver, [1, 2, 3])
    assert found == 3, f"EVICT-1: the request took free slots alone: expected 3 pages to stay cached, got {found}"


@clause("EVICT-2", needs=LOOKING, verbs=False)
def test_a_prefix_that_was_used_outlives_one_that_was_not(driver: Driver) -> None:
    run(driver, [1, 2])
    run(driver, [3])
    # The use ends inside the first prompt. It is a use of page 1 alone.
    driver.abort(admit(driver, [1], tail=1).request)
    others = list(range(100, 102 + free_pages(driver)))
    driver.abort(admit(driver, others).request)
    left = {pages: cached_pages(driver, pages) for pages in ((1, 2), (3,))}
    expected = {(1, 2): 1, (3,): 0}
    assert left == expected, f"EVICT-2: two pages had to go, page 1 was used last: expected {expected}, got {left}"


# REQ-2: what is given back.


@clause("REQ-2", needs=LOOKING, verbs=False)
def test_every_slot_is_free_or_evictable_when_all_requests_have_ended(driver: Driver) -> None:
    admissions = [admit(driver, [1, 2, first], tail=1) for first in (3, 4, 3)]
    driver.checkpoint(admissions[0].request, tokens_in_pages(driver, 3))
    driver.abort(admissions[0].request)
    driver.finish(admissions[1].request)
    driver.abort(admissions[2].request)
    for component, sizes in driver.adapter.sizes().items():
        capacity = driver.config.capacity_tokens[component]
        assert sizes.free + sizes.evictable == capacity, (
            f"REQ-2: all requests have ended: expected {capacity} slots of {component} free or evictable, got {sizes}"
        )
