"""The checks of a backend's answers: the cache reads all of them here, and an invalid value is a miss."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hicache.storage.base import accepted_pages
from hicache.types import HitPolicy


class Reading(NamedTuple):
    """What an answer says: how many of the first pages are done, or which can be used. `flaw`: what is invalid."""

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


def ends_usable(keys: int, trailing_pages: int, answer: object) -> Reading:
    """Read the answer of `has` about a pool of which a prefix needs the last pages.

    The number of the result is a set: bit n - 1 is set if the pool has the last `trailing_pages` of n pages, or all of
    them if n is less.
    """
    flaw = pages_done(answer, keys).flaw
    if flaw or not isinstance(answer, (list, tuple)):
        return Reading(0, flaw)
    ends = np.zeros(keys + 1, bool)
    ends[list(accepted_pages(answer, HitPolicy.TRAILING_PAGES, trailing_pages))] = True
    return Reading(int.from_bytes(np.packbits(ends[1:], bitorder="little").tobytes(), "little"), "")


def is_cleared(answer: object) -> Reading:
    """Read the answer of `clear`: a bool. One page is done if all objects were removed."""
    return Reading(int(answer is True), "" if type(answer) is bool else f"expected a bool, got {type(answer).__name__}")


def is_closed(_: object) -> Reading:
    """Ignore the value that `close` returns."""
    return Reading(0, "")
