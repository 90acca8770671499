"""REQ-4: after an insert the table of a request has the slots that the tree kept."""

from __future__ import annotations

from itertools import permutations

import pytest

from hicache.testing.adapter import Admission, Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .checks import require_requests_released
from .scenario import FULL, admit, decode, find, hit_pages, key_of, put, tokens_in_pages
from .tree_view import device_slots, free_slots

PROMPT = (1, 2, 3, 4)


def elements(driver: Driver, pages: int) -> int:
    """Slots of so many pages."""
    return pages * driver.config.page_size


def tree_slots(driver: Driver, pages: int) -> list[int]:
    """The slots that the tree has of the prompt's first pages."""
    cached = device_slots(driver, FULL)
    return [slot for count in range(1, pages + 1) for slot in cached[PROMPT[:count]]]


@clause("REQ-4", needs=[Capability.SNAPSHOT], bigram=True)
def test_two_requests_that_compute_one_prefix_read_the_same_slots(driver: Driver) -> None:
    first, second = (admit(driver, PROMPT) for _ in range(2))
    shared = elements(driver, 3)
    own = set(second.table[:shared].tolist())
    assert not own & set(first.table.tolist()), "POOL-2: two requests were given the same slots"
    kept = driver.checkpoint(first.request, tokens_in_pages(driver, 3))[:shared].tolist()
    table = driver.checkpoint(second.request, tokens_in_pages(driver, 3))[:shared].tolist()
    assert table == kept == tree_slots(driver, 3), f"REQ-4: the tree kept {kept}, the second table says {table}"
    lost = own - free_slots(driver.snapshot())[FULL]
    assert not lost, f"REQ-4: the second request's duplicates {lost} are not free"
    for admission in (first, second):
        driver.finish(admission.request)
    assert hit_pages(driver, PROMPT) == 4, "REQ-4: both requests finished, and their prompt does not hit"


@clause("REQ-4", needs=[Capability.SNAPSHOT], bigram=True)
def test_the_table_past_the_chunk_is_unchanged(driver: Driver) -> None:
    admission = admit(driver, PROMPT, tail=1)
    put(driver, PROMPT[:2])
    table = driver.checkpoint(admission.request, tokens_in_pages(driver, 2))
    end = elements(driver, 2)
    assert table[:end].tolist() == tree_slots(driver, 2), f"REQ-4: the tree had these pages already, the table {table}"
    assert table[end:].tolist() == admission.table[end:].tolist(), "REQ-4: slots that were not inserted changed"
    driver.finish(admission.request)


@clause("REQ-4", bigram=True)
def test_the_next_match_returns_the_slots_of_the_table(driver: Driver) -> None:
    admission = admit(driver, PROMPT)
    for count in (1, 2, 4):
        table = driver.checkpoint(admission.request, tokens_in_pages(driver, count))
        found = driver.match(key_of(driver, PROMPT), chunked=True).device_indices.tolist()
        expected = table[: elements(driver, count)].tolist()
        assert found == expected, f"REQ-4: {count} pages are computed, the table says {expected}, a match gives {found}"
    decode(driver, admission, [5, 6])
    driver.finish(admission.request)
    find(driver, [*PROMPT, 5, 6])


@clause("REQ-4", "REQ-1", needs=[Capability.SNAPSHOT, Capability.SIZES], page_sizes=[1, 16])
@pytest.mark.parametrize("order", [*permutations(range(3))], ids=str)
def test_diverging_requests_keep_one_copy_of_their_prefix_in_any_order(driver: Driver, order: tuple[int, ...]) -> None:
    prompts = [PROMPT, [*PROMPT[:2], 7], PROMPT[:3]]
    admissions: list[Admission] = [admit(driver, pages) for pages in prompts]
    for number in order:
        driver.finish(admissions[number].request)
    require_requests_released(driver, f"three requests finished in the order {order}")
    stored, expected = driver.adapter.sizes()[FULL].evictable, elements(driver, 5)
    assert stored == expected, f"REQ-4: three prompts have five pages, {expected} slots; {stored} are held"


@clause("REQ-4", needs=[Capability.SNAPSHOT, Capability.SIZES], page_sizes=[3, 16, 64], bigram=True)
def test_a_page_that_prompts_share_in_part_is_not_cached(driver: Driver) -> None:
    opening = driver.prompt([1, 2])
    admissions = [driver.admit(driver.key([*opening, 500, last])) for last in (501, 502)]
    for admission in admissions:
        assert admission is not None, "REQ-5: two prompts of three pages fit"
        driver.finish(admission.request)
    require_requests_released(driver, "two requests finished that share a part of their last page")
    stored = driver.adapter.sizes()[FULL].evictable
    # With MAMBA neither has a state at the end of the last whole page.
    assert stored in (0, elements(driver, 2)), f"REQ-4: only whole pages can be kept, {stored} slots are held"
