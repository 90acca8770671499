"""The suites beside other plugins of pytest. Those that are not installed are skipped; `tox -e beside` installs all."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from hicache.testing.plugin.failures import FLAKY, TIMED_OUT
from hicache.testing.report import Outcome, RunRecord, read_run
from hicache.tests.kit.suite_runs import FLAT_CACHE, write_suite

SUITE = """
@clause("MATCH-1")
@pytest.mark.parametrize("number", range(3))
def test_passes(driver, number):
    driver.check()

@clause("MATCH-2")
def test_fails_always(config):
    pytest.fail("MATCH-2: on purpose")

failures = []

@clause("KEY-1")
def test_fails_once(config):
    failures.append(config.name)
    assert failures.count(config.name) > 1, "KEY-1: the first time"
"""

PLUGINS: dict[str, tuple[str, ...]] = {
    "pytest_randomly": (),
    "pytest_cov": ("--cov=conformance", "--cov-report="),
    "pytest_timeout": ("--timeout", "300"),
    "pytest_html": ("--html=theirs.html",),
    "pytest_rerunfailures": ("--reruns", "1"),
    "pytest_reportlog": ("--report-log=theirs.json",),
    "pytest_reporter_html1": ("--template=html1/index.html", "--report=theirs1.html"),
    "pytest_sugar": (),
}
"""Plugins by their modules, with options that have them do something."""


def needs(*plugins: str) -> None:
    """Skip the test where one of these is not installed."""
    missing = [plugin for plugin in plugins if find_spec(plugin) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


def recorded(pytester: pytest.Pytester, *options: str) -> tuple[pytest.RunResult, RunRecord]:
    """Run the suite in a process of its own."""
    fixed = ("-p", "no:cacheprovider", "--hicache-adapter", FLAT_CACHE, "--hicache-report", "out")
    result = pytester.runpytest_subprocess(*fixed, *options, "conformance")
    assert result.ret == pytest.ExitCode.TESTS_FAILED, f"expected failed tests, got {result.ret}: {result.outlines}"
    return result, read_run(pytester.path / "out" / "run.json")


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one-process", "two-workers"])
@pytest.mark.parametrize("plugin", [*PLUGINS, "all"])
def test_the_verdict_is_that_without_the_plugin(
    pytester: pytest.Pytester, plugin: str, processes: tuple[str, ...]
) -> None:
    named = PLUGINS if plugin == "all" else {plugin: PLUGINS[plugin]}
    needs(*named)
    write_suite(pytester, SUITE)
    result, record = recorded(pytester, *processes, *(word for words in named.values() for word in words))
    is_rerun = "pytest_rerunfailures" in named
    expected = {"test_passes": Outcome.PASSED, "test_fails_always": Outcome.FAILED, "test_fails_once": Outcome.FAILED}
    assert len(record.executions) == 4 * 5, f"each test counts once, got {len(record.executions)}"
    for one in record.executions:
        name = one.node_id.partition("::")[2].partition("[")[0]
        assert one.outcome is expected[name], f"{one.node_id}: expected {expected[name]}, got {one}"
        assert one.replay == f"pytest '{one.node_id}' --hicache-adapter {FLAT_CACHE}", f"got {one.replay}"
        if one.outcome is Outcome.FAILED:
            is_flaky = is_rerun and name == "test_fails_once"
            assert one.causes == ((FLAKY,) if is_flaky else one.clauses), f"each cause once, got {one.causes}"
    assert result.outlines[-1].startswith("hicache: 12 passed, 8 failed, 0 skipped"), f"got {result.outlines[-1]}"


def test_a_test_that_passes_when_it_is_run_again_is_flaky(pytester: pytest.Pytester) -> None:
    needs("pytest_rerunfailures")
    write_suite(pytester, SUITE)
    result, record = recorded(pytester, "--reruns", "1")
    reasons = [one.reason for one in record.executions if "fails_once" in one.node_id]
    causes = {one.causes for one in record.executions if "fails_once" in one.node_id}
    assert causes == {(FLAKY,)}, f"expected a cause of its own, got {causes}"
    assert all("KEY-1: the first time" in one for one in reasons), f"the first message is kept, got {reasons}"
    assert result.outlines[-1].endswith(", 4 flaky"), f"the last line counts them, got {result.outlines[-1]}"


def test_a_test_that_takes_too_long_breaks_no_clause(pytester: pytest.Pytester) -> None:
    needs("pytest_timeout")
    source = """
        import threading

        @clause("MATCH-1")
        def test_waits(config):
            threading.Event().wait()
    """
    write_suite(pytester, source)
    _, record = recorded(pytester, "--timeout", "1", "-k", "page16")
    (found,) = record.executions
    assert (found.outcome, found.causes) == (Outcome.FAILED, (TIMED_OUT,)), f"expected a timeout, got {found}"
    assert found.reason.startswith("Failed: Timeout (>1.0s)"), f"got {found.reason}"
