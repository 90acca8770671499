"""The model of a storage backend: which answers it accepts, and which not."""

from __future__ import annotations

import pytest

from hicache.errors import InvariantError
from hicache.testing.storage.model import StorageModel, usable
from hicache.types import HitPolicy

ALL, TRAILING = HitPolicy.ALL_PAGES, HitPolicy.TRAILING_PAGES


@pytest.fixture
def model() -> StorageModel:
    """A scope that loses nothing, with version 1 of `a` in it."""
    made = StorageModel(forgets=False)
    made.was_set("a", 1, True)
    return made


def test_what_was_kept_first_stays(model: StorageModel) -> None:
    model.was_set("a", 2, True)
    model.was_got("a", [1])
    with pytest.raises(InvariantError, match="STORE-5"):
        model.was_got("a", [2])


def test_what_was_kept_is_there(model: StorageModel) -> None:
    model.was_looked_for("a", True)
    with pytest.raises(InvariantError, match="STORE-4"):
        model.was_got("a", None)
    with pytest.raises(InvariantError, match="STORE-4"):
        model.was_looked_for("a", False)


def test_what_was_never_kept_is_not_there(model: StorageModel) -> None:
    model.was_got("b", None)
    model.was_looked_for("b", False)
    with pytest.raises(InvariantError, match="STORE-7"):
        model.was_got("b", [1])
    with pytest.raises(InvariantError, match="STORE-7"):
        model.was_looked_for("b", True)


def test_what_was_cleared_is_gone(model: StorageModel) -> None:
    model.was_cleared(True)
    assert model.keys == [], f"nothing is left, got {model.keys}"
    with pytest.raises(InvariantError, match="STORE-7"):
        model.was_looked_for("a", True)


@pytest.mark.parametrize("refused", ["set", "clear"])
def test_where_nothing_is_in_its_way_nothing_is_refused(model: StorageModel, refused: str) -> None:
    with pytest.raises(InvariantError, match="True"):
        model.was_set("b", 1, False) if refused == "set" else model.was_cleared(False)


def test_an_interrupted_write_is_whole_or_absent_until_it_was_seen(model: StorageModel) -> None:
    model.was_interrupted("b", 3)
    assert model.may_hold("b") == {3, None}, f"expected version 3 or absent, got {model.may_hold('b')}"
    model.was_got("b", [3])
    with pytest.raises(InvariantError, match="STORE-4"):
        model.was_got("b", None)


def test_an_interrupted_write_over_what_is_there_changes_nothing(model: StorageModel) -> None:
    model.was_interrupted("a", 3)
    assert model.may_hold("a") == {1}, f"what is there stays, got {model.may_hold('a')}"


def test_where_objects_may_go_they_may_go_and_nothing_else() -> None:
    model = StorageModel(forgets=True)
    model.was_set("a", 1, True)
    model.was_got("a", None)
    model.was_got("a", [1])
    model.was_set("b", 1, False)
    model.was_got("b", [1])
    with pytest.raises(InvariantError, match="STORE-5"):
        model.was_got("b", [2])
    with pytest.raises(InvariantError, match="STORE-7"):
        model.was_got("c", [1])


@pytest.mark.parametrize(
    ("there", "policy", "trailing", "expected"),
    [
        ("k0 k1 k2", ALL, 0, 0),
        ("k0 k1 k2 m0 m1", ALL, 0, 2),
        ("k0 k1 k2 m1", TRAILING, 1, 2),
        ("k0 k1 k2 m0 m2", TRAILING, 2, 1),
        ("k0 k1 k2 m1 m2", TRAILING, 2, 3),
        ("k1 k2 m0 m1 m2", ALL, 0, 0),
    ],
)
def test_the_longest_prefix_is_searched_for(there: str, policy: HitPolicy, trailing: int, expected: int) -> None:
    found = usable(["k0", "k1", "k2"], [(["m0", "m1", "m2"], policy, trailing)], set(there.split()))
    assert found == expected, f"{there}, {policy}, {trailing}: expected {expected}, got {found}"


def test_exists_is_held_to_what_is_there_for_certain_and_what_may_be(model: StorageModel) -> None:
    model.was_interrupted("b", 1)
    model.was_asked(["a", "b"], [], 1)
    model.was_asked(["a", "b"], [], 2)
    with pytest.raises(InvariantError, match="STORE-2"):
        model.was_asked(["a", "b"], [], 0)
    with pytest.raises(InvariantError, match="STORE-2"):
        model.was_asked(["a", "c"], [], 2)
