"""Opens the caches that are measured, skips what the adapter does not declare, and prints the ratios of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.configurations import needs_of
from hicache.testing.plugin.subject import subject_of

from .turns import Ratio, Turns

Require = Callable[..., None]

ReportRatio = Callable[[str, Ratio], None]

MeasureBeside = Callable[..., None]

RATIOS = pytest.StashKey[list[tuple[str, Ratio]]]()
"""What was measured in this run: the test and what the ratio is of, and the ratio."""


def pytest_configure(config: pytest.Config) -> None:
    """No ratio has been measured yet."""
    config.stash[RATIOS] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the ratios, where any were measured."""
    if not (ratios := config.stash[RATIOS]):
        return
    terminalreporter.section("ratios of times, measured by turns")
    terminalreporter.write_line("pairs  of minima  median")
    for what, ratio in ratios:
        terminalreporter.write_line(f"{ratio.pairs:5}  {ratio.of_minima:9.2f}  {ratio.median:6.2f}  {what}")


@pytest.fixture(scope="session")
def adapter_type(pytestconfig: pytest.Config) -> type[CacheAdapter]:
    """The class under test, with its transfers as fast as they are."""
    return subject_of(pytestconfig).adapter


@pytest.fixture
def require(adapter_type: type[CacheAdapter]) -> Require:
    """Skips what the adapter does not declare: `require(config, *capabilities)`."""

    def require_all(config: CacheConfig, *needs: Capability) -> None:
        lacking = needs_of(config).union(needs) - adapter_type.capabilities
        if lacking:
            names = ", ".join(sorted(capability.name for capability in lacking))
            pytest.skip(f"adapter {adapter_type.__name__} does not declare {names}")

    return require_all


@pytest.fixture
def open_cache(adapter_type: type[CacheAdapter], require: Require) -> Iterator[Callable[..., CacheAdapter]]:
    """Opens a cache until the test ends, or skips: `open_cache(config, *capabilities)`."""
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
    """Takes what a ratio is of, and the ratio: it is stored with the benchmark, and printed after the run."""

    def report(what: str, ratio: Ratio) -> None:
        benchmark.extra_info[what] = {"pairs": ratio.pairs, "of minima": ratio.of_minima, "median": ratio.median}
        request.config.stash[RATIOS].append((f"{request.node.name}: {what}", ratio))

    return report


@pytest.fixture
def measure_beside(benchmark: BenchmarkFixture, report_ratio: ReportRatio) -> MeasureBeside:
    """Measures something by turns with a yardstick: `measure_beside(prepare, yardstick, act, rounds, what)`.

    Reports how many times as long the yardstick takes: a part of its speed. Without measuring, each runs once.
    """

    def measure(
        prepare: Callable[[], object],
        yardstick: Callable[[], object],
        act: Callable[[], object],
        rounds: int,
        what: str,
    ) -> None:
        turns = Turns()

        def set_up() -> None:
            prepare()
            turns.take("yardstick", lambda _: yardstick(), [None])

        benchmark.pedantic(  # type: ignore[no-untyped-call]
            lambda: turns.take("act", lambda _: act(), [None]), setup=set_up, rounds=rounds if benchmark.enabled else 1
        )
        if benchmark.enabled:
            report_ratio(what, turns.ratio("yardstick", "act"))

    return measure
