"""The checks of a backend's answers: the cache reads all of them here, and an invalid value is a miss."""

from __future__ import annotations

from typing import NamedTuple


class Reading(NamedTuple):
    """What an answer says: how many of the first pages are done, or can be used. `flaw`: why it is none, or empty."""

    pages: int
    flaw: str


def pages_done(answer: object, keys: int) -> Reading:
    """Read the answer of `get` or `set`: a list or tuple of one bool for each key. A page is done if it `is True`."""
    if not isinstance(answer, (list, tuple)):
        return Reading(0, f"expected a list of {keys} bools, got {type(answer).__name__}")
    if len(answer) != keys:
        return Reading(0, f"expected a list of {keys} bools, got {len(answer)} answers")
    done = next((page for page, one in enumerate(answer) if one is not True), keys)
    others = [type(one).__name__ for one in answer if one is not True and one is not False]
    return Reading(done, f"expected {keys} bools, one is of type {others[0]}" if others else "")


def pages_usable(answer: object, keys: int) -> Reading:
    """Read the answer of `exists`: an int from 0 to the number of keys. A bool or a number of numpy is none."""
    if type(answer) is int and 0 <= answer <= keys:
        return Reading(answer, "")
    return Reading(0, f"expected an int from 0 to {keys}, got another number or {type(answer).__name__}")


def is_cleared(answer: object) -> Reading:
    """Read the answer of `clear`: a bool. One page is done if all objects were removed."""
    return Reading(int(answer is True), "" if type(answer) is bool else f"expected a bool, got {type(answer).__name__}")


def is_closed(_: object) -> Reading:
    """Ignore the value that `close` returns."""
    return Reading(0, "")
