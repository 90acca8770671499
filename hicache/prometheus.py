"""CacheMetrics: what the caches of a process do, in a registry of prometheus_client, labelled by rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hicache.clock import Clock, WallClock
from hicache.config import CacheConfig, Topology
from hicache.errors import ConfigurationError
from hicache.parallel.group import Group, Reduction
from hicache.stats import Stats
from hicache.storage.base import Pieces, PoolQuery, StorageBackend
from hicache.storage.wrappers import StorageWrapper
from hicache.types import ADMISSION, Component, Tier

T = TypeVar("T")
Sample = tuple[tuple[str, ...], float]
"""The values of a metric's own labels, and the number."""

RANK = ("tp_rank", "cp_rank", "pp_rank", "dp_rank")
"""The first labels of every metric."""

BUCKETS_S = (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0)
"""Upper bounds of the histograms, in seconds."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `kind`: counter, gauge or histogram. `labels`: beside those of RANK. `read`: its samples of a cache.

    Histograms are observed while a call runs, and have no `read`. The name of a counter is exposed with `_total`.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    read: Callable[[Stats], Iterator[Sample]] | None


def _match_tokens(stats: Stats) -> Iterator[Sample]:
    yield (Tier.DEVICE.value,), stats.counters.traffic.tokens_matched_device
    yield (Tier.HOST.value,), stats.counters.traffic.tokens_matched_host
    yield ("none",), stats.counters.traffic.tokens_missed


def _refused_tokens(stats: Stats) -> Iterator[Sample]:
    for reason in (*stats.config.components, ADMISSION):
        if reason != Component.FULL:
            yield (reason,), stats.counters.traffic.tokens_refused[reason]


def _prefetch_tokens(stats: Stats) -> Iterator[Sample]:
    yield (), stats.counters.traffic.tokens_prefetched


def _bytes(stats: Stats) -> Iterator[Sample]:
    counters = stats.counters
    yield ("backup",), counters.bytes_backed_up
    yield ("load",), counters.bytes_loaded
    yield ("store",), counters.bytes_stored
    yield ("prefetch",), counters.bytes_prefetched


def _staged_bytes(stats: Stats) -> Iterator[Sample]:
    if stats.storage is not None:
        yield (stats.storage.name,), stats.counters.bytes_staged


def _evictions(stats: Stats) -> Iterator[Sample]:
    yield (Tier.DEVICE.value,), stats.counters.traffic.device_evictions
    yield (Tier.HOST.value,), stats.counters.traffic.host_evictions


def _prefetches(stats: Stats) -> Iterator[Sample]:
    counters, storage = stats.counters, stats.config.storage
    if storage is not None:
        yield ("complete",), counters.traffic.prefetches_completed
        yield (storage.stop_policy.value,), counters.prefetches_cut
        yield ("room",), counters.traffic.prefetches_shortened
        yield ("miss",), counters.traffic.prefetches_missed
        yield ("abort",), counters.traffic.prefetches_aborted
        yield ("drop",), counters.traffic.prefetches_dropped
        yield ("limit",), counters.prefetches_limited


def _refused(stats: Stats) -> Iterator[Sample]:
    yield ("backup",), stats.counters.backups_refused
    yield ("store",), stats.counters.stores_failed


def _storage_errors(stats: Stats) -> Iterator[Sample]:
    if stats.storage is not None:
        for verb, errors in stats.storage.errors.items():
            yield (stats.storage.name, verb), errors


def _abandoned(stats: Stats) -> Iterator[Sample]:
    if stats.storage is not None:
        yield (stats.storage.name,), stats.storage.abandoned


def _breaker_open(stats: Stats) -> Iterator[Sample]:
    if stats.storage is not None and (breaker := stats.storage.breaker) is not None:
        yield (stats.storage.name,), breaker.is_open


def _pauses(stats: Stats) -> Iterator[Sample]:
    if stats.storage is not None and (breaker := stats.storage.breaker) is not None:
        yield (stats.storage.name,), breaker.pauses


def _queues(stats: Stats) -> Iterator[Sample]:
    for queue, (waiting, running) in stats.queues.items():
        yield (queue, "waiting"), waiting
        yield (queue, "running"), running


def _slots(stats: Stats) -> Iterator[Sample]:
    for pool in stats.pools:
        yield (pool.tier.value, pool.component, "free"), pool.free
        yield (pool.tier.value, pool.component, "used"), pool.used


METRICS = (
    Metric(
        "hicache_match_tokens",
        "counter",
        ("tier",),
        "Tokens of matched keys by the tier on which they were found: device, host, or none.",
        _match_tokens,
    ),
    Metric(
        "hicache_refused_tokens",
        "counter",
        ("reason",),
        "Tokens of matched keys that FULL has and the hit does not: the component that cut it, or the admission.",
        _refused_tokens,
    ),
    Metric(
        "hicache_prefetch_tokens",
        "counter",
        (),
        "Tokens that prefetches brought from storage; a later match finds them on the host.",
        _prefetch_tokens,
    ),
    Metric(
        "hicache_bytes",
        "counter",
        ("transfer",),
        "Bytes moved by transfers that ended well: backup, load, store, prefetch.",
        _bytes,
    ),
    Metric(
        "hicache_staged_bytes",
        "counter",
        ("backend",),
        "Bytes copied once more on their way to or from storage, for a backend that has not accepted host memory.",
        _staged_bytes,
    ),
    Metric("hicache_evictions", "counter", ("tier",), "Nodes evicted from the device and from the host.", _evictions),
    Metric(
        "hicache_prefetches",
        "counter",
        ("reason",),
        "Prefetches by why they stopped: complete, room, the stop policy that cut them, miss, abort, drop, or limit.",
        _prefetches,
    ),
    Metric(
        "hicache_refused",
        "counter",
        ("transfer",),
        "Backups refused for lack of host space, and nodes that storage did not take.",
        _refused,
    ),
    Metric(
        "hicache_storage_errors",
        "counter",
        ("backend", "verb"),
        "Calls of the storage backend that raised or returned an invalid value.",
        _storage_errors,
    ),
    Metric(
        "hicache_storage_abandoned",
        "counter",
        ("backend",),
        "How often the storage backend was abandoned, because it did not answer in time.",
        _abandoned,
    ),
    Metric(
        "hicache_storage_breaker_open",
        "gauge",
        ("backend",),
        "1 from a failure of the server of the storage backend until the server answers again, else 0.",
        _breaker_open,
    ),
    Metric(
        "hicache_storage_pauses",
        "counter",
        ("backend",),
        "How often the server of the storage backend was not asked for a while, because it had failed.",
        _pauses,
    ),
    Metric(
        "hicache_queue_jobs",
        "gauge",
        ("queue", "state"),
        "Transfers and storage requests that wait, and those that run.",
        _queues,
    ),
    Metric(
        "hicache_slots",
        "gauge",
        ("tier", "component", "state"),
        "Slots of a component in tokens (states for mamba), free and used.",
        _slots,
    ),
    Metric("hicache_storage_seconds", "histogram", ("backend", "verb"), "Seconds of calls of the backend.", None),
    Metric(
        "hicache_collective_seconds", "histogram", ("axis", "purpose"), "Seconds of collectives of the ranks.", None
    ),
)


class CacheMetrics:
    """A collector of the metrics in METRICS, for all caches that are opened with it.

    Counters and gauges are read from the open caches when they are scraped, on the thread that scrapes. Counters keep
    what closed caches have counted. `registry`: None for the registry of the process. `clock`: of the histograms.
    Raises ConfigurationError without prometheus-client, and for a registry that has such a collector already.
    """

    def __init__(self, registry: Any = None, clock: Clock | None = None) -> None:
        try:
            import prometheus_client
            from prometheus_client import metrics_core
        except ImportError:
            raise ConfigurationError("metrics need prometheus-client: pip install 'hicache[metrics]'") from None
        self.registry = prometheus_client.REGISTRY if registry is None else registry
        self._clock = clock or WallClock()
        self._families = {"counter": metrics_core.CounterMetricFamily, "gauge": metrics_core.GaugeMetricFamily}
        self._histograms = {
            one.name: prometheus_client.Histogram(
                one.name, one.help, (*RANK, *one.labels), registry=None, buckets=BUCKETS_S
            )
            for one in METRICS
            if one.read is None
        }
        # Replaced as a whole, so that a scrape by another thread sees either all of a change or nothing of it.
        self._state: tuple[Mapping[tuple[str, tuple[str, ...]], float], Mapping[object, Callable[[], Stats]]] = ({}, {})
        try:
            self.registry.register(self)
        except ValueError as error:
            raise ConfigurationError(f"one CacheMetrics serves all caches of a registry: {error}") from error

    # What a cache calls.

    def add(self, cache: object, stats: Callable[[], Stats]) -> None:
        """Expose a cache from now on. `stats`: what it says of itself; any thread may call it."""
        closed, caches = self._state
        self._state = closed, {**caches, cache: stats}

    def remove(self, cache: object) -> None:
        """The cache is closed: keep what it has counted. A second call has no effect."""
        closed, caches = self._state
        if cache not in caches:
            return
        kept, stats = dict(closed), caches[cache]()
        for metric in METRICS:
            if metric.kind == "counter":
                _sum_up(kept, metric, stats)
        self._state = kept, {one: read for one, read in caches.items() if one is not cache}

    def measured_backend(
        self, open_backend: Callable[[str], StorageBackend], config: CacheConfig
    ) -> Callable[[str], StorageBackend]:
        """What opens a backend whose calls are measured."""
        if config.storage is None:
            return open_backend
        labels = (*_rank(config.topology), config.storage.backend)
        histogram = self._histograms["hicache_storage_seconds"]
        timed = _Timed(self._clock, lambda verb: histogram.labels(*labels, verb))
        return lambda scope: _MeasuredBackend(scope, open_backend(scope), timed)

    def measured_groups(self, groups: Mapping[str, Group], topology: Topology) -> dict[str, Group]:
        """The groups, whose collectives are measured."""
        histogram, rank = self._histograms["hicache_collective_seconds"], _rank(topology)

        def measured(axis: str, group: Group) -> Group:
            return _MeasuredGroup(group, _Timed(self._clock, lambda purpose: histogram.labels(*rank, axis, purpose)))

        return {axis: measured(axis, group) for axis, group in groups.items()}

    # What a registry calls.

    def describe(self) -> Iterator[Any]:
        """Every metric, without samples."""
        for metric in METRICS:
            if metric.kind in self._families:
                yield self._family(metric)
        for histogram in self._histograms.values():
            yield from histogram.describe()

    def collect(self) -> Iterator[Any]:
        """Every metric, as of now."""
        closed, caches = self._state
        every = [stats() for stats in caches.values()]
        for metric in METRICS:
            if metric.kind not in self._families:
                yield from self._histograms[metric.name].collect()
                continue
            totals = {key: value for key, value in closed.items() if key[0] == metric.name}
            for stats in every:
                _sum_up(totals, metric, stats)
            family = self._family(metric)
            for (_, labels), value in totals.items():
                family.add_metric(labels, value)
            yield family

    def _family(self, metric: Metric) -> Any:
        return self._families[metric.kind](metric.name, metric.help, labels=(*RANK, *metric.labels))


def _rank(topology: Topology) -> tuple[str, ...]:
    return tuple(str(getattr(topology, label)) for label in RANK)


def _sum_up(totals: dict[tuple[str, tuple[str, ...]], float], metric: Metric, stats: Stats) -> None:
    """Add what a cache says of a metric."""
    assert metric.read is not None, f"{metric.name} is read from a cache"
    rank = _rank(stats.config.topology)
    for labels, value in metric.read(stats):
        key = (metric.name, (*rank, *labels))
        totals[key] = totals.get(key, 0) + value


@dataclass(frozen=True, slots=True)
class _Timed:
    """Observes how long calls take, also those that raise. `histogram`: of a call's name."""

    clock: Clock
    histogram: Callable[[str], Any]

    def __call__(self, name: str, act: Callable[[], T]) -> T:
        begin_s = self.clock.now()
        try:
            return act()
        finally:
            self.histogram(name).observe(self.clock.now() - begin_s)


class _MeasuredBackend(StorageWrapper):
    """A backend whose calls are measured."""

    def __init__(self, scope: str, inner: StorageBackend, timed: _Timed) -> None:
        super().__init__(scope, {"inner": inner})
        self._timed = timed

    def has(self, keys: Sequence[str]) -> list[bool]:
        return self._timed("has", lambda: self.inner.has(keys))

    def exists(self, keys: Sequence[str], queries: Sequence[PoolQuery], prefix_keys: Sequence[str]) -> int:
        return self._timed("exists", lambda: self.inner.exists(keys, queries, prefix_keys))

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        return self._timed("get", lambda: self.inner.get(keys, targets, prefix_keys))

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        return self._timed("set", lambda: self.inner.set(keys, sources, prefix_keys))

    def clear(self) -> bool:
        return self._timed("clear", self.inner.clear)


class _MeasuredGroup:
    """A group whose collectives are measured."""

    def __init__(self, inner: Group, timed: _Timed) -> None:
        self._inner = inner
        self._timed = timed
        self.name, self.rank, self.size = inner.name, inner.rank, inner.size

    def reduce(self, values: Sequence[int], reduction: Reduction, purpose: str) -> list[int]:
        # What follows a colon is of this call alone.
        return self._timed(purpose.partition(":")[0], lambda: self._inner.reduce(values, reduction, purpose))

    def broadcast(self, values: Sequence[int], purpose: str) -> list[int]:
        return self._timed(purpose, lambda: self._inner.broadcast(values, purpose))

    def barrier(self, purpose: str) -> None:
        self._timed(purpose, lambda: self._inner.barrier(purpose))
