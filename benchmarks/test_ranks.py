"""The cost of several ranks: collectives are counted, and a packed reduction is measured against separate ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from hicache.config import CacheConfig, EvictionPolicy, ExecutorKind, Layout, StorageConfig, WritePolicy
from hicache.parallel.group import Group, Reduction
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.hybrid_model import reshaped
from hicache.testing.ranks.digest import digest_of
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.world import Mesh, RankWorld, Team
from hicache.testing.replay.configuration import HostSettings, ReplaySettings, cache_config
from hicache.testing.replay.latency import Stopwatch
from hicache.testing.replay.limits import survey
from hicache.testing.replay.run import Epoch
from hicache.testing.replay.tally import ReplayTally
from hicache.testing.storage.scripted import BACKEND, store_named
from hicache.testing.traces import Trace, TraceRequest
from hicache.testing.traces.format import write_trace
from hicache.testing.traces.generate import SHORT_TRACE, generate_trace
from hicache.types import SHARED, Handle, Key, StopPolicy, Tier

from .conftest import ReportRatio
from .measurement import Ratio
from .prompt_transfer import PAGE_SIZE, LayoutPair
from .synthetic_tree import FULL, SLIM_MODEL, insert, offer, random_tokens, spacious

T = TypeVar("T")

TIMEOUT_S = 60.0
"""The timeout of a collective, long enough for a busy machine."""


class MeshCache:
    """One cache on every rank of a mesh, each in a thread. `caches`: by rank. Close it at the end."""

    def __init__(self, adapter_type: type[CacheAdapter], config: CacheConfig, mesh: Mesh) -> None:
        self._team = Team(mesh, TIMEOUT_S)
        self.configs = [replace(config, topology=world.topology) for world in self._team.worlds]
        self.caches = self._team.each(lambda rank: adapter_type.on_rank(self.configs[rank], self._team.worlds[rank]))

    def each(self, act: Callable[[CacheAdapter], T]) -> list[T]:
        """Call `act` with the cache of every rank at the same time. Returns the results by rank."""
        return self.of_each(lambda rank: act(self.caches[rank]))

    def of_each(self, act: Callable[[int], T]) -> list[T]:
        """Call `act` with the number of every rank at the same time. Returns the results by rank."""
        return self._team.each(act)

    def made(self, rank: int) -> dict[str, int]:
        """How many collectives a rank has made along each axis of several ranks."""
        return {axis: len(calls) for axis, calls in self._team.worlds[rank].calls.items()}

    def numbers(self, rank: int) -> dict[str, int]:
        """How many numbers a rank passed to its last collective along each axis of several ranks."""
        return {axis: calls[-1].count for axis, calls in self._team.worlds[rank].calls.items()}

    def counts(self, act: Callable[[CacheAdapter], object]) -> dict[str, int]:
        """How many collectives `act` makes along each axis. Raises AssertionError if the ranks differ."""
        ranks = range(len(self.caches))
        before = [self.made(rank) for rank in ranks]
        self.each(act)
        took = [{axis: count - before[rank][axis] for axis, count in self.made(rank).items()} for rank in ranks]
        assert all(one == took[0] for one in took), (
            f"RANK-2: expected the same number of collectives on each rank, got {took}"
        )
        return took[0]

    def close(self) -> None:
        """Close the caches, and end the threads."""
        for cache in self.caches:
            cache.close()
        self._team.close()


NUMBERS = 16
"""About as many numbers as a step packs when a few jobs run."""

Groups = Mapping[str, Group]


def reduction_times(
    world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig, rounds: int
) -> tuple[list[float], list[float]]:
    """The seconds of one packed reduction, and of one reduction for each number, alternating in the cache's group."""
    numbers = list(range(NUMBERS))
    packed_s, separate_s = list[float](), list[float]()
    with _opened_groups(world, adapter_type, config) as groups:
        group = groups["tp"]
        for _ in range(rounds):
            packed_s.append(_seconds(lambda: group.reduce(numbers, Reduction.MIN, "packed")))
            separate_s.append(_seconds(lambda: [group.reduce([one], Reduction.MIN, "separate") for one in numbers]))
        group.barrier("end")
    return packed_s, separate_s


@contextmanager
def _opened_groups(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> Iterator[Groups]:
    """The groups that the cache opens, until it is closed."""
    opened: dict[str, Group] = {}
    inner = world.groups

    def record(open_groups: Callable[[], Groups]) -> Groups:
        opened.update(inner(open_groups))
        return opened

    world.groups = record  # type: ignore[method-assign]
    with closing(adapter_type.on_rank(replace(config, topology=world.topology), world)):
        yield opened


def _seconds(call: Callable[[], object]) -> float:
    begin = perf_counter()
    call()
    return perf_counter() - begin


RANKED_MODEL = reshaped(SLIM_MODEL, full_layers=2, kv_heads=4)
"""The least data that divides over four tensor-parallel ranks and over two pipeline stages."""

ALONE = Mesh(tp_size=1, cp_size=1, pp_size=1)
MESHES = [ALONE, Mesh(2, 1, 1), Mesh(4, 1, 1), Mesh(2, 2, 1), Mesh(2, 1, 2), Mesh(2, 2, 2)]
ON_MESHES = pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: mesh.name)

PAGES = 64
REQUESTS = 1_000
TRACE = replace(
    SHORT_TRACE, requests=REQUESTS, longest_input=4_096, system_length_median=600, message_length_median=300
)

JOBS = 8
"""Backups that are in flight at the same time."""

OpenMesh = Callable[[CacheConfig, Mesh], MeshCache]


@pytest.fixture
def open_mesh(adapter_type: type[CacheAdapter], require: Callable[..., None]) -> Iterator[OpenMesh]:
    """Opens caches on all ranks of a mesh, closed after the test, or skips the test."""
    opened: list[MeshCache] = []

    def open_one(config: CacheConfig, mesh: Mesh) -> MeshCache:
        needs = {Capability.RANKS, Capability.STEPPED} if config.host else {Capability.RANKS}
        needs |= {Capability.STORAGE} if config.storage else set()
        require(config, *needs)
        opened.append(MeshCache(adapter_type, config, mesh))
        return opened[-1]

    yield open_one
    for cache in opened:
        cache.close()


def on_device() -> CacheConfig:
    return replace(spacious((FULL,), PAGE_SIZE, PAGES * PAGE_SIZE), model=RANKED_MODEL)


def on_host() -> CacheConfig:
    return LayoutPair(Layout.LAYER_FIRST, Layout.PAGE_FIRST).config(PAGES, RANKED_MODEL, ExecutorKind.STEPPED)


def on_storage(policy: StopPolicy) -> CacheConfig:
    store_named("benchmarks").empty()
    storage = StorageConfig(
        BACKEND,
        "slim",
        options={"store": "benchmarks"},
        prefetch_threshold=0,
        prefetch_timeout_per_ki_token=0.0,
        stop_policy=policy,
        timeout_cap_s=10.0,
        limit_tokens=PAGES * PAGE_SIZE,
        executor=ExecutorKind.STEPPED,
    )
    return replace(on_host(), storage=storage)


def a_key(pages: int) -> Key:
    (tokens,) = random_tokens(np.random.default_rng(pages), 1, pages * PAGE_SIZE)
    return Key(tokens, SHARED)


def once(mesh: Mesh) -> dict[str, int]:
    """By axis of several ranks, the count of one collective."""
    sizes = {"tp": mesh.tp_size, "cp": mesh.cp_size, "pp": mesh.pp_size}
    return {axis: 1 for axis, size in sizes.items() if size > 1}


@ON_MESHES
def test_a_step_takes_one_collective_along_each_axis(open_mesh: OpenMesh, mesh: Mesh) -> None:
    cache, key = open_mesh(on_storage(StopPolicy.WAIT_COMPLETE), mesh), a_key(8)
    idle = cache.counts(lambda own: own.step())
    cache.each(lambda own: insert(own, offer(own, key)))
    busy = [cache.counts(lambda own: own.step()) for _ in range(4)]
    for took in (idle, *busy):
        assert took == once(mesh), f"a step on {mesh.name}, idle or busy: expected {once(mesh)}, got {took}"


@ON_MESHES
def test_no_other_verb_of_a_request_takes_a_collective(open_mesh: OpenMesh, mesh: Mesh) -> None:
    cache, key = open_mesh(on_host(), mesh), a_key(8)

    def serve(own: CacheAdapter) -> None:
        receipt = own.lock(insert(own, offer(own, key)).node)
        own.match(key, chunked=False)
        own.unlock(receipt)
        own.evict(FULL, PAGE_SIZE)

    took = cache.counts(serve)
    assert not any(took.values()), f"expected no collective for match, insert, lock and evict, got {took}"


@ON_MESHES
def test_a_cache_without_lower_tiers_takes_no_collective(open_mesh: OpenMesh, mesh: Mesh) -> None:
    cache, key = open_mesh(on_device(), mesh), a_key(8)
    cache.each(lambda own: insert(own, offer(own, key)))
    took = cache.counts(lambda own: own.step())
    assert not any(took.values()), f"expected no collective without tiers below the device, got {took}"


@pytest.mark.parametrize(
    ("policy", "checks", "expected"),
    [
        (StopPolicy.WAIT_COMPLETE, 1, 0),
        (StopPolicy.BEST_EFFORT, 1, 1),
        (StopPolicy.TIMEOUT, 1, 0),
        (StopPolicy.TIMEOUT, 2, 1),
    ],
    ids=lambda value: getattr(value, "value", str(value)),
)
@ON_MESHES
def test_a_check_of_a_prefetch_takes_at_most_one_collective(
    open_mesh: OpenMesh, mesh: Mesh, policy: StopPolicy, checks: int, expected: int
) -> None:
    """The step before it has agreed on the timeouts, for one check."""
    cache, key = open_mesh(on_storage(policy), mesh), a_key(8)
    cache.each(lambda own: insert(own, offer(own, key)))
    cache.each(lambda own: own.drain())
    cache.each(lambda own: own.reset())
    tickets = cache.each(lambda own: own.prefetch(key))
    by_cache = {id(own): ticket for own, ticket in zip(cache.caches, tickets, strict=True)}
    cache.each(lambda own: own.step())
    cache.each(_complete_jobs)
    cache.each(lambda own: own.step())

    def check(own: CacheAdapter) -> None:
        ticket: Handle = by_cache[id(own)]
        for _ in range(checks):
            own.check_prefetch(ticket)

    took = cache.counts(check)
    wanted = {axis: count * expected for axis, count in once(mesh).items()}
    assert took == wanted, (
        f"{checks} checks of a prefetch in flight, {policy.value} on {mesh.name}: expected {wanted}, got {took}"
    )


def _complete_jobs(own: CacheAdapter) -> None:
    for job in own.pending():
        own.complete(job.ticket)


@ON_MESHES
def test_a_step_packs_the_numbers_of_all_jobs_into_one_collective(open_mesh: OpenMesh, mesh: Mesh) -> None:
    cache, keys = open_mesh(on_host(), mesh), [a_key(pages) for pages in range(1, JOBS + 1)]
    numbers = list[dict[str, int]]()
    for key in keys:
        cache.each(lambda own, key=key: insert(own, offer(own, key)))  # type: ignore[misc]
        took = [cache.counts(lambda own: own.step()) for _ in range(2)]
        assert took == [once(mesh)] * 2, f"a step on {mesh.name}: expected {once(mesh)}, got {took}"
        numbers.append(cache.numbers(0))
    for axis in once(mesh):
        packed = [found[axis] for found in numbers]
        assert packed == sorted(set(packed)), (
            f"expected each job to add numbers to the collective along {axis}, got {packed}"
        )


def test_a_packed_reduction(
    adapter_type: type[CacheAdapter],
    require: Callable[..., None],
    tmp_path: Path,
    benchmark: BenchmarkFixture,
    report_ratio: ReportRatio,
) -> None:
    require(on_device(), Capability.RANKS)
    mesh = Mesh(2, 1, 1)
    launch = Launch(mesh, "gloo", tmp_path, deadline_s=120.0, timeout_s=60.0, is_recorded=False)
    rounds = 200 if benchmark.enabled else 1
    measured = benchmark.pedantic(  # type: ignore[no-untyped-call]
        lambda: launch.values(reduction_times, adapter_type, on_device(), rounds), rounds=1
    )
    assert [len(packed_s) for packed_s, _ in measured] == [rounds] * 2, f"expected {rounds} times from each rank"
    if benchmark.enabled:
        for rank, (packed_s, separate_s) in enumerate(measured):
            what = f"{NUMBERS} reductions to a packed one, rank {rank}"
            report_ratio(what, Ratio.of(separate_s, packed_s))


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decisions of one rank about a trace. `collectives`: for each request, along all axes."""

    hit_lengths: dict[str, list[int]]
    evicted_tokens: int | None
    tree: str
    collectives: list[int]


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    """A trace of conversations with REQUESTS requests."""
    path = tmp_path / "trace.jsonl"
    write_trace(path, generate_trace(TRACE, seed=6))
    return Trace(path, skip_bad=False, limit=REQUESTS)


@pytest.fixture
def settings() -> ReplaySettings:
    """Small capacities on both tiers, and a stepped executor."""
    host = HostSettings("40%", WritePolicy.WRITE_THROUGH, Layout.PAGE_FIRST, ExecutorKind.STEPPED)
    return ReplaySettings(PAGE_SIZE, "3%", (FULL,), EvictionPolicy.LRU, 1, 4, 0, host, None)


def test_ranks_decide_about_a_trace_as_one_rank_does(
    open_mesh: OpenMesh, trace: Trace, settings: ReplaySettings, tmp_path: Path, benchmark: BenchmarkFixture
) -> None:
    config = replace(cache_config(settings, survey(trace, PAGE_SIZE), tmp_path), model=RANKED_MODEL)
    requests = list(trace)
    (alone,) = _decisions(open_mesh(config, ALONE), requests, settings)
    assert sum(alone.hit_lengths[Tier.HOST.value]), "expected host hits"
    assert alone.evicted_tokens, "expected evictions"
    assert not any(alone.collectives), "expected no collectives on a single rank"
    for mesh in (Mesh(2, 1, 1), Mesh(2, 1, 2)):
        decided = _decisions(open_mesh(config, mesh), requests, settings)
        for rank, own in enumerate(decided):
            assert own.hit_lengths == alone.hit_lengths, f"RANK-1: rank {rank} of {mesh.name}: other hits"
            assert own.evicted_tokens == alone.evicted_tokens, f"RANK-7: rank {rank} of {mesh.name}: other evictions"
            assert own.tree == alone.tree, f"RANK-1: rank {rank} of {mesh.name}: another tree"
            assert own.collectives == decided[0].collectives, f"RANK-2: rank {rank} of {mesh.name}: other collectives"
        benchmark.extra_info[f"collectives per request on {mesh.name}"] = sum(decided[0].collectives) / REQUESTS
        require_counts(decided[0], len(once(mesh)), mesh)
    benchmark.pedantic(lambda: None, rounds=1)  # type: ignore[no-untyped-call]


def require_counts(own: Decisions, axes: int, mesh: Mesh) -> None:
    """Check that a request takes one step, and three if it loads back: it waits for the load."""
    loads = own.hit_lengths[Tier.HOST.value]
    for steps, is_loaded in ((1, False), (3, True)):
        found = {count for count, loaded in zip(own.collectives, loads, strict=True) if bool(loaded) == is_loaded}
        assert found == {steps * axes}, (
            f"a request that loads {'something' if is_loaded else 'nothing'} on {mesh.name}: "
            f"expected {steps * axes} collectives, got {sorted(found)}"
        )


def _decisions(cache: MeshCache, requests: list[TraceRequest], settings: ReplaySettings) -> list[Decisions]:
    def replay(rank: int) -> Decisions:
        tally = ReplayTally((Tier.DEVICE, Tier.HOST), settings.page_size)
        epoch = Epoch(cache.caches[rank], cache.configs[rank], settings, tally, Stopwatch())
        made = [sum(cache.made(rank).values())]
        for request in requests:
            epoch.serve(request)
            made.append(sum(cache.made(rank).values()))
        epoch.session.finish_all()
        tree = digest_of(cache.caches[rank].snapshot()).text
        return Decisions(tally.hit_lengths, tally.evicted_tokens, tree, np.diff(made).tolist())

    return cache.of_each(replay)
