"""Pages: each is free, reserved or confirmed, for all calls of writers in any order."""

from __future__ import annotations

from collections import OrderedDict
from copy import deepcopy

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hicache.storage.hf3fs.pages import NO_PAGE, Pages, Stored

AGE_LIMIT_S = 10.0
NUM_PAGES = 5
KEYS = st.lists(st.sampled_from("abcdefgh"), max_size=6)
WRITTEN = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, NUM_PAGES - 1)), max_size=3)
RELEASED = st.lists(st.integers(0, NUM_PAGES - 1), max_size=3)


def fresh(num_pages: int = 3) -> Pages:
    return Pages(Stored(num_pages, OrderedDict(), {}), 0.0)


def reserve(pages: Pages, *keys: str, now_s: float = 0.0) -> list[tuple[bool, int]]:
    return pages.reserve(keys, now_s, AGE_LIMIT_S, None).indices


def keep(pages: Pages, *keys: str) -> None:
    found = reserve(pages, *keys)
    pages.confirm([(key, page) for key, (_, page) in zip(keys, found, strict=True)], [], None)


def test_the_last_page_is_handed_out_first_and_then_the_least_recently_used() -> None:
    pages = fresh()
    keep(pages, "a", "b", "c")
    assert list(pages._keys.items()) == [("a", 2), ("b", 1), ("c", 0)], "from the last one on"
    pages.find(["a"])
    pages.exist(["b"])
    found = pages.reserve(["d", "e"], 0.0, AGE_LIMIT_S, None)
    assert (found.indices, found.evicted) == ([(False, 1), (False, 0)], 2), "b and c: only find is a use"
    assert pages.exist("abc") == [True, False, False], "a was used last"


def test_what_is_freed_is_handed_out_first() -> None:
    pages = fresh(5)
    keep(pages, "a", "b", "c")
    pages.remove(["b", "a", "nobody"])
    assert reserve(pages, "d", "e", "f") == [(False, 4), (False, 3), (False, 1)], (
        "a's, b's, and one that was never used"
    )


def test_a_key_twice_in_a_batch_gets_one_page() -> None:
    pages = fresh()
    assert reserve(pages, "x", "x", "y") == [(False, 2), (False, 2), (False, 1)], "one page for x"
    done = pages.confirm([("x", 2), ("x", 2), ("y", 1)], [], None)
    assert done.refused == [], f"a page confirmed twice was written twice: {done}"
    assert pages.usage == (3, 2, 0, 1), f"two keys with a page, none reserved, one free: {pages.usage}"


def test_two_writers_of_a_key_leave_one_page() -> None:
    pages = fresh()
    (_, first), (_, second) = *reserve(pages, "a"), *reserve(pages, "a")
    assert pages.confirm([("a", second)], [], None).refused == [], "who is first has the key"
    done = pages.confirm([("a", first)], [], None)
    assert (done.refused, done.change.freed) == ([], [first]), f"the other's page is free again: {done}"
    assert pages.find(["a"]) == [second], "the page that readers got stays"


def test_a_batch_larger_than_all_pages_is_told_so() -> None:
    pages = fresh()
    keep(pages, "a", "b")
    found = reserve(pages, "a", *"cdef")
    assert found == [(True, 2), (False, 0), (False, 1), (False, NO_PAGE), (False, NO_PAGE)], f"a is kept: {found}"
    assert reserve(pages, "g") == [(False, 2)], "another batch may take a's page"
    assert reserve(pages, "h") == [(False, NO_PAGE)], "now all are being written"


def test_a_page_whose_writer_says_nothing_is_handed_out_again() -> None:
    pages = fresh(1)
    assert reserve(pages, "a") == [(False, 0)], "the only page"
    assert reserve(pages, "b", now_s=AGE_LIMIT_S - 1) == [(False, NO_PAGE)], "its writer has time"
    found = pages.reserve(["b"], AGE_LIMIT_S, AGE_LIMIT_S, None)
    assert (found.indices, found.evicted, found.change.freed) == ([(False, 0)], 0, [0]), f"but no longer: {found}"
    assert pages.confirm([("a", 0)], [], None).refused == [0], "a late writer is refused"
    assert pages.confirm([("b", 0)], [], None).refused == [], "whose page it is now can confirm it"


def test_a_clear_leaves_what_is_being_written() -> None:
    pages = fresh()
    keep(pages, "a")
    reserve(pages, "b")
    pages.clear()
    assert reserve(pages, "c", "d", "e") == [(False, 2), (False, 0), (False, NO_PAGE)], "page 1 is being written"
    assert pages.confirm([("b", 1)], [], None).refused == [], "and can be confirmed"


class PagesMachine(RuleBasedStateMachine):
    """Any order of requests, good and bad ones, while time goes by."""

    def __init__(self) -> None:
        super().__init__()
        self.pages, self.now_s = fresh(NUM_PAGES), 0.0

    @rule(keys=KEYS)
    def reserve(self, keys: list[str]) -> None:
        """A batch gets pages that differ, and keeps those that it got."""
        found = self.pages.reserve(keys, self.now_s, AGE_LIMIT_S, None)
        told = {key: page for key, (_, page) in zip(keys, found.indices, strict=True)}
        taken = [page for page in told.values() if page != NO_PAGE]
        assert len(set(taken)) == len(taken), f"two keys got one page: {told}"
        there = {key for key, (is_there, _) in zip(keys, found.indices, strict=True) if is_there}
        seen = {key for key, is_there in zip(keys, self.pages.exist(keys), strict=True) if is_there}
        assert there == seen, f"expected {there}, got {seen}"

    @rule(written=WRITTEN, released=RELEASED)
    def confirm(self, written: list[tuple[str, int]], released: list[int]) -> None:
        """What is refused changes nothing, which the invariant tells."""
        self.pages.confirm(written, released, None)

    @rule(keys=KEYS, seconds=st.floats(0, AGE_LIMIT_S))
    def use(self, keys: list[str], seconds: float) -> None:
        """Look keys up, later."""
        self.now_s += seconds
        assert [page is not None for page in self.pages.find(keys)] == self.pages.exist(keys), "both say the same"

    @rule(keys=KEYS)
    def remove(self, keys: list[str]) -> None:
        """Remove keys."""
        self.pages.remove(keys)
        assert not any(self.pages.exist(keys)), f"{keys} are gone"

    @rule()
    def clear(self) -> None:
        """Remove all."""
        self.pages.clear()

    @invariant()
    def each_page_is_in_one_place(self) -> None:
        """All pages but the reserved ones can be handed out, each once."""
        keys, reserved = len(self.pages._keys), set(self.pages._reserved)
        counted = (NUM_PAGES, keys, len(reserved), NUM_PAGES - keys - len(reserved))
        assert self.pages.usage == counted, f"expected {counted}, got {self.pages.usage}"
        found = deepcopy(self.pages).reserve([f"new{number}" for number in range(NUM_PAGES)], 0.0, 1.0, None)
        pages = sorted(page for _, page in found.indices if page != NO_PAGE)
        assert pages == sorted({*range(NUM_PAGES)} - reserved), f"each page once: {pages}, and reserved {reserved}"


TestAnyOrderOfRequests = PagesMachine.TestCase
