"""Fixtures that open the measured caches, skip tests that the adapter does not support, and print ratios of times."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.configurations import needs_of
from hicache.testing.plugin.selection import subject_of

from .measurement import AlternatingTimes, Ratio

Require = Callable[..., None]

ReportRatio = Callable[[str, Ratio], None]

MeasureBeside = Callable[..., None]

RATIOS = pytest.StashKey[list[tuple[str, Ratio]]]()
"""The ratios that were measured in this run, each with the name of its test and of the measured work."""


def pytest_configure(config: pytest.Config) -> None:
    """Start without ratios."""
    config.stash[RATIOS] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the ratios, if any were measured."""
    if not (ratios := config.stash[RATIOS]):
        return
    terminalreporter.section("ratios of times, measured alternately")
    terminalreporter.write_line("pairs  of minima  median")
    for what, ratio in ratios:
        terminalreporter.write_line(f"{ratio.pairs:5}  {ratio.of_minima:9.2f}  {ratio.median:6.2f}  {what}")


@pytest.fixture(scope="session")
def adapter_type(pytestconfig: pytest.Config) -> type[CacheAdapter]:
    """The class under test, without added delays or faults."""
    return subject_of(pytestconfig).adapter


@pytest.fixture
def require(adapter_type: type[CacheAdapter]) -> Require:
    """Skips the test unless the adapter declares what it needs: `require(config, *capabilities)`."""

    def require_all(config: CacheConfig, *needs: Capability) -> None:
        lacking = needs_of(config).union(needs) - adapter_type.capabilities
        if lacking:
            names = ", ".join(sorted(capability.name for capability in lacking))
            pytest.skip(f"adapter {adapter_type.__name__} does not declare {names}")

    return require_all


@pytest.fixture
def open_cache(adapter_type: type[CacheAdapter], require: Require) -> Iterator[Callable[..., CacheAdapter]]:
    """Opens caches that are closed after the test, or skips it: `open_cache(config, *capabilities)`."""
    opened: list[CacheAdapter] = []

    def open_one(config: CacheConfig, *needs: Capability) -> CacheAdapter:
        require(config, *needs)
        opened.append(adapter_type(config))
        return opened[-1]

    yield open_one
    for cache in opened:
        cache.close()


@pytest.fixture
def report_ratio(request: pytest.FixtureRequest, benchmark: BenchmarkFixture) -> ReportRatio:
    """Records a ratio under a name: in the benchmark's data, and in the list printed after the run."""

    def report(what: str, ratio: Ratio) -> None:
        benchmark.extra_info[what] = {"pairs": ratio.pairs, "of minima": ratio.of_minima, "median": ratio.median}
        request.config.stash[RATIOS].append((f"{request.node.name}: {what}", ratio))

    return report


@pytest.fixture
def measure_beside(benchmark: BenchmarkFixture, report_ratio: ReportRatio) -> MeasureBeside:
    """Measures a call alternately with a baseline: `measure_beside(prepare, baseline, act, rounds, what)`.

    Reports the ratio of the baseline's time to the call's time, its speed as a share of the baseline's speed. With
    --benchmark-disable each runs once.
    """

    def measure(
        prepare: Callable[[], object],
        baseline: Callable[[], object],
        act: Callable[[], object],
        rounds: int,
        what: str,
    ) -> None:
        times = AlternatingTimes()

        def set_up() -> None:
            prepare()
            times.measure("baseline", lambda _: baseline(), [None])

        benchmark.pedantic(  # type: ignore[no-untyped-call]
            lambda: times.measure("act", lambda _: act(), [None]),
            setup=set_up,
            rounds=rounds if benchmark.enabled else 1,
        )
        if benchmark.enabled:
            report_ratio(what, times.ratio("baseline", "act"))

    return measure
