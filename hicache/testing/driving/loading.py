"""Loading: a load that somebody waits for, as its driver knows it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hicache.testing.violation import violation
from hicache.types import Handle, Key, Pool, Slots, TransferPhase


@dataclass(slots=True, eq=False)
class Loading:
    """A load that was neither claimed nor abandoned.

    `key`: the prefix that is on the device when it has ended. `before`: the FULL slots from the root to the device
    anchor. `indices`: those from there to the prefix's end. `phase`: how far it had come at the last look. `ready`: per
    pool, the layers that could be read by then.
    """

    ticket: Handle
    key: Key
    before: Slots
    indices: Slots
    phase: TransferPhase
    ready: dict[Pool, frozenset[int]]

    @property
    def slots(self) -> Slots:
        """The FULL slots of the whole prefix."""
        return np.concatenate((self.before, self.indices))

    def look(self, phase: TransferPhase) -> None:
        """Take in how far the load has come. Raises InvariantError when it went back, or ended twice (FLOW-4)."""
        goes_back = self.phase.has_ended or _ORDER[phase] < _ORDER[self.phase]
        if phase is not self.phase and goes_back:
            raise violation(
                "FLOW-4", f"a load that was {self.phase.value}", "it to go on, and to end once", phase.value
            )
        self.phase = phase

    def read(self, pool: Pool, ready: frozenset[int]) -> None:
        """Take in which layers of a pool can be read. Raises InvariantError when one can be read no more (HOST-6)."""
        known = self.ready.get(pool, frozenset())
        if not known <= ready:
            raise violation(
                "HOST-6", f"layers of {pool.value} that may be read", f"{sorted(known)} as before", sorted(ready)
            )
        self.ready[pool] = ready


_ORDER = {phase: min(number, 2) for number, phase in enumerate(TransferPhase)}
"""Queued, running, and the three ways to end."""
