"""Ledger: the slots that the caller holds, needed to check conservation as a partition of each pool."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hicache.config import CacheConfig
from hicache.testing.violation import violation
from hicache.types import PADDING_SLOT, Component, Slots


class Ledger:
    """The FULL slots that the caller holds, the SWA partner of each (0: none), and the states it holds.

    Stored as arrays over all slot numbers, as a replay holds millions of slots.
    """

    def __init__(self, config: CacheConfig) -> None:
        self._components = config.components
        self._is_held: npt.NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self._partners: Slots = np.zeros(0, dtype=np.int64)
        self._states: set[int] = set()
        self._grow(config.capacity_tokens[Component.FULL] + config.page_size)

    def take(self, slots: Slots, partners: Slots | None) -> None:
        """Record slots that the caller received. Raises InvariantError when it already holds one of them (POOL-2)."""
        if not len(slots):
            return
        self._grow(int(slots.max()) + 1)
        twice = slots[self._is_held[slots]]
        if len(twice) or len(np.unique(slots)) != len(slots) or int(slots.min()) <= PADDING_SLOT:
            raise violation("POOL-2", "allocated slots", "new, distinct slots above 0", _shown(twice, slots))
        self._is_held[slots] = True
        self._partners[slots] = 0 if partners is None else partners

    def give(self, slots: Slots) -> None:
        """Record slots that the caller gave away. Raises InvariantError when it did not hold one of them (POOL-2)."""
        if not self.holds(slots):
            raise violation("POOL-2", "freed slots", "an error, as the caller does not hold them", slots.tolist())
        self._is_held[slots] = False
        self._partners[slots] = 0

    def holds(self, slots: Slots) -> bool:
        """Whether the caller holds all of these slots."""
        if not len(slots):
            return True
        in_range = int(slots.min()) >= 0 and int(slots.max()) < len(self._is_held)
        return in_range and bool(self._is_held[slots].all())

    def drop_partners(self, slots: Slots) -> None:
        """Record that the SWA partners of slots were freed; the caller keeps the FULL slots."""
        if not self.holds(slots):
            raise violation(
                "POOL-2", "freed SWA partners", "an error, as the caller does not hold them", slots.tolist()
            )
        self._partners[slots] = 0

    def partners(self) -> tuple[Slots, Slots]:
        """The FULL slots that the caller holds, and the SWA partner of each, 0 where it was freed."""
        full = np.flatnonzero(self._is_held)
        return full, self._partners[full]

    def take_state(self, slot: int) -> None:
        """Record a state slot that the caller received."""
        if slot in self._states or slot <= PADDING_SLOT:
            raise violation("POOL-2", "allocated state", f"a new slot above 0, not in {sorted(self._states)}", slot)
        self._states.add(slot)

    def give_state(self, slot: int) -> None:
        """Record a state slot that the caller gave away."""
        if slot not in self._states:
            raise violation("POOL-2", "freed state", f"an error, as the caller holds only {sorted(self._states)}", slot)
        self._states.remove(slot)

    def held(self) -> dict[str, Slots]:
        """The slots that the caller holds, by component."""
        full, partners = self.partners()
        by_component = {
            Component.FULL.value: full,
            Component.SWA.value: partners[partners != 0],
            Component.MAMBA.value: np.array(sorted(self._states), dtype=np.int64),
        }
        return {component: by_component[component] for component in self._components}

    def _grow(self, size: int) -> None:
        missing = size - len(self._is_held)
        if missing > 0:
            self._is_held = np.concatenate((self._is_held, np.zeros(missing, dtype=np.bool_)))
            self._partners = np.concatenate((self._partners, np.zeros(missing, dtype=np.int64)))


def _shown(twice: Slots, slots: Slots) -> str:
    return f"{twice.tolist()} held already" if len(twice) else f"{slots.tolist()}"
