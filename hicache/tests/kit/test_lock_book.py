"""The lock book records which slots each receipt protects, whatever happens to the nodes later."""

from __future__ import annotations

import pytest

from hicache.errors import InvariantError
from hicache.testing.driving.lock_book import LockBook
from hicache.testing.snapshot import Snapshot
from hicache.tests.kit.snapshots import FULL, below, host_tier, node, slots, snapshot
from hicache.types import Tier


def tree(*locks: int) -> Snapshot:
    """A chain of nodes of one token, slot 1 first, with these lock counts."""
    return snapshot(
        [node((place,), {FULL: slots(place + 1)}, locks={FULL: count}) for place, count in enumerate(locks)], {}
    )


@pytest.fixture
def book() -> LockBook:
    return LockBook((FULL,), Tier.DEVICE)


def protected(book: LockBook, owner: int) -> list[int] | None:
    found = book.protected(owner, FULL)
    return None if found is None else found.tolist()


def test_each_owner_protects_what_was_locked_when_it_came(book: LockBook) -> None:
    first = book.acquire()
    assert protected(book, first) is None, "expected None before the first check"
    book.check(tree(1, 1, 0))
    second = book.acquire()
    book.check(tree(2, 1, 0))
    found = (protected(book, first), protected(book, second))
    assert found == ([1, 2], [1]), f"expected ([1, 2], [1]), got {found}"


def test_a_release_must_take_its_own_locks_and_no_others(book: LockBook) -> None:
    first = book.acquire()
    book.check(tree(1, 1))
    book.acquire()
    book.check(tree(2, 1))
    book.release(first)
    for locks in ((1, 1), (2, 0), (0, 0)):
        with pytest.raises(InvariantError, match=r"LOCK-2: full slot \d, which [01] receipts or requests protect"):
            book.check(tree(*locks))
    book.check(tree(1, 0))


def test_a_locked_slot_that_is_gone_fails(book: LockBook) -> None:
    book.acquire()
    book.check(tree(0, 1))
    with pytest.raises(InvariantError, match=r"LOCK-5: full slot 2, .*got a slot that is not in the tree"):
        book.check(tree(0))


def test_an_owner_locks_a_slot_at_most_once(book: LockBook) -> None:
    book.acquire()
    with pytest.raises(InvariantError, match=r"LOCK-2: full slot 1, .*expected 0 locks, got 2 locks"):
        book.check(tree(2))


def test_a_renewed_owner_may_protect_other_slots(book: LockBook) -> None:
    owner = book.acquire()
    book.check(tree(1, 0))
    book.renew(owner)
    book.check(tree(1, 1))
    assert protected(book, owner) == [1, 2], f"expected [1, 2], got {protected(book, owner)}"


def test_owners_that_locked_together_are_not_compared(book: LockBook) -> None:
    first, second = book.acquire(), book.acquire()
    book.check(tree(2, 1))
    assert (protected(book, first), protected(book, second)) == (None, None), "expected None for both owners"
    book.release(first)
    book.check(tree(1, 0))
    assert protected(book, second) == [1], f"the other is alone: expected [1], got {protected(book, second)}"


def test_a_cleared_book_expects_no_locks(book: LockBook) -> None:
    book.acquire()
    book.check(tree(1))
    book.clear()
    book.check(tree(0))
    with pytest.raises(InvariantError, match="LOCK-2"):
        book.check(tree(1))


def two_tiers(locks: int, pins: int, host_locks: int, host_pins: int) -> Snapshot:
    """One node of one token, slot 1 on the device and slot 2 on the host."""
    view = below({FULL: slots(2)}, locks={FULL: host_locks}, pins={FULL: pins}, host_pins={FULL: host_pins})
    return snapshot([node((0,), {FULL: slots(1)}, locks={FULL: locks})], {}, host_tier([view], {}))


def test_pins_of_the_cache_have_no_owner(book: LockBook) -> None:
    book.check(two_tiers(2, 2, 0, 0))
    owner = book.acquire()
    book.check(two_tiers(3, 2, 0, 0))
    assert protected(book, owner) == [1], f"expected [1], got {protected(book, owner)}"
    with pytest.raises(InvariantError, match=r"LOCK-2: full slot 1, which 1 receipts .*expected 1 locks, got 2 locks"):
        book.check(two_tiers(3, 1, 0, 0))


def test_locks_on_the_host_have_a_book_of_their_own(book: LockBook) -> None:
    host_book = LockBook((FULL,), Tier.HOST)
    book.check(two_tiers(0, 0, 3, 2))
    owner = host_book.acquire()
    host_book.check(two_tiers(0, 0, 3, 2))
    assert protected(host_book, owner) == [2], f"expected host slot 2, got {protected(host_book, owner)}"
    with pytest.raises(InvariantError, match=r"LOCK-2: full slot 2 on the host, .*expected 1 locks, got 0 locks"):
        host_book.check(two_tiers(0, 0, 2, 2))
    with pytest.raises(InvariantError, match=r"LOCK-5: full slot 2 on the host, .*got a slot that is not in the tree"):
        host_book.check(snapshot([], {}, host_tier([], {})))
