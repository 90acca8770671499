"""Pages: the confirmed, reserved and free pages of one namespace, and the keys of confirmed pages."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

NO_PAGE = -1
"""The answer for a key for which there is no page."""

MAX_KEYS = 1 << 12
"""The most keys, and the most pages, of one request, so that each call does a bounded amount of work."""

MAX_PAGES = 1 << 24
"""The most pages of all namespaces together."""


class Change(NamedTuple):
    """A change: all keys lost their page, then pages were freed, reserved, and confirmed, in this order.

    `taken`: pages with their keys. `reservation`: the id of those, None if they have none.
    """

    cleared: bool = False
    freed: Sequence[int] = ()
    taken: Sequence[tuple[int, str]] = ()
    reservation: str | None = None
    confirmed: Sequence[tuple[str, int]] = ()


class Held(NamedTuple):
    """The key that a page is reserved for, and the id of the reservation; None for what is not known."""

    key: str | None
    id: str | None


class Stored(NamedTuple):
    """The pages of one namespace. `keys`: each with its page, the least recently used first. `reserved`: by page."""

    num_pages: int
    keys: OrderedDict[str, int]
    reserved: dict[int, Held]


class Reserved(NamedTuple):
    """`indices`: for each key, whether it has a page already, and its page. `evicted`: how many keys were evicted."""

    indices: list[tuple[bool, int]]
    evicted: int
    change: Change


class Confirmed(NamedTuple):
    """`refused`: pages that were not reserved, or reserved by another call or key. All others were applied."""

    refused: list[int]
    change: Change


class Usage(NamedTuple):
    """The number of all pages, and of confirmed, reserved and free ones."""

    num_pages: int
    confirmed: int
    reserved: int
    free: int


class Reservation(NamedTuple):
    """The key that a page is reserved for, None if that is unknown; the id of the call, None for none; the time."""

    key: str | None
    id: str | None
    since_s: float

    def is_of(self, reservation: str | None) -> bool:
        """Whether a writer that names this id, or none, may have made it."""
        return self.key is None or self.id == reservation


class Pages:
    """One namespace of one rank. Not thread-safe: the caller holds a lock.

    A page is free, reserved, or confirmed for one key. No call does more work than its keys ask for, however many
    pages there are. The last free page is assigned first. `stored`: its keys become those of this object.
    """

    def __init__(self, stored: Stored, now_s: float) -> None:
        self.num_pages = stored.num_pages
        used = [*stored.keys.values(), *stored.reserved]
        # Pages below this one were never used, and are in no list.
        self._fresh = min(used, default=self.num_pages)
        is_used = bytearray(self.num_pages - self._fresh)
        for page in used:
            is_used[page - self._fresh] = True
        self._free = [page for page, is_taken in enumerate(is_used, self._fresh) if not is_taken]
        self._cleared: list[OrderedDict[str, int]] = []
        self._keys = stored.keys
        self._reserved = {page: Reservation(*held, now_s) for page, held in stored.reserved.items()}
        self._disputed = set[int]()
        self._uses = 0

    @property
    def usage(self) -> Usage:
        """The numbers of confirmed, reserved and free pages."""
        return Usage(self.num_pages, len(self._keys), len(self._reserved), self._num_free)

    @property
    def used(self) -> Iterator[tuple[str, int]]:
        """The keys that were used, and perhaps some before them, in the order of their last use, with their pages."""
        return islice(self._keys.items(), max(0, len(self._keys) - self._uses), None)

    def exist(self, keys: Iterable[str]) -> list[bool]:
        """Whether each key has a page. Does not mark it as used."""
        return [key in self._keys for key in keys]

    def find(self, keys: Iterable[str]) -> list[int | None]:
        """The page of each key. Marks the keys as used."""
        return [self._use(key) for key in keys]

    def reserve(self, keys: Sequence[str], now_s: float, age_limit_s: float, reservation: str | None) -> Reserved:
        """Find the page of each key, or reserve one: a free one, else an expired reservation, else by an LRU eviction.

        No key of the batch is evicted for another. A key that occurs twice gets one page. `reservation`: a new id, for
        a writer that names it when it confirms.
        """
        there = {key: page for key in keys if (page := self._use(key)) is not None}
        new = [key for key in dict.fromkeys(keys) if key not in there]
        freed = self._reclaim(now_s - age_limit_s, len(new) - self._num_free)
        pages = [self._pop_free() for _ in range(min(len(new), self._num_free))]
        evicted = self._evict(len(new) - len(pages), there)
        taken = dict(zip(new, [*pages, *evicted.values()], strict=False))
        self._reserved.update((page, Reservation(key, reservation, now_s)) for key, page in taken.items())
        indices = [(key in there, there.get(key, taken.get(key, NO_PAGE))) for key in keys]
        named = reservation if taken else None
        reserved = [(page, key) for key, page in taken.items()]
        return Reserved(indices, len(evicted), Change(freed=freed, taken=reserved, reservation=named))

    def confirm(
        self, written: Iterable[tuple[str, int]], released: Iterable[int], reservation: str | None
    ) -> Confirmed:
        """Confirm written pages for their keys, and free released ones. The first page confirmed for a key stays.

        `reservation`: the id of the call that reserved these pages, None for a writer that did not ask for one. Without
        an id, a page whose reservation once expired is not released: its first writer may be the one who asks.
        """
        refused, freed, confirmed = list[int](), list[int](), list[tuple[str, int]]()
        for key, page in written:
            if self._keys.get(key) == page:
                continue
            held = self._reserved.get(page)
            if held is None or held.key not in (None, key) or not held.is_of(reservation):
                refused.append(page)
            elif key in self._keys:
                freed.append(self._free_reserved(page))
            else:
                del self._reserved[page]
                self._keys[key] = page
                # Up to the first use, keys are in the order in which they were confirmed.
                self._uses += self._uses > 0
                confirmed.append((key, page))
        for page in released:
            held = self._reserved.get(page)
            if held is None or not held.is_of(reservation) or (reservation is None and page in self._disputed):
                refused.append(page)
            else:
                freed.append(self._free_reserved(page))
        return Confirmed(refused, Change(freed=freed, confirmed=confirmed))

    def remove(self, keys: Iterable[str]) -> Change:
        """Free the pages of those keys that have one."""
        freed = [self._keys.pop(key) for key in dict.fromkeys(keys) if key in self._keys]
        self._free += freed
        return Change(freed=freed)

    def clear(self) -> Change:
        """Free all pages but the reserved ones. Their keys are dropped one by one, when the pages are reserved."""
        if not self._keys:
            return Change()
        self._cleared.append(self._keys)
        self._keys = OrderedDict()
        return Change(cleared=True)

    @property
    def _num_free(self) -> int:
        return self.num_pages - len(self._keys) - len(self._reserved)

    def _use(self, key: str) -> int | None:
        page = self._keys.get(key)
        if page is not None:
            self._keys.move_to_end(key)
            self._uses += 1
        return page

    def _pop_free(self) -> int:
        """A free page: one of a cleared key, else the one that was freed last, else one that was never used."""
        if self._cleared:
            page = self._cleared[-1].popitem()[1]
            if not self._cleared[-1]:
                self._cleared.pop()
            return page
        if self._free:
            return self._free.pop()
        self._fresh -= 1
        return self._fresh

    def _evict(self, wanted: int, held: Collection[str]) -> dict[str, int]:
        """Take the pages of `wanted` keys, least recently used first; fewer if only keys in `held` are left."""
        evicted = list(islice(self._keys, max(0, min(wanted, len(self._keys) - len(held)))))
        return {key: self._keys.pop(key) for key in evicted}

    def _reclaim(self, before_s: float, wanted: int) -> list[int]:
        """Free up to `wanted` pages whose reservations have expired, the oldest first."""
        oldest = islice(self._reserved.items(), max(0, wanted))
        late = [page for page, held in oldest if held.since_s <= before_s]
        self._disputed.update(late)
        return [self._free_reserved(page) for page in late]

    def _free_reserved(self, page: int) -> int:
        del self._reserved[page]
        self._free.append(page)
        return page
