"""The threaded cache over real stores whose files are damaged while it runs: all laws and bytes after each verb."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest

from hicache.config import CacheConfig
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.configurations import standard_configurations
from hicache.testing.driving.driver import Driver
from hicache.testing.storage.subject import BackendSubject, Place
from hicache.tests.proof.attack.campaign import Campaign
from hicache.tests.proof.attack.test_writers import ON_DISK, damage_a_file
from hicache.types import Component, Key, Tier

VERBS = 60
PAGES = 5
SHORT_OF_STATES = 16
"""The seed of a round whose puts leave no state to evict until a step ends their copies."""

PREFETCHES = 2
"""How many prefetches a round leaves open at most."""


def threaded_configuration(place: Place) -> CacheConfig:
    """All components and a sidecar, with threads for every tier, over the backend of a place."""
    config = next(
        config
        for config in standard_configurations(ReferenceAdapter.capabilities)
        if config.storage is not None and config.name.endswith("threaded") and "mamba" in config.name
    )
    assert config.storage is not None, f"{config.name} was chosen for its storage"
    return replace(config, storage=replace(config.storage, backend=place.subject.name, options=place.options))


class Walk:
    """One round: verbs drawn at random, with checks after each, while files of the store are damaged."""

    def __init__(self, campaign: Campaign, place: Place, seed: int) -> None:
        self._campaign = campaign
        self._place = place
        self._rng = random.Random(seed)
        self._config = threaded_configuration(place)
        self._driver = Driver(ReferenceAdapter(self._config), self._config)

    def run(self) -> None:
        """Call the verbs, then free everything: no slot is lost."""
        self._store_and_prefetch()
        verbs: list[Callable[[], None]] = [
            *[self._put] * 6,
            *[self._load] * 3,
            *[self._prefetch] * 4,
            *[self._end_a_prefetch] * 3,
            *[self._evict] * 3,
            *[self._step] * 5,
            *[self._damage] * 3,
        ]
        for _ in range(VERBS):
            self._timed(self._rng.choice([*verbs, self._restart] if self._rng.random() < 0.1 else verbs))
        for one in list(self._driver.prefetches.values()):
            self._driver.abort_prefetch(one.ticket)
        self._driver.drain()
        self._driver.reset()
        free = {name: sizes.free for name, sizes in self._driver.sizes(Tier.DEVICE).items()}
        expected = self._config.capacity_tokens
        assert free == expected, f"POOL-1: expected every slot to be free after a reset, {expected}, got {free}"

    def close(self) -> None:
        """Close the cache."""
        self._driver.adapter.close()

    def _store_and_prefetch(self) -> None:
        """Before anything is damaged a prefetch brings what was stored."""
        key = self._driver.key(self._driver.prompt([90, 91]))
        self._driver.put(key)
        self._driver.drain()
        self._driver.reset()
        ticket = self._driver.prefetch(key)
        assert ticket is not None, "FETCH-1: nothing else is under way: expected a ticket"
        self._driver.drain()
        tokens = self._driver.check_prefetch(ticket)
        assert tokens == len(key.tokens), f"FETCH-4: expected {len(key.tokens)} tokens from storage, got {tokens}"

    def _key(self) -> Key:
        pages = [self._rng.randrange(2) + 2 * depth for depth in range(self._rng.randint(1, PAGES))]
        return self._driver.key(self._driver.prompt(pages))

    def _put(self) -> None:
        key = self._key()
        # Copies under way protect what they read, and only a step ends them: a put may find nothing else to evict.
        # The match of the put may lock one state more.
        needed = {**dict.fromkeys(self._config.components, self._driver.aligned(key)), Component.MAMBA: 2}
        sizes = self._driver.sizes(Tier.DEVICE)
        if any(sizes[name].free + sizes[name].evictable < count for name, count in needed.items()):
            self._campaign.counts["waits for copies"] += 1
            self._driver.drain()
        self._driver.put(key)

    def _load(self) -> None:
        self._driver.load(self._key())

    def _step(self) -> None:
        self._driver.step()

    def _prefetch(self) -> None:
        if len(self._driver.prefetches) < PREFETCHES:
            self._driver.prefetch(self._key())

    def _end_a_prefetch(self) -> None:
        for one in list(self._driver.prefetches.values()):
            if self._rng.random() < 0.3:
                self._driver.abort_prefetch(one.ticket)
            elif tokens := self._driver.check_prefetch(one.ticket):
                self._campaign.counts["tokens from storage"] += tokens

    def _evict(self) -> None:
        component = self._rng.choice(self._config.components)
        assert self._config.host is not None, f"{self._config.name} has a host"
        self._driver.evict(component, self._rng.randint(1, self._config.capacity_tokens[component]))
        self._driver.drain()
        self._driver.evict_host(component, self._rng.randint(1, self._config.host.capacity_tokens[component]))

    def _damage(self) -> None:
        self._campaign.counts[damage_a_file(self._place.directory, self._rng)] += 1

    def _restart(self) -> None:
        self._driver.prefetches.clear()
        self._driver.restart()

    def _timed(self, verb: Callable[[], None]) -> None:
        began = monotonic()
        verb()
        self._campaign.timed(began)
        self._campaign.counts["verbs"] += 1


@pytest.mark.parametrize("subject", ON_DISK, ids=lambda subject: subject.name)
def test_a_threaded_cache_serves_no_wrong_byte_from_a_damaged_store(
    campaign: Campaign, subject: BackendSubject, tmp_path: Path
) -> None:
    for seed in campaign.rounds(1, 0.15):
        with (
            closing(Place(subject, tmp_path, page_bytes=1 << 16, capacity_bytes=1 << 22)) as place,
            closing(Walk(campaign, place, seed)) as walk,
        ):
            walk.run()


def test_a_walk_waits_for_copies_that_protect_every_state(tmp_path: Path) -> None:
    campaign, subject = Campaign(), next(one for one in ON_DISK if one.name == "file")
    with (
        closing(Place(subject, tmp_path, page_bytes=1 << 16, capacity_bytes=1 << 22)) as place,
        closing(Walk(campaign, place, SHORT_OF_STATES)) as walk,
    ):
        walk.run()
    assert campaign.counts["waits for copies"], f"expected copies that protect every state, got {campaign.counts}"
