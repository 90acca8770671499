"""CacheContract and `hicache_driver`: clauses of the contract among a project's own tests."""

from __future__ import annotations

import pytest

from hicache.testing import cache_contract
from hicache.testing.cache_contract import CacheContract
from hicache.testing.plugin import own_drivers
from hicache.testing.report import Outcome
from hicache.tests.kit.suite_runs import FLAT_CACHE, run, run_recorded

IMPORTED = (cache_contract, own_drivers)
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
