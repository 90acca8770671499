"""A random workload: the same requests, prefetches and evictions on every rank, with transfers of different speed."""

from __future__ import annotations

import random

from hicache.testing.ranks.driver import RankDriver
from hicache.types import Handle, Key

from .rank_actions import KINDS

BRANCHES = 3
LONGEST_PAGES = 5
CHECK_EVERY = 6


class RandomWorkload:
    """The workload of one rank. Its verbs depend on `seed` alone; the speed of its transfers also on the rank."""

    def __init__(self, driver: RankDriver, seed: int) -> None:
        self._driver = driver
        # The trees are compared after each step, all laws and bytes only every few verbs.
        driver.check_every = CHECK_EVERY
        self._chance = random.Random(seed)
        self._pace = random.Random(f"{seed}/{driver.rank}")
        self._waiting: list[Handle] = []
        self._fetching: list[tuple[Handle, Key]] = []
        self._has_storage = driver.config.storage is not None

    def run(self, rounds: int) -> None:
        """So many rounds of one request, sometimes an eviction, and one step; then drain, and end all requests."""
        for _ in range(rounds):
            self._ask(self._prompt())
            if self._chance.random() < 0.25:
                self._make_room()
            self._move()
            self._driver.step()
            self._look()
        self._driver.drain()
        self._look()
        for request in self._waiting:
            self._driver.abort(request)
        self._driver.end()

    def _prompt(self) -> Key:
        """A prompt of few branches, so that prompts share prefixes and repeat."""
        pages = [
            self._chance.randrange(BRANCHES) + 10 * depth for depth in range(self._chance.randint(1, LONGEST_PAGES))
        ]
        return self._driver.key(self._driver.prompt(pages))

    def _ask(self, key: Key) -> None:
        ticket = self._driver.prefetch(key) if self._has_storage else None
        if ticket is None:
            self._start(key)
        else:
            self._fetching.append((ticket, key))

    def _start(self, key: Key) -> None:
        admission = self._driver.admit(key)
        if admission is not None and admission.loading:
            self._waiting.append(admission.request)
        elif admission is not None:
            self._driver.finish(admission.request)

    def _make_room(self) -> None:
        component = self._chance.choice(sorted(self._driver.config.components))
        tokens = self._chance.randint(1, 4) * self._driver.config.page_size
        evict = self._driver.evict if self._chance.random() < 0.7 else self._driver.evict_host
        evict(component, tokens)

    def _move(self) -> None:
        """Let some kinds of transfers of this rank end."""
        for kind in sorted(KINDS):
            if self._pace.random() < 0.5:
                self._driver.let_end(kind)

    def _look(self) -> None:
        """Finish requests whose load has ended, and admit requests whose prefetch has ended."""
        for request in list(self._waiting):
            if self._driver.resume(request) is not None:
                self._waiting.remove(request)
                self._driver.finish(request)
        for fetching in list(self._fetching):
            if self._driver.check_prefetch(fetching[0]) is not None:
                self._fetching.remove(fetching)
                self._start(fetching[1])
