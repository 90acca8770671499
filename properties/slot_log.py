"""SlotLog: what callers know of the slots of a component without a look into the cache: what is written, who reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum

import numpy as np
import numpy.typing as npt

from hicache.config import CacheConfig
from hicache.errors import InvariantError
from hicache.testing.driving.patterns import element_bytes, elements_of
from hicache.testing.violation import violation
from hicache.types import Key, Namespace, Slots

Place = tuple[Namespace, bytes]
"""What a slot is written for: a namespace, and all elements up to that of the slot."""


class Met(str, Enum):
    """What a search has to meet, or it tests nothing. Its value says it in words."""

    HIT = "hits"
    EVICTION = "evictions"
    REUSE = "freed slots that are handed out again"
    LOCKED_EVICTION = "locks held during an eviction"

    @property
    def demanded_by(self) -> str:
        """The clause by which a cache lets the search meet it. A cache that departs from it need not."""
        return {Met.HIT: "MATCH-1", Met.REUSE: "POOL-3"}.get(self, "EVICT-1")


class SlotLog:
    """The slots of one component, from the answers of the verbs alone.

    A slot that is handed out may be overwritten: what was written before is lost, unless its request ends before it
    writes there. A match may return only slots that have what was written for these tokens at this position. The cache
    may have any structure: it may keep less, keep duplicates, or keep what was computed and not inserted.
    `clause`: broken by a cache that hands out a slot with a reader. `met`: counts what the search meets.
    """

    def __init__(self, config: CacheConfig, clause: str, met: Counter[Met]) -> None:
        self._bigram = config.bigram
        self._clause = clause
        self._met = met
        self._written: dict[int, Place] = {}
        self._before: dict[int, Place] = {}
        self._kept: set[int] = set()
        self._handed_out: set[int] = set()
        self._readers: dict[str, frozenset[int]] = {}

    # Who has which slots.

    def hand_out(self, slots: Slots, place: str, held: Iterable[int] = ()) -> None:
        """Record slots that a caller received. Raises InvariantError if they are not distinct, or one has an owner.

        `held`: the slots that callers had before.
        """
        given = slots.tolist()
        owners = dict.fromkeys(held, "which its caller holds")
        for slot in given:
            if slot in owners:
                raise violation("POOL-2", place, "slots without an owner", f"slot {slot}, {owners[slot]}")
            owners[slot] = "which it returned twice"
            reader = next((name for name, own in self._readers.items() if slot in own), None)
            if reader is not None:
                raise violation(self._clause, place, "no slot with a reader", f"slot {slot}, which {reader} reads")
        self._lose(set(given))

    def _lose(self, slots: set[int]) -> None:
        self._met[Met.REUSE] += len(slots & self._handed_out)
        self._handed_out |= slots
        lost = {self._written[slot] for slot in slots & self._kept}
        for slot in slots & self._written.keys():
            self._before[slot] = self._written.pop(slot)
        self._kept -= slots
        if lost - set(self._written.values()):
            self.evicted()

    def evicted(self) -> None:
        """Record that something cached was evicted."""
        self._met[Met.EVICTION] += 1
        self._met[Met.LOCKED_EVICTION] += any(self._readers.values())

    def protect(self, reader: str, slots: Slots) -> None:
        """From now on the reader reads these slots, and no others."""
        self._readers[reader] = frozenset(slots.tolist())

    def release(self, reader: str) -> None:
        """The reader has ended. What it was given and has not written has what it had before."""
        for slot in self._readers.pop(reader, frozenset()) & self._before.keys():
            self._written[slot] = self._before.pop(slot)

    # What is written.

    def write(self, key: Key, slots: Slots, start: int = 0) -> None:
        """Record that the slots have the elements of a key from `start` on; slots past its end have nothing."""
        written = dict(zip(slots.tolist(), self._places(key)[start:], strict=False))
        self._written.update(written)
        self._before = {slot: place for slot, place in self._before.items() if slot not in written}

    def keep(self, slots: Slots) -> None:
        """The cache may keep what is written in these slots."""
        self._kept |= set(slots.tolist()) & self._written.keys()

    def forget(self, slots: Iterable[int]) -> None:
        """What is written there is not valid any more: its caller has freed the slots, or they were reset."""
        for slot in slots:
            self._before.pop(slot, None)
            self._written.pop(slot, None)
            self._kept.discard(slot)

    def reset(self, held: Iterable[int]) -> None:
        """The cache was emptied; only what callers hold is still valid."""
        self._readers.clear()
        self._before.clear()
        self.forget(self._written.keys() - set(held))

    def read(self, key: Key, slots: Slots, place: str, start: int = 0, held: Iterable[int] = ()) -> None:
        """Raise InvariantError unless the slots have the elements of the key from `start` on (MATCH-1).

        `held`: the slots that callers hold, and did not insert.
        """
        expected, held = self._places(key)[start:], frozenset(held)
        if len(slots) > len(expected):
            raise violation("MATCH-1", place, f"at most {len(expected)} slots", slots.tolist())
        for position, (slot, wanted) in enumerate(zip(slots.tolist(), expected, strict=False), start=start):
            if slot in held:
                raise self._wrong(place, position, f"slot {slot}, which its caller holds and has not inserted")
            if slot not in self._written:
                raise self._wrong(place, position, f"slot {slot}, where nothing is written since it was last free")
            if self._written[slot] != wanted:
                raise self._wrong(place, position, f"slot {slot}, which has {self._described(self._written[slot])}")

    def has(self, key: Key, slots: Slots, start: int) -> npt.NDArray[np.bool_]:
        """Whether each of the slots has the element of the key at its place, from `start` on."""
        found = np.zeros(len(slots), np.bool_)
        for position, (slot, place) in enumerate(zip(slots.tolist(), self._places(key)[start:], strict=False)):
            found[position] = self._written.get(slot) == place
        return found

    def found(self, key: Key, elements: int, place: str) -> None:
        """Record a hit. Raises InvariantError unless each of its elements is in some slot (MATCH-1)."""
        self._met[Met.HIT] += elements > 0
        present = set(self._written.values())
        known = sum(wanted in present for wanted in self._places(key)[:elements])
        if known < elements:
            raise violation("MATCH-1", place, f"at most the {known} elements that some slot has", f"{elements} found")

    def _wrong(self, place: str, position: int, actual: str) -> InvariantError:
        return violation("MATCH-1", place, f"at position {position} a slot with what was written for it", actual)

    def _described(self, place: Place) -> str:
        elements = len(place[1]) // element_bytes(self._bigram)
        return f"what was written for position {elements - 1} of another prompt"

    def _places(self, key: Key) -> list[Place]:
        elements, size = elements_of(key, self._bigram), element_bytes(self._bigram)
        return [(key.namespace, elements[:end]) for end in range(size, len(elements) + 1, size)]
