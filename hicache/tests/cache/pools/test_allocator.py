"""PageAllocator against plain sets: what is handed out, what comes back, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache.errors import SlotError
from hicache.pools.allocator import PageAllocator
from hicache.types import Slots

CAPACITY = 5
EVERY_PAGE = set(range(1, CAPACITY + 1))

ALLOCATE = st.integers(0, CAPACITY + 1)
FREE = st.lists(st.integers(1, CAPACITY), max_size=CAPACITY, unique=True)
FREE_ANYTHING = st.lists(st.integers(-2, CAPACITY + 3), max_size=CAPACITY + 3)
ACTIONS = st.lists(st.one_of(ALLOCATE, FREE, FREE_ANYTHING), max_size=30)
"""Numbers of pages to allocate, and pages to free."""


def pages_of(numbers: list[int]) -> Slots:
    return np.array(numbers, dtype=np.int64)


def free_pages(allocator: PageAllocator) -> list[int]:
    free: list[int] = sorted(allocator.free_set().tolist())
    assert len(free) == allocator.free_pages, f"{allocator.free_pages} pages are counted as free, these are: {free}"
    return free


def allocate(allocator: PageAllocator, held: set[int], pages: int) -> None:
    taken = allocator.allocate(pages)
    if pages > CAPACITY - len(held):
        assert taken is None, f"POOL-3: {pages} pages of which {CAPACITY - len(held)} are free: got {taken}"
        return
    assert taken is not None, f"POOL-3: {pages} pages of which {CAPACITY - len(held)} are free: got None"
    fresh = set(taken.tolist())
    assert len(fresh) == pages, f"expected {pages} different pages, got {taken}"
    assert fresh <= EVERY_PAGE - held, f"POOL-2: {fresh & held} are handed out twice, {fresh - EVERY_PAGE} do not exist"
    held |= fresh


def free(allocator: PageAllocator, held: set[int], pages: list[int]) -> None:
    if set(pages) <= held and len(set(pages)) == len(pages):
        allocator.free(pages_of(pages))
        held -= set(pages)
        return
    with pytest.raises(SlotError):
        allocator.free(pages_of(pages))


@given(ACTIONS)
def test_pages_are_conserved_as_a_set(actions: list[int | list[int]]) -> None:
    allocator, held = PageAllocator("full", CAPACITY), set[int]()
    for action in actions:
        if isinstance(action, int):
            allocate(allocator, held, action)
        else:
            free(allocator, held, action)
        expected = sorted(EVERY_PAGE - held)
        assert free_pages(allocator) == expected, f"POOL-1: after {action} expected {expected} to be free"


@pytest.mark.parametrize(
    ("pages", "reason"),
    [
        ([1, 4], r"pages \[4\] are free already"),
        ([0], r"pages \[0\] are free already, or not in 1..5"),
        ([1, 6, 7, -1], r"pages \[6, 7, -1\] are free already, or not in 1..5"),
        ([1, 2, 1], r"pages \[1\] are named twice"),
        ([1] * 20, r"named twice"),
    ],
    ids=["free already", "the padding page", "foreign", "named twice", "more than there are"],
)
def test_a_refusal_names_the_pages_and_changes_nothing(pages: list[int], reason: str) -> None:
    allocator = PageAllocator("full", CAPACITY)
    held = allocator.allocate(3)
    assert held is not None, "an empty pool has room"
    with pytest.raises(SlotError, match=reason):
        allocator.free(pages_of(pages))
    assert free_pages(allocator) == [4, 5], "POOL-2: a refused call changes nothing"
    allocator.free(held)
    assert free_pages(allocator) == [1, 2, 3, 4, 5], "POOL-2: what was held can still be given back"


def test_a_negative_number_of_pages_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot allocate -1 pages"):
        PageAllocator("full", CAPACITY).allocate(-1)
