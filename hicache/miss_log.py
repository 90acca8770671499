"""MissLog: says, once a minute at most, which component makes most hits vanish."""

from __future__ import annotations

import logging
from collections import Counter

from hicache.clock import Clock
from hicache.metrics import Traffic

LOG = logging.getLogger(__name__)

PERIOD_S = 60.0


class MissLog:
    """Looks at what matches found and refused since it last did. `name`: of the cache."""

    def __init__(self, name: str, clock: Clock, traffic: Traffic) -> None:
        self._name = name
        self._clock = clock
        self._traffic = traffic
        self._begin(clock.now())

    def consider(self) -> None:
        """A match was refused a part. After a minute, log what refused more than all matches found."""
        now = self._clock.now()
        if now < self._next_s:
            return
        refused = self._traffic.tokens_refused - self._refused_before
        cached = refused.total() + self._found() - self._found_before
        for reason, tokens in refused.most_common(1):
            if 2 * tokens > cached:
                LOG.warning(
                    "%s: %s refused %d of %d cached tokens of matched prompts: see docs/guide/hit_rate.md",
                    *(self._name, reason, tokens, cached),
                )
        self._begin(now)

    def _begin(self, now: float) -> None:
        self._next_s = now + PERIOD_S
        self._refused_before = Counter(self._traffic.tokens_refused)
        self._found_before = self._found()

    def _found(self) -> int:
        return self._traffic.tokens_matched_device + self._traffic.tokens_matched_host
