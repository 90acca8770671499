"""Pages: the confirmed, reserved and free pages of one namespace, and the keys of confirmed pages."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from itertools import islice, takewhile
from typing import NamedTuple

NO_PAGE = -1
"""The answer for a key for which there is no page."""


class Change(NamedTuple):
    """A change, in this order: keys that lost their page, freed reservations, reserved pages, confirmed pages."""

    removed: Sequence[str] = ()
    freed: Sequence[int] = ()
    taken: Sequence[int] = ()
    confirmed: Sequence[tuple[str, int]] = ()


class Reserved(NamedTuple):
    """`indices`: for each key, whether it has a page already, and its page. `evicted`: how many keys were evicted."""

    indices: list[tuple[bool, int]]
    evicted: int
    change: Change


class Confirmed(NamedTuple):
    """`refused`: pages that were not reserved, or reserved for another key. All others were applied."""

    refused: list[int]
    change: Change


class Usage(NamedTuple):
    """The number of all pages, and of confirmed, reserved and free ones."""

    num_pages: int
    confirmed: int
    reserved: int
    free: int


class Reservation(NamedTuple):
    """The key that a page is reserved for, None if that is unknown after a restart, and the time."""

    key: str | None
    since_s: float


class Pages:
    """One namespace of one rank. Not thread-safe: the caller holds a lock.

    A page is free, reserved, or confirmed for one key. Pages in neither of `free` and `keys` become reserved.
    """

    def __init__(self, num_pages: int, free: Sequence[int], keys: Iterable[tuple[str, int]], now_s: float) -> None:
        self.num_pages = num_pages
        self._free = list(free)
        self._keys = OrderedDict(keys)
        lost = set(range(num_pages)).difference(self._free, self._keys.values())
        self._reserved = {page: Reservation(None, now_s) for page in sorted(lost)}

    @property
    def free_pages(self) -> list[int]:
        """Free pages; the last one is assigned first."""
        return list(self._free)

    @property
    def key_to_index(self) -> list[tuple[str, int]]:
        """Keys with their pages, the least recently used first."""
        return list(self._keys.items())

    @property
    def usage(self) -> Usage:
        """The numbers of confirmed, reserved and free pages."""
        return Usage(self.num_pages, len(self._keys), len(self._reserved), len(self._free))

    def exist(self, keys: Iterable[str]) -> list[bool]:
        """Whether each key has a page. Does not mark it as used."""
        return [key in self._keys for key in keys]

    def find(self, keys: Iterable[str]) -> list[int | None]:
        """The page of each key. Marks the keys as used."""
        return [self._use(key) for key in keys]

    def reserve(self, keys: Sequence[str], now_s: float, age_limit_s: float) -> Reserved:
        """Find the page of each key, or reserve one: a free one, else an expired reservation, else by an LRU eviction.

        No key of the batch is evicted for another. A key that occurs twice gets one page.
        """
        there = {key: page for key in keys if (page := self._use(key)) is not None}
        new = [key for key in dict.fromkeys(keys) if key not in there]
        freed = self._reclaim(now_s - age_limit_s) if len(new) > len(self._free) else []
        evicted = self._evict(len(new) - len(self._free), there)
        taken = {key: self._free.pop() for key in new[: len(self._free)]}
        self._reserved.update((page, Reservation(key, now_s)) for key, page in taken.items())
        indices = [(key in there, there.get(key, taken.get(key, NO_PAGE))) for key in keys]
        return Reserved(indices, len(evicted), Change(removed=evicted, freed=freed, taken=list(taken.values())))

    def confirm(self, written: Iterable[tuple[str, int]], released: Iterable[int]) -> Confirmed:
        """Confirm written pages for their keys, and free released ones. The first page confirmed for a key stays."""
        refused, freed, confirmed = list[int](), list[int](), list[tuple[str, int]]()
        for key, page in written:
            if self._keys.get(key) == page:
                continue
            reservation = self._reserved.get(page)
            if reservation is None or reservation.key not in (None, key):
                refused.append(page)
            elif key in self._keys:
                freed.append(self._free_reserved(page))
            else:
                del self._reserved[page]
                self._keys[key] = page
                confirmed.append((key, page))
        for page in released:
            if page in self._reserved:
                freed.append(self._free_reserved(page))
            else:
                refused.append(page)
        return Confirmed(refused, Change(freed=freed, confirmed=confirmed))

    def remove(self, keys: Iterable[str]) -> Change:
        """Free the pages of those keys that have one."""
        removed = [key for key in dict.fromkeys(keys) if key in self._keys]
        self._free.extend(self._keys.pop(key) for key in removed)
        return Change(removed=removed)

    def clear(self) -> Change:
        """Free all pages but the reserved ones."""
        removed = list(self._keys)
        self._keys.clear()
        self._free = [page for page in range(self.num_pages) if page not in self._reserved]
        return Change(removed=removed)

    def _use(self, key: str) -> int | None:
        if key not in self._keys:
            return None
        self._keys.move_to_end(key)
        return self._keys[key]

    def _evict(self, wanted: int, held: Collection[str]) -> list[str]:
        """Free the pages of `wanted` keys, least recently used first; fewer if only keys in `held` are left."""
        evicted = list(islice(self._keys, max(0, min(wanted, len(self._keys) - len(held)))))
        # The page that was evicted first is assigned first.
        self._free[:0] = [self._keys.pop(key) for key in evicted][::-1]
        return evicted

    def _reclaim(self, before_s: float) -> list[int]:
        """Free pages whose reservations have expired."""
        late = list(takewhile(lambda page: self._reserved[page].since_s <= before_s, self._reserved))
        return [self._free_reserved(page) for page in late]

    def _free_reserved(self, page: int) -> int:
        del self._reserved[page]
        self._free.append(page)
        return page
