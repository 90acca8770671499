"""What a driver remembers of running requests, and of load-backs and prefetches that a caller waits for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from hicache.testing.violation import violation
from hicache.types import Handle, Key, Slots, TransferPhase


@dataclass(slots=True, eq=False)
class RunningRequest:
    """A running request.

    `table`: its FULL slots, those of the tree before its own. `tables`: of an adapter with TABLES, the slots of every
    component; else empty. `owner`: its number in the lock book. `computed_tokens`: how many tokens the model has
    computed. `awaited`: while the request waits for a load, the number of slots at the start of the table that are not
    its own, including those that are being loaded; None when it waits for nothing. `kv_tokens`: with `tables`, the
    tokens that FULL and SWA have; more than are computed when they are cached at scheduling. `is_early`: all tokens
    were computed while the request waited, from the layers that it had waited for. `reserved_until`: for how many
    tokens it got slots at its admission: those of its prompt, and the output that it reserved.
    """

    request: Handle
    key: Key
    table: Slots
    state: int | None
    owner: int
    computed_tokens: int
    awaited: int | None
    tables: Mapping[str, Slots] = field(default_factory=dict)
    kv_tokens: int = 0
    is_early: bool = False
    reserved_until: int = 0

    @property
    def slot_tokens(self) -> int:
        """How many tokens its slots are for, without a lookahead."""
        return max(len(self.key.tokens), self.reserved_until)

    @property
    def is_loading(self) -> bool:
        """Whether a part of the cached prefix is still being loaded."""
        return self.awaited is not None

    def computed(self) -> Key:
        """The tokens computed so far, as a key."""
        return self.upto(self.computed_tokens)

    def upto(self, tokens: int) -> Key:
        """The first `tokens` tokens of the request, as a key."""
        return replace(self.key, tokens=self.key.tokens[:tokens])

    def own_slots(self, in_tree: npt.NDArray[np.bool_], *, duplicates: bool) -> Slots:
        """The slots that belong to the request alone. `in_tree`: whether the tree has a slot.

        They are at the table's end, unless the request keeps `duplicates` of what the tree has.
        """
        if self.awaited is not None:
            return self.table[self.awaited :]
        shared = in_tree[self.table]
        count = int(shared.sum())
        if duplicates:
            return self.table[~shared]
        if not shared[:count].all():
            place = f"table of a request of {len(self.key.tokens)} tokens"
            raise violation("REQ-4", place, "all slots of the tree before its own", shared.tolist())
        own: Slots = self.table[count:]
        return own


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
    ready: dict[str, frozenset[int]]

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

    def record_ready(self, pool: str, ready: frozenset[int]) -> None:
        """Record the readable layers of a pool. Raises InvariantError when one is no longer readable (HOST-6)."""
        known = self.ready.get(pool, frozenset())
        if not known <= ready:
            raise violation(
                "HOST-6", f"readable layers of {pool}", f"at least {sorted(known)} as before", sorted(ready)
            )
        self.ready[pool] = ready


_ORDER = {phase: min(number, 2) for number, phase in enumerate(TransferPhase)}
"""The order of phases: queued, running, and the ends, which are equal."""


@dataclass(frozen=True, slots=True, eq=False)
class OpenPrefetch:
    """A prefetch that was neither checked to its end nor aborted.

    `before`: elements that a match found when the prefetch began. `gains`: how many more it found since, after each
    verb.
    """

    ticket: Handle
    key: Key
    before: int
    gains: set[int]

    def record_length(self, elements: int) -> None:
        """Record how many elements a match finds now."""
        self.gains.add(max(0, elements - self.before))

    def require_gain(self, tokens: int) -> None:
        """Raise InvariantError when a match never gained as many tokens as the prefetch reports (FLOW-10)."""
        if tokens not in self.gains:
            place = f"a prefetch for {len(self.key.tokens)} tokens, {self.before} of them cached before"
            raise violation("FLOW-10", place, f"one of the gains of a match, {sorted(self.gains)}", tokens)
