"""Caches, ranks and processes that share one engine: each byte that is read is the one that was stored."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hicache.config import CacheConfig, ExecutorKind
from hicache.storage.base import StorageStats
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.configurations import standard_configurations
from hicache.testing.driving.driver import Driver
from hicache.testing.hybrid_model import reshaped
from hicache.testing.ranks.driver import RankDriver
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.world import Mesh, RankWorld
from hicache.tests.storage.engines.engine import EngineProcess

from .conftest import Start

PREFIX = (1, 2, 3)
"""Pages that several prompts begin with: more than a window."""

PROCESSES, ROUNDS = 8, 12

PATIENT = {"timeout_s": 60}
"""Options with which eight processes wait for an engine that has one core or less."""

COMPONENTS = ["full", "full+swa", "full+mamba", "full+swa+mamba"]

Options = Mapping[str, Any]


def config_on(backend: str, options: Options, components: str, model: str = "tiny") -> CacheConfig:
    """A small configuration whose pages an engine stores, in threads."""
    configs = standard_configurations(ReferenceAdapter.capabilities)
    found = next(one for one in configs if one.storage and one.components == tuple(components.split("+")))
    assert found.storage is not None, "the configuration has a storage tier"
    changes: dict[str, Any] = {"backend": backend, "options": options, "model": model}
    return replace(found, storage=replace(found.storage, **changes, executor=ExecutorKind.THREADED))


@contextmanager
def opened(config: CacheConfig) -> Iterator[Driver]:
    """A cache under the driver, which compares each byte."""
    driver = Driver(ReferenceAdapter(config), config)
    yield driver
    driver.drain()
    driver.check()
    driver.adapter.close()


def fetched(driver: Driver, pages: Sequence[int]) -> int:
    """Prefetch a prompt, and load what is on the host; the pages that came from storage."""
    key = driver.key(driver.prompt(pages))
    ticket = driver.prefetch(key)
    driver.drain()
    tokens = driver.check_prefetch(ticket) if ticket is not None else 0
    assert tokens is not None, "FETCH-3: nothing is under way, so it has ended"
    driver.load(key)
    return tokens // driver.config.page_size


def put_each_prefix(driver: Driver, pages: Sequence[int]) -> None:
    """Cache a prompt, the shortest prefix first, so that each page has a state, until it is stored."""
    for count in range(1, len(pages) + 1):
        driver.put(driver.key(driver.prompt(pages[:count])))
        driver.drain()


@pytest.mark.parametrize("components", COMPONENTS)
def test_two_caches_share_prefixes(start: Start, components: str) -> None:
    process = start()
    config = config_on(process.engine.backend, process.options, components)
    with opened(config) as first, opened(config) as second:
        put_each_prefix(first, PREFIX)
        assert fetched(second, (*PREFIX, 4)) == 3, "FETCH-1: the second reads what the first has stored"
        put_each_prefix(second, (*PREFIX, 4))
        put_each_prefix(first, (*PREFIX, 5))
        first.reset()
        assert fetched(first, (*PREFIX, 4)) == 4, "FETCH-1: the first reads what the second has added"
        assert fetched(second, (*PREFIX, 5)) == 1, "FETCH-1: of the other prompt the second lacks one page"
    other = config_on(process.engine.backend, process.options, components, model="another")
    with opened(other) as third:
        assert fetched(third, PREFIX) == 0, "STORE-1: a cache of another model reads nothing of them"


def store_on_rank(world: RankWorld, config: CacheConfig) -> tuple[int, list[str]]:
    """Store a prompt from the ranks, read it again in new caches; the pages that came, and the keys of this rank."""
    with_prompt = RankDriver(ReferenceAdapter, config, world)
    put_each_prefix(with_prompt, PREFIX)
    keys = with_prompt.storage_keys("kv", with_prompt.key(with_prompt.prompt(PREFIX)))
    with_prompt.end()
    reader = RankDriver(ReferenceAdapter, config, world)
    pages = fetched(reader, PREFIX)
    reader.end()
    return pages, keys


@pytest.mark.parametrize("mesh", [Mesh(2, 1, 1), Mesh(1, 2, 1), Mesh(1, 1, 2)], ids=lambda mesh: mesh.name)
def test_ranks_share_an_engine(start: Start, tmp_path: Path, mesh: Mesh) -> None:
    process = start()
    config = config_on(process.engine.backend, process.options, "full+swa+mamba")
    config = replace(config, model=reshaped(config.model, kv_heads=4, conv_elements=4, state_elements=8))
    folder = tmp_path / "ranks"
    folder.mkdir()
    launch = Launch(mesh, "gloo", folder, deadline_s=120, timeout_s=60, is_recorded=True)
    results = launch.values(store_on_rank, config)
    assert [pages for pages, _ in results] == [len(PREFIX)] * 2, f"FETCH-5: both ranks read all pages, got {results}"
    first, second = (set(keys) for _, keys in results)
    assert not first & second, f"RANK-6: each rank has objects of its own, got {first & second}"


class Soak(NamedTuple):
    """What one process did. `fetched`: pages from storage. `stats`: those of its own backend at the end."""

    fetched: int
    errors: int
    stats: StorageStats


def soak(backend: str, options: Options, seed: int) -> Soak:
    """Serve prompts over common prefixes, in an order that a seed decides, with small tiers."""
    rng, config, pages = random.Random(seed), config_on(backend, options, "full+swa+mamba"), 0
    with opened(config) as driver:
        for _ in range(ROUNDS):
            first = rng.randrange(3)
            prompt = [10 * first + page for page in range(rng.randint(1, 5))]
            pages += fetched(driver, prompt)
            driver.put(driver.key(driver.prompt(prompt)))
            driver.drain()
            if rng.random() < 0.5:
                driver.reset()
        adapter: Any = driver.adapter
        worker = adapter.cache.storage.worker
        return Soak(pages, worker.errors, worker._backend.stats())


def run(process: EngineProcess, entry: Callable[..., Soak]) -> list[Soak]:
    """The results of the processes, which run side by side."""
    server = get_context("forkserver")
    server.set_forkserver_preload([__name__])  # imported once, and not by each process
    options = process.options | PATIENT
    with ProcessPoolExecutor(PROCESSES, mp_context=server) as pool:
        tasks = [pool.submit(entry, process.engine.backend, options, seed) for seed in range(PROCESSES)]
        return [task.result() for task in tasks]


def test_eight_processes_on_one_engine_read_what_was_stored(start: Start) -> None:
    process = start()
    results = run(process, soak)
    assert [one.errors for one in results] == [0] * PROCESSES, f"STORE-3: the backends answer, got {results}"
    misses = [{reason: count for reason, count in one.stats.misses.items() if reason != "absent"} for one in results]
    assert misses == [{}] * PROCESSES, f"STORE-3: no page is damaged or lost, got {misses}"
    assert not any(one.stats.refused for one in results), f"STORE-8: there is room, got {results}"
    assert all(one.fetched for one in results), f"FETCH-1: each process reads pages, got {results}"
    assert sum(one.stats.written for one in results) >= results[0].stats.objects, f"each was written, got {results}"
