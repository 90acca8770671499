"""PrefixDictionary: a prefix cache as somebody else may have written one, who never heard of these suites."""

from __future__ import annotations

from itertools import islice, takewhile

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.int64]


class PrefixDictionary:
    """One slot for each prefix, in a dictionary. The least recent prefix comes first, and after all that extend it."""

    def __init__(self, capacity: int) -> None:
        self.free = set(range(1, capacity + 1))
        self.taken: set[int] = set()
        self.slots: dict[bytes, int] = {}
        self.pins: dict[object, bytes] = {}

    def take(self, count: int) -> Array | None:
        """So many slots, in exchange for prefixes if need be, or None."""
        missing = max(0, count - len(self.free))
        if len(self._loose(missing)) < missing:
            return None
        self.drop(missing)
        taken = [self.free.pop() for _ in range(count)]
        self.taken.update(taken)
        return np.array(taken, dtype=np.int64)

    def give(self, slots: Array) -> None:
        """Take slots back. Raises ValueError on a slot that is not taken."""
        given = self.taken.intersection(slots.tolist())
        if len(given) != len(slots):
            raise ValueError(f"of the slots {slots} only {sorted(given)} are taken")
        self.taken -= given
        self.free |= given

    def find(self, tokens: npt.NDArray[np.int32]) -> tuple[bytes, Array]:
        """The longest known prefix, and the slot of each of its tokens."""
        found = list(takewhile(self.slots.__contains__, _prefixes(tokens)))
        self._use(found)
        return found[-1] if found else b"", np.array([self.slots[prefix] for prefix in found], dtype=np.int64)

    def keep(self, tokens: npt.NDArray[np.int32], slots: Array) -> int:
        """Know these tokens by these slots. How many of them were known already, by slots of their own."""
        prefixes = _prefixes(tokens)
        known = sum(prefix in self.slots for prefix in prefixes)
        self.slots.update(zip(prefixes[known:], slots[known:].tolist(), strict=True))
        self.taken.difference_update(slots[known:].tolist())
        self._use(prefixes)
        return known

    def pin(self, prefix: bytes) -> object:
        """Keep a prefix from being dropped until it is unpinned."""
        pin = object()
        self.pins[pin] = prefix
        return pin

    def unpin(self, pin: object) -> None:
        """Give up a pin. Raises KeyError when there is none."""
        del self.pins[pin]

    def drop(self, count: int) -> int:
        """Forget so many prefixes, or all that are not pinned; how many."""
        victims = self._loose(count)
        self.free.update(self.slots.pop(prefix) for prefix in victims)
        return len(victims)

    def clear(self) -> None:
        """Forget all prefixes and pins."""
        self.pins.clear()
        self.drop(len(self.slots))

    def _loose(self, most: int) -> list[bytes]:
        loose = (prefix for prefix in self.slots if not any(pin.startswith(prefix) for pin in self.pins.values()))
        return list(islice(loose, most))

    def _use(self, prefixes: list[bytes]) -> None:
        for prefix in reversed(prefixes):
            self.slots[prefix] = self.slots.pop(prefix)


def _prefixes(tokens: npt.NDArray[np.int32]) -> list[bytes]:
    return [tokens[:end].tobytes() for end in range(1, len(tokens) + 1)]
