"""Fetching: a prefetch that somebody waits for, as its driver knows it."""

from __future__ import annotations

from dataclasses import dataclass

from hicache.types import Handle, Key


@dataclass(frozen=True, slots=True, eq=False)
class Fetching:
    """A prefetch that was neither checked to its end nor aborted.

    `before`: elements that a match got when it began. `gains`: how many more it got since, after each verb.
    """

    ticket: Handle
    key: Key
    before: int
    gains: set[int]
