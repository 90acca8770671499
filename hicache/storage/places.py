"""Where objects lie in slots, and what is said of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Place(NamedTuple):
    """Where an object lies, and what it should be.

    `generation`: unlike that of any other object that there ever was; 0 for a page in a slot that is still reserved.
    """

    key: str
    generation: int
    slot_bytes: int
    slot: int
    length: int
    checksum: int


class Reserved(NamedTuple):
    """Slots that are to be written, ascending; and how many objects went to make room."""

    slots: list[int]
    removed: int


class Loan(NamedTuple):
    """What is being read or counted on, and must stay: keys, where their objects lie, and the generations of those.

    `mark`: of the state that was seen.
    """

    keys: Sequence[str]
    places: Sequence[Place | None]
    generations: Sequence[int]
    mark: int


@dataclass(frozen=True, slots=True)
class Change:
    """A transaction, and the keys of the objects that it adds and removes."""

    tables: sqlite3.Connection
    added: list[str]
    removed: list[str]
