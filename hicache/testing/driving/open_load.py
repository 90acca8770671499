"""OpenLoad: the driver's record of a load that its caller waits for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hicache.testing.violation import violation
from hicache.types import Handle, Key, Pool, Slots, TransferPhase


@dataclass(slots=True, eq=False)
class OpenLoad:
    """A load that was neither claimed nor abandoned.

    `key`: the prefix that is on the device after the load. `before`: the FULL slots from the root to the device anchor.
    `indices`: those from there to the prefix's end. `phase`: the phase when it was last read. `ready`: per pool, the
    layers that were readable by then.
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

    def record_phase(self, phase: TransferPhase) -> None:
        """Record the phase of the load. Raises InvariantError when it went back or ended twice (FLOW-4)."""
        goes_back = self.phase.has_ended or _ORDER[phase] < _ORDER[self.phase]
        if phase is not self.phase and goes_back:
            raise violation("FLOW-4", f"a load that was {self.phase.value}", "a later phase, and one end", phase.value)
        self.phase = phase

    def record_ready(self, pool: Pool, ready: frozenset[int]) -> None:
        """Record the readable layers of a pool. Raises InvariantError when one is no longer readable (HOST-6)."""
        known = self.ready.get(pool, frozenset())
        if not known <= ready:
            raise violation(
                "HOST-6", f"readable layers of {pool.value}", f"at least {sorted(known)} as before", sorted(ready)
            )
        self.ready[pool] = ready


_ORDER = {phase: min(number, 2) for number, phase in enumerate(TransferPhase)}
"""The order of phases: queued, running, and the ends, which are equal."""
