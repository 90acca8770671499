"""DictionaryAdapter: the smallest adapter, a template for others; PrefixDictionary: the cache that it adapts."""

from __future__ import annotations

from itertools import islice, takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from hicache.config import CacheConfig
from hicache.errors import ConfigurationError
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.types import EvictResult, Handle, InsertResult, Key, MatchResult, Slots

Array = npt.NDArray[np.int64]


class DictionaryAdapter(CacheAdapter):
    """Pages of one token, one namespace, FULL alone, LRU. A handle is a prefix."""

    interface = 2
    capabilities = frozenset({Capability.VERBS, Capability.RESET})

    def __init__(self, config: CacheConfig) -> None:
        if config.components != ("full",) or config.page_size != 1:
            raise ConfigurationError(f"no cache of {config.components} in pages of {config.page_size} tokens")
        self.cache = PrefixDictionary(config.capacity_tokens["full"])

    def allocate(self, tokens: int) -> Slots | None:
        return self.cache.take(tokens)

    def free(self, slots: Slots) -> None:
        self.cache.give(slots)

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        prefix, slots = self.cache.find(key.tokens)
        return MatchResult(slots, prefix, prefix, 0, {}, None)

    def insert(
        self, key: Key, slots: Slots, *, shared: int, window_start: int, state: int | None, priority: int
    ) -> InsertResult:
        known = self.cache.keep(key.tokens, slots)
        self.cache.give(slots[shared:known])
        return InsertResult(known, len(slots), key.tokens.tobytes(), state_adopted=False)

    def lock(self, handle: Handle) -> Handle:
        return self.cache.pin(handle)

    def unlock(self, receipt: Handle) -> None:
        self.cache.unpin(receipt)

    def evict(self, component: str, tokens: int) -> EvictResult:
        dropped = self.cache.drop(tokens)
        return EvictResult({component: dropped}, dropped, refused=0)

    def reset(self) -> None:
        self.cache.clear()


class PrefixDictionary:
    """A prefix cache that was written without any knowledge of these suites.

    It has one slot per prefix, in a dictionary, the least recently used first and a prefix after its extensions.
    """

    def __init__(self, capacity: int) -> None:
        self.free = set(range(1, capacity + 1))
        self.taken: set[int] = set()
        self.slots: dict[bytes, int] = {}
        self.pins: dict[object, bytes] = {}

    def take(self, count: int) -> Array | None:
        """Take `count` free slots, dropping prefixes if needed; None when there are too few."""
        missing = max(0, count - len(self.free))
        if len(self._unpinned(missing)) < missing:
            return None
        self.drop(missing)
        taken = [self.free.pop() for _ in range(count)]
        self.taken.update(taken)
        return np.array(taken, dtype=np.int64)

    def give(self, slots: Array) -> None:
        """Give slots back. Raises ValueError on a slot that is not taken."""
        given = self.taken.intersection(slots.tolist())
        if len(given) != len(slots):
            raise ValueError(f"of the slots {slots} only {sorted(given)} are taken")
        self.taken -= given
        self.free |= given

    def find(self, tokens: npt.NDArray[Any]) -> tuple[bytes, Array]:
        """The longest cached prefix, and the slot of each of its tokens."""
        found = list(takewhile(self.slots.__contains__, _prefixes(tokens)))
        self._use(found)
        return found[-1] if found else b"", np.array([self.slots[prefix] for prefix in found], dtype=np.int64)

    def keep(self, tokens: npt.NDArray[Any], slots: Array) -> int:
        """Cache these tokens with these slots. Returns how many of them were cached before, with other slots."""
        prefixes = _prefixes(tokens)
        known = sum(prefix in self.slots for prefix in prefixes)
        self.slots.update(zip(prefixes[known:], slots[known:].tolist(), strict=True))
        self.taken.difference_update(slots[known:].tolist())
        self._use(prefixes)
        return known

    def pin(self, prefix: bytes) -> object:
        """Protect a prefix from `drop` until it is unpinned."""
        pin = object()
        self.pins[pin] = prefix
        return pin

    def unpin(self, pin: object) -> None:
        """Remove a pin. Raises KeyError when there is none."""
        del self.pins[pin]

    def drop(self, count: int) -> int:
        """Remove `count` prefixes, or all that are not pinned; returns how many."""
        victims = self._unpinned(count)
        self.free.update(self.slots.pop(prefix) for prefix in victims)
        return len(victims)

    def clear(self) -> None:
        """Remove all prefixes and pins."""
        self.pins.clear()
        self.drop(len(self.slots))

    def _unpinned(self, limit: int) -> list[bytes]:
        unpinned = (prefix for prefix in self.slots if not any(pin.startswith(prefix) for pin in self.pins.values()))
        return list(islice(unpinned, limit))

    def _use(self, prefixes: list[bytes]) -> None:
        for prefix in reversed(prefixes):
            self.slots[prefix] = self.slots.pop(prefix)


def _prefixes(tokens: npt.NDArray[Any]) -> list[bytes]:
    return [tokens[:end].tobytes() for end in range(1, len(tokens) + 1)]
