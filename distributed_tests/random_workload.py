"""A random workload: the same requests, prefetches and evictions on every rank, with transfers of different speed."""

from __future__ import annotations

import random

import numpy as np

from hicache.testing.adapter import Capability
from hicache.testing.ranks.driver import RankDriver
from hicache.types import Component, Handle, Key, TransferPhase

from .rank_actions import KINDS

BRANCHES = 3
LONGEST_PAGES = 5
CHECK_EVERY = 6


class RandomWorkload:
    """The workload of one rank. Its verbs depend on `seed` alone; the speed of its transfers also on the rank.

    A cache without the verbs of requests is asked to match, load and insert.
    """

    def __init__(self, driver: RankDriver, seed: int) -> None:
        self._driver = driver
        # The trees are compared after each step, all laws and bytes only every few verbs.
        driver.check_every = CHECK_EVERY
        self._chance = random.Random(seed)
        self._pace = random.Random(f"{seed}/{driver.rank}")
        self._has_requests = Capability.REQUESTS in driver.adapter.capabilities
        self._waiting: list[Handle] = []
        self._loading: list[tuple[Handle, Key]] = []
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
        if self._has_requests:
            self._admit(key)
            return
        load = self._driver.load_back(key, self._driver.match(key))
        if load is None:
            self._compute(key)
        else:
            self._loading.append((load.ticket, key))

    def _compute(self, key: Key) -> None:
        """Compute and insert what is not cached, unless there is no room for it."""
        driver = self._driver
        found = driver.match(key)
        receipt, shared = driver.lock(found.device_anchor), len(found.device_indices)
        fresh = driver.allocate(driver.aligned(key) - shared)
        needs_state = Component.MAMBA in driver.config.components
        state = driver.allocate_state() if needs_state and fresh is not None else None
        if fresh is not None and needs_state == (state is not None):
            driver.write(key, fresh, shared)
            if state is not None:
                driver.write_state(key, state)
            result = driver.insert(key, np.concatenate((found.device_indices, fresh)), shared=shared, state=state)
            if state is not None and not result.state_adopted:
                driver.free_state(state)
        elif fresh is not None:
            driver.free(fresh)
        driver.unlock(receipt)

    def _admit(self, key: Key) -> None:
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
        for loading in list(self._loading):
            if self._driver.load_phase(loading[0]) is not TransferPhase.RUNNING:
                self._loading.remove(loading)
                self._driver.claim(loading[0])
                self._compute(loading[1])
        for fetching in list(self._fetching):
            if self._driver.check_prefetch(fetching[0]) is not None:
                self._fetching.remove(fetching)
                self._start(fetching[1])
