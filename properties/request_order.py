"""RequestOrder: which cached pages a request may evict, by what the requests before it used, in any design."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hicache.config import CacheConfig
from hicache.testing.driving.prompts import aligned_count, cut
from hicache.types import Key, Namespace

Prefix = tuple[Namespace, bytes]


@dataclass(slots=True)
class CachedPrefix:
    """A prefix of whole pages. It was last used between `earliest` and `latest`.

    A use lasts from the admission of a request to its end. When a cache counts it, at the match, at the release or in
    between, the contract leaves open (MATCH-10).
    """

    key: Key
    is_cached: bool
    earliest: int
    latest: int


class RequestOrder:
    """The uses of each prefix of the prompts so far.

    `is_cached`: whether a whole prefix is cached. It must not ask the cache: a look-up may count as a use.
    `spares`: whether nothing may be evicted while free pages suffice.
    """

    def __init__(self, config: CacheConfig, is_cached: Callable[[Key], bool], *, spares: bool) -> None:
        self._config = config
        self._is_cached = is_cached
        self._spares = spares
        self._now = 0
        self._known: dict[Prefix, CachedPrefix] = {}
        self._running: dict[int, tuple[Key, int]] = {}

    def admitted(self, number: int, key: Key, cached: int) -> None:
        """Record that a request runs. `cached`: the elements of its hit."""
        self._now += 1
        self._running[number] = key, self._now
        for prefix in self._prefixes(cut(key, cached, self._config)):
            prefix.earliest = self._now
        self._look(key)

    def refused(self, key: Key) -> None:
        """Record that a prompt was looked up, or asked for without success: either may count as a use.

        What it evicted is another clause's, EVICT-13.
        """
        self._now += 1
        for prefix in self._prefixes(key):
            prefix.latest = self._now
        self._look()

    def extended(self, number: int, key: Key) -> None:
        """Record that a request has more tokens."""
        self._running[number] = key, self._running[number][1]
        self._look(key)

    def ended(self, number: int) -> None:
        """Record that a request has ended."""
        key, _ = self._running.pop(number)
        self._now += 1
        for prefix in self._prefixes(key):
            prefix.latest = self._now
        self._look(key)

    def cached_by(self, number: int) -> None:
        """Record that pages of a request may be cached since now."""
        self._now += 1
        self._look(self._running[number][0])

    def require_evictions(self, place: str, needed: int, free: int) -> None:
        """EVICT-1, EVICT-2: a verb took `needed` pages, of which `free` were free, and evicted what it had to.

        Nothing is evicted while free pages suffice. A prefix that no running request uses is not evicted while another
        is left of which every use had ended before the last use of the first one began.
        """
        in_use = {id(prefix) for key, _ in self._running.values() for prefix in self._prefixes(key)}
        before = [prefix for prefix in self._known.values() if prefix.is_cached and id(prefix) not in in_use]
        self._look()
        gone = [prefix for prefix in before if not prefix.is_cached]
        assert not gone or needed > free or not self._spares, (
            f"EVICT-1: {place}: {needed} pages were needed, {free} were free: expected no eviction, got {_shown(gone)}"
        )
        for evicted in gone:
            older = [prefix for prefix in before if prefix.is_cached and prefix.latest < evicted.earliest]
            assert not older, (
                f"EVICT-2: {place}: expected {_shown(older)} to go first, used until {older[0].latest}, got "
                f"{_shown([evicted])}, used at {evicted.earliest} or later"
            )

    def _look(self, key: Key | None = None) -> None:
        """Find which prefixes are cached, of one key alone if it is given."""
        for prefix in list(self._known.values()) if key is None else list(self._prefixes(key)):
            is_cached = self._is_cached(prefix.key)
            if is_cached and not prefix.is_cached:
                prefix.earliest = prefix.latest = self._now
            prefix.is_cached = is_cached

    def _prefixes(self, key: Key) -> Iterator[CachedPrefix]:
        for end in range(self._config.page_size, aligned_count(key, self._config) + 1, self._config.page_size):
            part = cut(key, end, self._config)
            place = part.namespace, part.tokens.tobytes()
            yield self._known.setdefault(place, CachedPrefix(part, False, 0, 0))


def _shown(prefixes: list[CachedPrefix]) -> list[list[int]]:
    return [prefix.key.tokens.tolist() for prefix in prefixes]
