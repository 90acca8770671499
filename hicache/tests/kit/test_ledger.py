"""The ledger detects slots that are allocated twice, or freed by a caller that does not hold them."""

from __future__ import annotations

import pytest

from hicache.errors import InvariantError
from hicache.testing.driving.ledger import Ledger
from hicache.tests.kit.snapshots import FULL, MAMBA, SWA, slots, tiny_config


@pytest.fixture
def ledger() -> Ledger:
    book = Ledger(tiny_config(FULL, SWA, MAMBA))
    book.take(slots(2, 3, 6, 7), slots(4, 5, 2, 3))
    book.take_state(1)
    return book


def shown(ledger: Ledger) -> dict[str, list[int]]:
    return {component: sorted(held.tolist()) for component, held in ledger.held().items()}


def test_it_holds_what_was_taken_and_not_given(ledger: Ledger) -> None:
    ledger.give(slots(2, 3))
    ledger.drop_partners(slots(6, 7))
    ledger.take_state(4)
    ledger.give_state(1)
    expected = {FULL: [6, 7], SWA: [], MAMBA: [4]}
    assert shown(ledger) == expected, f"expected {expected}, got {shown(ledger)}"
    mapping = [held.tolist() for held in ledger.partners()]
    assert mapping == [[6, 7], [0, 0]], f"expected no partners for 6 and 7, got {mapping}"


def test_slots_beyond_the_capacity_are_kept_as_well(ledger: Ledger) -> None:
    ledger.take(slots(1000, 1001), slots(0, 0))
    assert shown(ledger)[FULL] == [2, 3, 6, 7, 1000, 1001], f"got {shown(ledger)[FULL]}"


@pytest.mark.parametrize("taken", [(2, 3), (8, 8), (0, 1)], ids=["held already", "named twice", "padding"])
def test_slots_that_cannot_be_allocated_fail(ledger: Ledger, taken: tuple[int, ...]) -> None:
    with pytest.raises(InvariantError, match="POOL-2: allocated slots"):
        ledger.take(slots(*taken), None)


@pytest.mark.parametrize("given", [(4, 5), (2000, 2001), (-1, 2)])
def test_slots_that_are_not_held_cannot_be_given(ledger: Ledger, given: tuple[int, ...]) -> None:
    with pytest.raises(InvariantError, match="POOL-2: freed slots"):
        ledger.give(slots(*given))
    with pytest.raises(InvariantError, match="POOL-2: freed SWA partners"):
        ledger.drop_partners(slots(*given))


def test_states_are_held_once(ledger: Ledger) -> None:
    for slot in (1, 0):
        with pytest.raises(InvariantError, match="POOL-2: allocated state"):
            ledger.take_state(slot)
    with pytest.raises(InvariantError, match="POOL-2: freed state"):
        ledger.give_state(2)
