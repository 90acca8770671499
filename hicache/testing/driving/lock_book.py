"""LockBook: what each receipt protects, slot by slot, so that every lock count can be recomputed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hicache.errors import InvariantError
from hicache.testing.laws.conservation import all_slots, node_slots
from hicache.testing.snapshot import Snapshot
from hicache.testing.violation import violation
from hicache.types import NO_SLOTS, Slots, Tier


class LockBook:
    """Owners of locks on one tier by number: a receipt or a request each.

    What an owner protects is seen at the first look after it locked. A locked slot stays where it is whatever
    happens around it, so that from then on each slot is locked as often as owners protect it, until they release.
    The cache's own pins are left out.
    """

    def __init__(self, components: Sequence[str], tier: Tier) -> None:
        self._components = components
        self._tier = tier
        self._protected: dict[int, Mapping[str, Slots]] = {}
        self._unseen: set[int] = set()
        self._serial = 0

    def acquire(self) -> int:
        """A new owner, whose locks the next look will show."""
        self._serial += 1
        self.renew(self._serial)
        return self._serial

    def renew(self, owner: int) -> None:
        """An owner may have moved its locks; the next look will show where to."""
        self._protected[owner] = dict.fromkeys(self._components, NO_SLOTS)
        self._unseen.add(owner)

    def release(self, owner: int) -> None:
        """An owner is gone, and its locks with it."""
        del self._protected[owner]
        self._unseen.discard(owner)

    def clear(self) -> None:
        """All owners are gone."""
        self._protected.clear()
        self._unseen.clear()

    def __len__(self) -> int:
        return len(self._protected)

    def protected(self, owner: int, component: str) -> Slots | None:
        """The slots that an owner protects, or None while that was not seen."""
        return None if owner in self._unseen else self._protected[owner][component]

    def look(self, snapshot: Snapshot) -> None:
        """Raise InvariantError unless each slot is locked as often as owners protect it (LOCK-2, LOCK-5).

        Of two owners that locked since the last look none can be told: nothing is compared until all but one are gone.
        """
        if len(self._unseen) > 1:
            return
        seen = {component: self._locked_anew(snapshot, component) for component in self._components}
        for owner in self._unseen:
            self._protected[owner] = seen
        self._unseen.clear()

    def _locked_anew(self, snapshot: Snapshot, component: str) -> Slots:
        """The slots with one lock more than the owners that were seen account for."""
        locked = list(self._locked(snapshot, component))
        owned = all_slots([protected[component] for protected in self._protected.values()])
        if not locked and not len(owned):
            return NO_SLOTS
        expected = np.bincount(owned, minlength=1 + max((int(own.max()) for own, _ in locked), default=0))
        surplus = -expected
        for own, count in locked:
            surplus[own] += count
        wrong = (surplus < 0) | (surplus > len(self._unseen))
        if wrong.any():
            slot = int(wrong.argmax())
            raise self._violation(snapshot, component, slot, int(expected[slot]), int(surplus[slot]))
        return np.flatnonzero(surplus)

    def _locked(self, snapshot: Snapshot, component: str) -> Iterator[tuple[Slots, int]]:
        """The slots of each node that somebody outside the cache locks, and how often."""
        host = snapshot.host
        for row, node in enumerate(snapshot.nodes):
            if self._tier is Tier.DEVICE:
                slots, count = node.slots[component], node.locks[component]
                count -= 0 if host is None else host.nodes[row].pins[component]
            else:
                assert host is not None, "a book of host locks is kept where there is a host tier"
                view = host.nodes[row]
                slots, count = view.slots[component], view.locks[component] - view.host_pins[component]
            if count and slots is not None:
                yield slots, count

    def _violation(self, snapshot: Snapshot, component: str, slot: int, expected: int, surplus: int) -> InvariantError:
        host = snapshot.host
        nodes = snapshot.nodes if self._tier is Tier.DEVICE or host is None else host.nodes
        in_tree = slot in all_slots(node_slots(nodes, component))
        where = "" if self._tier is Tier.DEVICE else " on the host"
        place = f"{component} slot {slot}{where}, which {expected} receipts or requests protect"
        actual = f"{expected + surplus} locks" if in_tree else "a slot that is not in the tree"
        return violation("LOCK-2" if in_tree else "LOCK-5", place, f"{expected} locks", actual)
