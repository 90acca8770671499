"""CacheMetrics: its numbers are the cache's own, and conserved; the page and the dashboard have each metric."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest
import typer

from hicache import (
    CacheConfig,
    CacheMetrics,
    HostConfig,
    RequestManager,
    StopPolicy,
    StorageConfig,
    Topology,
    open_cache,
)
from hicache.cache import UnifiedRadixCache
from hicache.cli.exposition import exposed
from hicache.errors import ConfigurationError
from hicache.parallel.group import Group, Reduction
from hicache.prometheus import METRICS, RANK, Metric
from hicache.storage.base import Breaker, PoolQuery
from hicache.storage.memory import MemoryStorage
from hicache.storage.pause import Pause
from hicache.testing.caches.dictionary import DictionaryAdapter
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.hybrid_model import TINY_MODEL, reshaped

prometheus_client = pytest.importorskip("prometheus_client", reason="needs pip install 'hicache[metrics]'")
text_string_to_metric_families = pytest.importorskip("prometheus_client.parser").text_string_to_metric_families

ROOT = Path(__file__).parents[3]
PAGE = 4
NAMED = (("refused", "reason"), ("match", "tier"))
FULL_MODEL = reshaped(TINY_MODEL, swa_layers=0, mamba_layers=0)


class Collected:
    """The samples of a registry, by name and labels, as a scrape gives them."""

    def __init__(self, metrics: CacheMetrics) -> None:
        text = prometheus_client.generate_latest(metrics.registry).decode()
        self.families = list(text_string_to_metric_families(text))
        self._samples = [sample for family in self.families for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """The sum of a metric over the labels that are not given."""
        found = [one.value for one in self._samples if one.name == name and labels.items() <= one.labels.items()]
        return float(sum(found))

    def by(self, name: str, label: str) -> dict[str, float]:
        """The sums of a metric by one label."""
        values = {sample.labels[label] for sample in self._samples if sample.name == name}
        return {value: self.value(name, **{label: value}) for value in values}


@pytest.fixture
def metrics() -> CacheMetrics:
    """In a registry of its own."""
    return CacheMetrics(prometheus_client.CollectorRegistry())


def three_tiers(store: Path, **storage: Any) -> CacheConfig:
    """FULL on the device and the host, and pages in memory by the name of a folder."""
    return CacheConfig(
        capacity_tokens={"full": 8 * PAGE},
        page_size=PAGE,
        model=FULL_MODEL,
        host=HostConfig({"full": 16 * PAGE}, load_back_threshold_tokens=0),
        storage=StorageConfig(
            storage.pop("backend", "memory"),
            "model",
            {"store": str(store)},
            prefetch_threshold=PAGE,
            **{"stop_policy": StopPolicy.WAIT_COMPLETE, **storage},
        ),
    )


def prompt(number: int, pages: int = 4) -> Any:
    """Tokens that no other number has."""
    return np.arange(pages * PAGE, dtype=np.int32) + 1000 * number


def insert(cache: UnifiedRadixCache, number: int) -> None:
    """Put a prompt into the tree, and its pages on all tiers."""
    slots = cache.allocate(4 * PAGE)
    assert slots is not None, f"there is room for a prompt, got {cache.sizes()}"
    cache.insert(cache.key(prompt(number)), slots)
    cache.drain()


def fetch(cache: UnifiedRadixCache, number: int) -> int:
    """Prefetch a prompt to its end; the tokens that came."""
    operation = cache.prefetch(cache.key(prompt(number)))
    assert operation is not None, "a prompt that is not in the tree is prefetched"
    cache.drain()
    came = cache.check_prefetch(operation)
    assert came is not None, "a prefetch that has ended says what came"
    return came


def test_hits_by_tier_sum_to_what_was_asked(metrics: CacheMetrics, tmp_path: Path) -> None:
    with open_cache(three_tiers(tmp_path), metrics=metrics) as cache:
        expected = {"device": 0, "host": 0, "none": 0}
        for number in (1, 2, 1, 3, 2, 9):
            found = cache.match(cache.key(prompt(number)))
            cache.match(cache.key(prompt(number)), chunked=True)
            expected["device"] += len(found.device_indices)
            expected["host"] += found.host_hit_length
            expected["none"] += 4 * PAGE - len(found.device_indices) - found.host_hit_length
            if number in (1, 2, 3) and not len(found.device_indices) and not found.host_hit_length:
                insert(cache, number)
        hits = Collected(metrics).by("hicache_match_tokens_total", "tier")
    assert hits == expected, f"expected {expected}, got {hits}"
    assert sum(hits.values()) == 6 * 4 * PAGE, f"six prompts were matched, got {hits}"
    assert all(hits.values()), f"the scenario has tokens on each tier and on none, got {hits}"


def test_what_an_admission_cannot_use_is_refused_by_it(metrics: CacheMetrics) -> None:
    # Three pages of the prompt are on the host, fewer than a load-back brings.
    host = HostConfig({"full": 16 * PAGE}, load_back_threshold_tokens=4 * PAGE)
    config = CacheConfig({"full": 8 * PAGE}, page_size=PAGE, model=FULL_MODEL, host=host)
    with open_cache(config, metrics=metrics) as cache:
        insert(cache, 1)
        cache.evict("full", 4 * PAGE)
        request = RequestManager(cache).admit(prompt(1))
        assert request is not None, "there is room"
        assert request.cached_tokens == 0, f"the load-back is refused, got {request.cached_tokens}"
    scrape = Collected(metrics)
    refused, matched = (scrape.by(f"hicache_{name}_tokens_total", label) for name, label in NAMED)
    assert (refused, matched) == ({"admission": 3 * PAGE}, {"device": 0, "host": 0, "none": 3 * PAGE}), f"got {refused}"


def test_the_counts_are_those_of_the_cache(metrics: CacheMetrics, tmp_path: Path) -> None:
    with open_cache(three_tiers(tmp_path), metrics=metrics) as cache:
        for number in range(1, 5):
            insert(cache, number)
        evicted = cache.evict("full", 4 * PAGE).victims
        before = Collected(metrics).by("hicache_evictions_total", "tier")
        cache.evict_host("full", 2**20)
        cache.reset()
        came = [fetch(cache, number) for number in (1, 8)]
        aborted = cache.prefetch(cache.key(prompt(2)))
        assert aborted is not None, "it is started"
        cache.abort_prefetch(aborted)
        cache.drain()
        assert cache.prefetch(cache.key(prompt(3))) is not None, "it is started, and the close drops it"
        scrape, counters = Collected(metrics), cache.counters
        errors = cache.storage.worker.errors if cache.storage else None
    assert evicted, "something was evicted"
    assert before["device"] >= evicted, f"expected at least {evicted} victims on the device, got {before}"
    assert scrape.by("hicache_evictions_total", "tier") == {
        "device": counters.traffic.device_evictions,
        "host": counters.traffic.host_evictions,
    }, "evictions by tier"
    moved = {"backup": counters.bytes_backed_up, "load": counters.bytes_loaded}
    moved |= {"store": counters.bytes_stored, "prefetch": counters.bytes_prefetched}
    assert scrape.by("hicache_bytes_total", "transfer") == moved, f"expected {moved}"
    assert moved["store"] == moved["backup"] > 0, f"each page that was backed up was stored, got {moved}"
    assert counters.bytes_staged == 0, f"STORE-16: {counters.bytes_staged} bytes were copied once more on the way"
    assert came == [4 * PAGE, 0], f"the first prompt is in storage, the other is not, got {came}"
    assert scrape.value("hicache_prefetch_tokens_total") == sum(came), f"expected {sum(came)}"
    assert scrape.value("hicache_storage_errors_total", backend="memory") == errors == 0, "no call failed"


def test_what_is_copied_once_more_on_its_way_is_counted(
    metrics: CacheMetrics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryStorage, "register", lambda *_: False)
    with open_cache(three_tiers(tmp_path), metrics=metrics) as cache:
        insert(cache, 1)
        cache.reset()
        came = fetch(cache, 1)
        scrape, counters = Collected(metrics), cache.counters
    moved = counters.bytes_stored + counters.bytes_prefetched
    assert came == 4 * PAGE, f"the prompt is in storage, {came} tokens came"
    assert counters.bytes_staged == moved > 0, f"STORE-16: of {moved} bytes {counters.bytes_staged} were counted"
    assert scrape.value("hicache_staged_bytes_total", backend="memory") == moved, "and they are a metric"


def test_each_prefetch_stops_for_one_reason(metrics: CacheMetrics, tmp_path: Path) -> None:
    with open_cache(three_tiers(tmp_path), metrics=metrics) as cache:
        insert(cache, 1)
        cache.reset()
        fetch(cache, 1)
        fetch(cache, 7)
        aborted = cache.prefetch(cache.key(prompt(2)))
        assert aborted is not None, "it is started"
        cache.abort_prefetch(aborted)
        cache.prefetch(cache.key(prompt(3)))
        cache.reset()
        counters = cache.counters
    with open_cache(
        three_tiers(tmp_path, stop_policy=StopPolicy.BEST_EFFORT, limit_tokens=4 * PAGE), metrics=metrics
    ) as cut:
        operation = cut.prefetch(cut.key(prompt(1)))
        assert operation is not None, "it is started"
        assert cut.prefetch(cut.key(prompt(2))) is None, "it is above the limit"
        assert cut.check_prefetch(operation) == 0, "it has no waiter"
    reasons = Collected(metrics).by("hicache_prefetches_total", "reason")
    expected = {"complete": 1, "room": 0, "miss": 1, "abort": 1, "drop": 1}
    expected |= {"wait_complete": 0, "best_effort": 1, "limit": 1}
    assert reasons == expected, f"expected {expected} of two caches, which are closed, got {reasons}"
    started = counters.traffic.prefetches_started + cut.counters.traffic.prefetches_started
    assert sum(reasons.values()) - reasons["limit"] == started == 5, f"expected {started} that were started, {reasons}"


def test_a_prefetch_that_the_host_has_no_room_for_is_no_miss_of_storage(metrics: CacheMetrics, tmp_path: Path) -> None:
    config = three_tiers(tmp_path)
    assert config.host is not None, "it has three tiers"
    small = replace(config, host=replace(config.host, capacity_tokens={"full": 2 * PAGE}))
    with open_cache(config) as cache:
        insert(cache, 1)
    with open_cache(small, metrics=metrics) as cache:
        came = [fetch(cache, number) for number in (1, 7)]
    reasons = Collected(metrics).by("hicache_prefetches_total", "reason")
    assert came == [2 * PAGE, 0], f"storage has the first prompt, and the host has room for half of it, got {came}"
    assert +Counter(reasons) == {"room": 1, "miss": 1}, f"one was shortened, one missed, got {reasons}"


def test_calls_of_storage_are_measured_and_errors_counted(
    metrics: CacheMetrics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"set": 0, "get": 0}
    for verb in asked:
        monkeypatch.setattr(MemoryStorage, verb, counting(asked, verb, getattr(MemoryStorage, verb)))
    with open_cache(three_tiers(tmp_path), metrics=metrics) as cache:
        insert(cache, 1)
        cache.reset()
        fetch(cache, 1)
        monkeypatch.setattr(MemoryStorage, "exists", refuse)
        fetch(cache, 2)
        scrape = Collected(metrics)
    counts = scrape.by("hicache_storage_seconds_count", "verb")
    assert {verb: counts[verb] for verb in asked} == asked, f"expected {asked}, got {counts}"
    assert scrape.by("hicache_storage_errors_total", "verb")["exists"] == 1, "the call that raised is counted"
    assert counts["exists"] == 2, f"the call that raised is measured too, got {counts}"


class PausingStorage(MemoryStorage):
    """Pages in memory, behind a server that a test lets fail. It is asked again at once."""

    is_down = False

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope, options)
        self._pause = Pause(0, lambda: 0.0)

    def exists(self, keys: Sequence[str], queries: Sequence[PoolQuery], prefix_keys: Sequence[str]) -> int:
        try:
            with self._pause.attempt((ConnectionError,)):
                if self.is_down:
                    raise ConnectionError("the server is down")
                return super().exists(keys, queries, prefix_keys)
        except OSError:
            return 0

    def breaker(self) -> Breaker:
        return self._pause.breaker


def test_the_breaker_is_open_until_the_server_answers_and_its_pauses_are_counted(
    metrics: CacheMetrics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scraped() -> tuple[float, float]:
        found = Collected(metrics)
        return found.value("hicache_storage_breaker_open"), found.value("hicache_storage_pauses_total")

    config = three_tiers(tmp_path, backend="hicache.tests.cache.test_metrics:PausingStorage")
    with open_cache(config, metrics=metrics) as cache:
        assert scraped() == (0, 0), "at first the server is asked"
        monkeypatch.setattr(PausingStorage, "is_down", True)
        for number in (1, 2):
            fetch(cache, number)
        assert scraped() == (1, 2), "it is down"
        assert cache.detach_storage(), "nothing is under way"
        assert cache.attach_storage(), "there is a backend again"
        fetch(cache, 3)
        assert scraped() == (1, 3), "a new instance goes on counting"
        monkeypatch.setattr(PausingStorage, "is_down", False)
        fetch(cache, 4)
        assert scraped() == (0, 3), "it answers again"
    assert Collected(metrics).value("hicache_storage_pauses_total") == 3, "what a closed cache has counted stays"
    with open_cache(three_tiers(tmp_path), metrics=CacheMetrics(prometheus_client.CollectorRegistry())) as cache:
        assert cache.storage is not None, "the cache has storage"
        assert cache.storage.worker.breaker is None, "a backend without a server has no breaker"


def counting(asked: dict[str, int], verb: str, call: Any) -> Any:
    """The call of a backend, counted."""

    def counted(*arguments: Any) -> Any:
        asked[verb] += 1
        return call(*arguments)

    return counted


def refuse(*_: object) -> int:
    """A call of a backend that fails."""
    raise OSError("no answer")


class Pair:
    """A group of two ranks that agree in everything. `calls`: what was called, with the purpose."""

    name, rank, size = "tp", 0, 2

    def __init__(self) -> None:
        self.calls: list[str] = []

    def reduce(self, values: Sequence[int], reduction: Reduction, purpose: str) -> list[int]:
        self.calls.append(purpose)
        return list(values)

    def broadcast(self, values: Sequence[int], purpose: str) -> list[int]:
        self.calls.append(purpose)
        return list(values)

    def barrier(self, purpose: str) -> None:
        self.calls.append(purpose)


def test_each_collective_is_measured_by_its_purpose(metrics: CacheMetrics) -> None:
    pair: Group = Pair()
    topology = Topology(tp_rank=0, tp_size=2, dp_rank=1, dp_size=2)
    sizes: dict[str, Any] = {"capacity_tokens": {"full": 8 * PAGE}, "page_size": PAGE, "topology": topology}
    host = HostConfig({"full": 8 * PAGE})
    with open_cache(groups={"tp": pair}, metrics=metrics, host=host, **sizes) as cache:
        insert(cache, 1)
    assert isinstance(pair, Pair), "it is the pair"
    scrape = Collected(metrics)
    expected = {purpose: pair.calls.count(purpose) for purpose in pair.calls}
    assert scrape.by("hicache_collective_seconds_count", "purpose") == expected, f"expected {expected}"
    assert scrape.value("hicache_collective_seconds_count", axis="tp", dp_rank="1") == len(pair.calls), (
        "labels of the rank"
    )


def test_two_ranks_of_one_process_are_told_apart(metrics: CacheMetrics) -> None:
    for rank in range(2):
        topology = Topology(dp_rank=rank, dp_size=2)
        with open_cache(capacity_tokens=8 * PAGE, page_size=PAGE, topology=topology, metrics=metrics) as cache:
            for _ in range(rank + 1):
                cache.match(cache.key(prompt(1)))
    found = Collected(metrics).by("hicache_match_tokens_total", "dp_rank")
    assert found == {"0": 4 * PAGE, "1": 8 * PAGE}, f"got {found}"


def test_gauges_are_of_open_caches_alone(metrics: CacheMetrics) -> None:
    with open_cache(capacity_tokens=8 * PAGE, page_size=PAGE, metrics=metrics) as cache:
        insert(cache, 1)
        slots = Collected(metrics).by("hicache_slots", "state")
        assert slots == {"free": 4 * PAGE, "used": 4 * PAGE}, f"got {slots}"
    cache.close()
    closed = Collected(metrics)
    assert not closed.by("hicache_slots", "state"), "a closed cache has no slots"
    assert len(closed.families) == len(METRICS), f"each metric stays, got {[one.name for one in closed.families]}"


# What is refused, and what is not imported.


def test_a_registry_has_one_collector(metrics: CacheMetrics) -> None:
    with pytest.raises(ConfigurationError, match="one CacheMetrics serves all caches of a registry"):
        CacheMetrics(metrics.registry)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'hicache\[metrics\]'"):
        CacheMetrics()


def test_what_is_no_cache_metrics_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="metrics must be a CacheMetrics or None, got True"):
        open_cache(capacity_tokens=PAGE, metrics=True)  # type: ignore[arg-type]


def test_a_cache_without_metrics_imports_no_prometheus_client() -> None:
    program = (
        "import sys, hicache; hicache.open_cache(capacity_tokens=4).close(); print('prometheus_client' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n", f"prometheus_client is imported: {done.stdout}{done.stderr}"


def test_a_cache_without_metrics_calls_the_backend_itself(tmp_path: Path) -> None:
    with open_cache(three_tiers(tmp_path)) as cache:
        assert cache.storage is not None, "it has a storage tier"
        backend = cache.storage.worker._backend
    assert type(backend) is MemoryStorage, f"expected no wrapper, got {backend!r}"


# The page, the dashboard and the replay.


def exposed_name(metric: Metric) -> str:
    """The name in a scrape."""
    return f"{metric.name}_total" if metric.kind == "counter" else metric.name


def test_the_page_has_each_metric() -> None:
    expected = [
        " | ".join(
            [f"| `{exposed_name(one)}`", one.kind, " ".join(f"`{label}`" for label in one.labels), f"{one.help} |"]
        )
        for one in METRICS
    ]
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    found = [line for line in page.splitlines() if line.startswith("| `hicache_")]
    assert found == expected, f"docs/metrics.md: expected {expected}, found {found}"


def expressions() -> Iterator[str]:
    """Each query of the dashboard."""
    dashboard = json.loads((ROOT / "docs" / "grafana.json").read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


def test_the_dashboard_has_each_metric_and_no_other() -> None:
    suffixes = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
    known = {f"{one.name}{suffix}": one.name for one in METRICS for suffix in suffixes[one.kind]}
    named = {name for expression in expressions() for name in re.findall(r"\bhicache_\w+", expression)}
    assert named <= known.keys(), f"the registry has no {named - known.keys()}"
    shown, expected = {known[name] for name in named}, {one.name for one in METRICS}
    assert shown == expected, f"the dashboard lacks {expected - shown}"


def test_the_dashboard_groups_by_labels_that_exist() -> None:
    labels = {label for one in METRICS for label in one.labels} | {*RANK, "le"}
    grouped = {
        one for text in expressions() for group in re.findall(r"by \(([^)]*)\)", text) for one in group.split(", ")
    }
    assert grouped <= labels, f"no metric has the labels {grouped - labels}"


def test_a_replay_writes_its_metrics_over_a_restart(tmp_path: Path) -> None:
    from hicache.cli.app import app

    file, report = tmp_path / "metrics.prom", tmp_path / "report"
    options = ["--capacity", "20%", "--host", "30%", "--executor", "stepped", "--storage", "memory", "--limit", "60"]
    program = typer.main.get_command(app)
    code = program(["replay", *options, "--metrics-file", str(file), "--report", str(report)], standalone_mode=False)
    assert not code, f"the replay ended with {code}"
    parsed = text_string_to_metric_families(file.read_text(encoding="utf-8"))
    families = {one.name: one for one in parsed if not one.name.endswith("_created")}
    assert families.keys() == {one.name for one in METRICS}, f"got {sorted(families)}"
    outcome = json.loads((report / "replay.json").read_text(encoding="utf-8"))
    (prefetched,) = (sample.value for sample in families["hicache_prefetch_tokens"].samples)
    expected = outcome["hit_tokens"]["storage"]
    assert prefetched == expected > 0, f"expected {expected} tokens from storage in both parts, got {prefetched}"


def test_the_port_serves_what_the_registry_has(capsys: pytest.CaptureFixture[str]) -> None:
    with exposed(ReferenceAdapter, None, 0) as adapter:
        printed = re.search(r"http://127\.0\.0\.1:\d+/metrics", capsys.readouterr().out)
        assert printed is not None, "the address is printed"
        with closing(adapter(CacheConfig({"full": 8 * PAGE}, PAGE))):
            text = urlopen(printed[0]).read().decode()  # noqa: S310 - an address of this machine
    expected = f'state="free",tier="device",tp_rank="0"}} {8 * PAGE}.0'
    assert expected in text, f"expected {expected} in {text}"
    with pytest.raises(URLError):
        urlopen(printed[0])  # noqa: S310 - as above


def test_an_adapter_that_exposes_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="DictionaryAdapter exposes no metrics"):  # noqa: SIM117
        with exposed(DictionaryAdapter, tmp_path / "metrics.prom", None):
            pytest.fail("nothing is exposed")
