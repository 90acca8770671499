"""What a caller holds: Ledger, the slots of each pool; and LockBook, the slots that each receipt protects."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hicache.config import CacheConfig
from hicache.errors import InvariantError
from hicache.testing.laws.slots import all_slots, node_slots
from hicache.testing.snapshot import Snapshot
from hicache.testing.violation import violation
from hicache.types import NO_SLOTS, PADDING_SLOT, Component, Slots, Tier


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


class LockBook:
    """The owners of locks on one tier, by number. An owner is a receipt or a request.

    The slots that an owner protects are found at the first check after it locked. A locked slot stays where it is, so
    that from then on each slot has as many locks as owners that protect it, until they release.
    The cache's own pins are not counted.
    """

    def __init__(self, components: Sequence[str], tier: Tier) -> None:
        self._components = components
        self._tier = tier
        self._protected: dict[int, Mapping[str, Slots]] = {}
        self._unseen: dict[int, frozenset[str]] = {}
        self._serial = 0

    def acquire(self, *, without: Collection[str] = ()) -> int:
        """Add an owner; the next check finds what it protects, of all components but these."""
        self._serial += 1
        self.renew(self._serial)
        self._unseen[self._serial] -= set(without)
        return self._serial

    def renew(self, owner: int) -> None:
        """Record that an owner may have moved its locks; the next check finds what it protects."""
        self._protected[owner] = dict.fromkeys(self._components, NO_SLOTS)
        self._unseen[owner] = frozenset(self._components)

    def release_window(self, owner: int) -> None:
        """Record that an owner protects no window any more; the next check finds whether it protects a state."""
        protected = dict(self._protected[owner])
        protected.update((name, NO_SLOTS) for name in (Component.SWA, Component.MAMBA) if name in protected)
        self._protected[owner] = protected
        unseen = self._unseen.get(owner, frozenset()) | {Component.MAMBA.value}
        self._unseen[owner] = unseen.intersection(self._components) - {Component.SWA.value}

    def release(self, owner: int) -> None:
        """Remove an owner and its locks."""
        del self._protected[owner]
        self._unseen.pop(owner, None)

    def clear(self) -> None:
        """Remove all owners."""
        self._protected.clear()
        self._unseen.clear()

    def __len__(self) -> int:
        return len(self._protected)

    def protected(self, owner: int, component: str) -> Slots | None:
        """The slots that an owner protects, or None before the first check after it locked."""
        return None if owner in self._unseen else self._protected[owner][component]

    def check(self, snapshot: Snapshot) -> None:
        """Raise InvariantError unless each slot has as many locks as owners that protect it (LOCK-2, LOCK-5).

        When several owners locked since the last check, their locks are indistinguishable: nothing is compared until at
        most one of them is left.
        """
        if len(self._unseen) > 1:
            return
        seen = {component: self._locked_anew(snapshot, component) for component in self._components}
        for owner, components in self._unseen.items():
            self._protected[owner] = {**self._protected[owner], **{name: seen[name] for name in components}}
        self._unseen.clear()

    def _locked_anew(self, snapshot: Snapshot, component: str) -> Slots:
        """The slots with one more lock than the known owners account for."""
        locked = list(self._locked(snapshot, component))
        owned = all_slots([protected[component] for protected in self._protected.values()])
        if not locked and not len(owned):
            return NO_SLOTS
        expected = np.bincount(owned, minlength=1 + max((int(own.max()) for own, _ in locked), default=0))
        surplus = -expected
        for own, count in locked:
            surplus[own] += count
        unseen = sum(component in components for components in self._unseen.values())
        wrong = (surplus < 0) | (surplus > unseen)
        if wrong.any():
            slot = int(wrong.argmax())
            raise self._violation(snapshot, component, slot, int(expected[slot]), int(surplus[slot]))
        return np.flatnonzero(surplus)

    def _locked(self, snapshot: Snapshot, component: str) -> Iterator[tuple[Slots, int]]:
        """The slots of each node that the caller locks, and the number of these locks."""
        host = snapshot.host
        for row, node in enumerate(snapshot.nodes):
            if self._tier is Tier.DEVICE:
                slots, count = node.slots[component], node.locks[component]
                count -= 0 if host is None else host.nodes[row].pins[component]
            else:
                assert host is not None, "a LockBook of the host needs a host tier"
                view = host.nodes[row]
                slots, count = view.slots[component], view.locks[component] - view.host_pins[component]
            if count and slots is not None:
                yield slots, count

    def _violation(self, snapshot: Snapshot, component: str, slot: int, expected: int, surplus: int) -> InvariantError:
        host = snapshot.host
        nodes = snapshot.nodes if self._tier is Tier.DEVICE or host is None else host.nodes
        in_tree = slot in all_slots(node_slots(nodes, component))
        where = "" if self._tier is Tier.DEVICE else " on the host"
        locks = f"a lock count of {expected}, from as many receipts and requests"
        actual = f"{expected + surplus}" if in_tree else "a slot that is not in the tree"
        return violation("LOCK-2" if in_tree else "LOCK-5", f"{component} slot {slot}{where}", locks, actual)


def _shown(twice: Slots, slots: Slots) -> str:
    return f"{twice.tolist()} held already" if len(twice) else f"{slots.tolist()}"
