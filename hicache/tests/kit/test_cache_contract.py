"""CacheContract and `hicache_driver`: clauses of the contract among a project's own tests."""

from __future__ import annotations

import shlex
from collections import Counter

import pytest

from hicache.testing import cache_contract
from hicache.testing.cache_contract import CacheContract
from hicache.testing.contract import CONTRACT
from hicache.testing.report import Outcome, read_run
from hicache.tests.kit.suite_runs import FLAT_CACHE, run, run_recorded

IMPORTED = (cache_contract,)
"""Modules that a run imports, as in suite_runs."""

HEAD = """
import pytest
from hicache.testing import CacheContract
from hicache.tests.kit.hosted_cache import FlatCache

class Forgetful(FlatCache):
    def match(self, key, *, chunked):
        self.entries.clear()
        return super().match(key, chunked=chunked)
"""


def write_tests(pytester: pytest.Pytester, source: str) -> None:
    """Write a project's test file, with a broken cache at its head."""
    pytester.makepyfile(test_mine=HEAD + source)


def test_a_class_has_the_tests_of_its_clauses_alone(pytester: pytest.Pytester) -> None:
    write_tests(
        pytester,
        """
class TestMine(CacheContract):
    adapter = FlatCache
    clauses = ["MATCH-*", "LOCK-1"]
""",
    )
    found = run_recorded(pytester, "--hicache-quick").executions
    outcomes = {one.outcome for one in found}
    assert outcomes == {Outcome.PASSED, Outcome.SKIPPED}, f"expected no failure, got {outcomes}"
    assert all(one.node_id.startswith("test_mine.py::TestMine::test_") for one in found), "each is a test of the class"
    wanted = [any(one == "LOCK-1" or one.startswith("MATCH-") for one in each.clauses) for each in found]
    executed = [one for one in found if one.outcome is Outcome.PASSED]
    assert all(wanted), "each test names one of the clauses"
    assert {"MATCH-1"} <= {one for each in executed for one in each.clauses}, f"got {executed}"


def test_every_test_of_the_suite_without_a_storage_backend_can_be_taken() -> None:
    class Whole(CacheContract):
        """All clauses."""

    taken = {name for name in vars(Whole) if name.startswith("test_")}
    suite = {name for module in cache_contract._modules() for name in vars(module) if name.startswith("test_")}
    assert taken == suite, f"not taken: {sorted(suite - taken)}"
    assert len(taken) > 300, f"expected the suite, got {len(taken)} tests"


def test_a_broken_cache_fails_the_clause_and_the_command_repeats_it(pytester: pytest.Pytester) -> None:
    write_tests(
        pytester,
        """
class TestMine(CacheContract):
    adapter = Forgetful
    clauses = ["MATCH-1"]
""",
    )
    record = run_recorded(pytester, "test_mine.py")
    failed = [one for one in record.executions if one.outcome is Outcome.FAILED]
    assert failed, "a cache that forgets has to fail"
    assert any("MATCH-1" in one.causes for one in failed), f"got {[one.causes for one in failed]}"
    assert failed[0].replay.startswith("pytest 'test_mine.py::TestMine::test_"), f"got {failed[0].replay}"
    assert record.implementation == "test_mine:Forgetful", f"expected the class's adapter, got {record.implementation}"


def test_a_class_may_name_its_configurations_and_have_tests_of_its_own(pytester: pytest.Pytester) -> None:
    write_tests(
        pytester,
        """
from hicache.testing.configurations import standard_configurations

ALL = standard_configurations(FlatCache.capabilities)

class TestMine(CacheContract):
    adapter = FlatCache
    configurations = [one for one in ALL if one.page_size == 16]
    clauses = ["MATCH-1"]

    def test_own(self, driver, config):
        assert config.page_size == 16
        driver.check()

class TestTwo(CacheContract):
    adapter = FlatCache
    configurations = ALL[:1]
    clauses = []

    def test_own(self, adapter, config):
        assert config is ALL[0]
""",
    )
    result = run(pytester, "-v")
    assert result.ret == pytest.ExitCode.OK, f"expected a run that passes, got {result.outlines}"
    lines = [line for line in result.outlines if "PASSED" in line]
    assert lines, "tests were executed"
    assert all("page16" in line for line in lines if "TestMine" in line and "[" in line.split()[0]), (
        f"only those of the class: {lines}"
    )
    assert sum("TestTwo::test_own[" in line for line in lines) == 1, f"one configuration: {lines}"


def test_a_pattern_of_no_clause_is_named(pytester: pytest.Pytester) -> None:
    write_tests(pytester, 'class TestMine(CacheContract):\n    adapter = FlatCache\n    clauses = ["LOCK-99"]\n')
    result = run(pytester)
    assert result.ret == pytest.ExitCode.INTERRUPTED, f"expected an error at collection, got {result.ret}"
    result.stdout.fnmatch_lines(["*ConfigurationError: clauses: the contract has no LOCK-99"])


def test_a_driver_of_an_own_test_checks_once_more_at_its_end(pytester: pytest.Pytester) -> None:
    write_tests(
        pytester,
        """
from hicache.testing.driving.driver import Driver

closed, checked = [], []

class Closing(FlatCache):
    def close(self):
        closed.append(self)
        super().close()

@pytest.fixture(autouse=True)
def counted(monkeypatch):
    check = Driver.check
    monkeypatch.setattr(Driver, "check", lambda driver: (checked.append(driver), check(driver)))

def test_two_caches(hicache_driver):
    one, two = hicache_driver(Closing), hicache_driver(Closing)
    assert one.adapter is not two.adapter
    del checked[:]

def test_both_were_checked_and_closed():
    assert len(checked) == 2 and len(closed) == 2, (checked, closed)

def test_the_adapter_of_the_run(hicache_driver):
    assert type(hicache_driver().adapter).__name__ == "FlatCache"

def test_a_violation(hicache_driver):
    driver = hicache_driver()
    driver.check = lambda: pytest.fail("POOL-1: at the end")
""",
    )
    result = run(pytester, adapter=FLAT_CACHE)
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*POOL-1: at the end"])


LEAKING = """
import pytest
from hicache.testing import CacheContract
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.plugin.selection import configurations_of

class Leaking(ReferenceAdapter):
    def unlock(self, receipt):
        pass

def find_the_leak(driver):
    for pages in ([1], [1, 2]):
        driver.put(driver.key(driver.prompt(pages)))
"""

OWN_TESTS = {
    "function": "def test_own(hicache_driver):\n    find_the_leak(hicache_driver(Leaking))",
    "parameter": """
@pytest.mark.parametrize("text", ["a b"])
def test_own(hicache_driver, text):
    find_the_leak(hicache_driver(Leaking))
""",
    "fixture": """
@pytest.fixture
def opened(hicache_driver):
    return hicache_driver(Leaking)

class TestMine:
    def test_own(self, opened):
        find_the_leak(opened)
""",
    "setup": """
@pytest.fixture
def leaked(hicache_driver):
    find_the_leak(hicache_driver(Leaking))

def test_own(leaked):
    pass
""",
    "asked-for": 'def test_own(request):\n    find_the_leak(request.getfixturevalue("hicache_driver")(Leaking))',
    "end": """
def test_own(hicache_driver):
    driver = hicache_driver(Leaking)
    driver.check_every = 0
    find_the_leak(driver)
""",
    "class": """
class TestMine(CacheContract):
    adapter = Leaking
    configurations = configurations_of(Leaking, quick=True)[:1]
    clauses = []

    def test_own(self, driver):
        find_the_leak(driver)
""",
}
"""Tests of a project that find a leaked lock, by the way in which they come to their driver."""


@pytest.mark.parametrize("source", OWN_TESTS.values(), ids=OWN_TESTS)
def test_a_failed_test_of_a_project_is_explained_and_counted(pytester: pytest.Pytester, source: str) -> None:
    """As one of a suite, without any option of the suites."""
    pytester.makepyfile(test_mine=LEAKING + source)
    result = run(pytester, "test_mine.py", adapter=None)
    assert result.ret == pytest.ExitCode.TESTS_FAILED, f"expected a failure, got {result.outlines}"
    titles = [line.strip("- ") for line in result.outlines if line.startswith("---")]
    assert [title[:8] for title in titles] == ["LOCK-2", "the last", "the tree", "replay"], f"got {titles}"
    result.stdout.fnmatch_lines(
        [f"*{CONTRACT['LOCK-2'].sentence[:40]}*", "at: *", "expected: *", "got: *", "✗ unlock(*"]
    )
    command = result.outlines[next(row for row, line in enumerate(result.outlines) if line.strip("- ") == "replay") + 1]
    program, name = shlex.split(command)
    assert (program, name.partition("::")[0]) == ("pytest", "test_mine.py"), f"got {command}"
    run(pytester, name, adapter=None).stdout.fnmatch_lines(["*LOCK-2: *"])
    assert result.outlines[-1] == "hicache: 0 passed, 1 failed, 0 skipped", f"got {result.outlines[-1]}"


BESIDE = """
class TestMine(CacheContract):
    adapter = ReferenceAdapter
    configurations = configurations_of(ReferenceAdapter, quick=True)[:1]
    clauses = ["KEY-1"]

def test_sound(hicache_driver):
    find_the_leak(hicache_driver(ReferenceAdapter))

@pytest.mark.skip(reason="not now")
def test_later(hicache_driver):
    raise AssertionError

def test_elsewhere():
    raise AssertionError("of no cache")
"""


@pytest.mark.parametrize("processes", ["0", "1"])
def test_the_last_line_counts_the_tests_of_clauses_and_those_with_a_driver(
    pytester: pytest.Pytester, processes: str
) -> None:
    pytester.makepyfile(test_mine=LEAKING + OWN_TESTS["function"] + BESIDE)
    options = ("-n", processes, "--hicache-report", "run.json")
    result = run(pytester, "test_mine.py", *options, adapter=None)
    record = read_run(pytester.path / "run.json")
    counts = Counter(one.outcome.value for one in record.executions)
    assert counts["failed"] == 1, f"expected the test with the leak, got {counts}"
    assert counts["passed"] > 1, f"expected tests of KEY-1 and one with a driver, got {counts}"
    start = f"hicache: {counts['passed']} passed, 1 failed, {counts['skipped']} skipped, "
    assert result.outlines[-1].startswith(start), f"expected {start}, got {result.outlines[-1]}"
    assert record.implementation.split(", ") == [
        "hicache.testing.caches.reference:ReferenceAdapter",
        "test_mine:Leaking",
    ], f"expected the adapters that were opened, got {record.implementation}"


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("test_sound", pytest.ExitCode.OK),
        ("test_later", pytest.ExitCode.OK),
        ("test_no", pytest.ExitCode.NO_TESTS_COLLECTED),
    ],
)
@pytest.mark.parametrize("adapter", [None, FLAT_CACHE])
def test_a_run_of_tests_with_drivers_alone_needs_no_clause(
    pytester: pytest.Pytester, source: str, code: pytest.ExitCode, adapter: str | None
) -> None:
    pytester.makepyfile(test_mine=LEAKING + BESIDE)
    result = run(pytester, "test_mine.py", "-k", source, adapter=adapter)
    assert result.ret == code, f"expected {code}, got {result.outlines}"
