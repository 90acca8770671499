"""The record of a run: one execution for each test, from any process, written to run.json and read from it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hicache.errors import ConfigurationError
from hicache.testing.levels import Level
from hicache.testing.plugin.options import DEFAULT_ADAPTER
from hicache.testing.plugin.witnesses import Witnesses
from hicache.testing.plugin.workers import LEFT_THREADS, Workers
from hicache.testing.report import Execution, Outcome, RunRecord, Versions, merge_runs, read_run, write_run
from hicache.testing.report.run import WITNESSES, levels_not_whole, witnesses
from hicache.testing.snapshot import BlockSnapshot, CachedBlock
from hicache.tests.kit.suite_runs import FLAT_CACHE, HOSTILE, execution, record, run, run_recorded, write_suite
from hicache.types import SHARED

Change = Callable[[dict[str, Any]], object]


def test_a_record_reads_as_it_was_written(tmp_path: Path) -> None:
    written = record(
        execution("KEY-1"),
        execution("KEY-1", "KEY-2", outcome=Outcome.FAILED, reason=HOSTILE, name="test_two"),
        execution(outcome=Outcome.SKIPPED, configuration="", name="test_three"),
    )
    write_run(written, tmp_path / "run.json")
    assert read_run(tmp_path / "run.json") == written, "run.json does not hold the record that was written"


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("schema_version is 4, but this release reads 1 to 3", lambda table: table.update(schema_version=4)),
        ("schema_version is 0, but this release reads 1 to 3", lambda table: table.update(schema_version=0)),
        ("executions[0].collectives is missing", lambda table: table["executions"][0].pop("collectives")),
        ("versions is missing", lambda table: table.pop("versions")),
        ("versions is 2 (int), not a table", lambda table: table.update(versions=2)),
        ("versions.contract is '2'", lambda table: table["versions"].update(contract="2")),
        ("versions.interface is missing", lambda table: table["versions"].pop("interface")),
        ("versions.more is unknown", lambda table: table["versions"].update(more=1)),
        ("schema_version is True", lambda table: table.update(schema_version=True)),
        ("implementation is missing", lambda table: table.pop("implementation")),
        ("started is 3 (int)", lambda table: table.update(started=3)),
        ("environment is [] (list)", lambda table: table.update(environment=[])),
        ("environment.python is 3 (int)", lambda table: table["environment"].update(python=3)),
        ("capabilities[1] is None", lambda table: table.update(capabilities=["SWA", None])),
        ("capabilities is 'SWA'", lambda table: table.update(capabilities="SWA")),
        ("executions is {} (dict)", lambda table: table.update(executions={})),
        ("executions[1] is 'x'", lambda table: table["executions"].append("x")),
        ("more is unknown", lambda table: table.update(more=1)),
        ("executions[0].replay is missing", lambda table: table["executions"][0].pop("replay")),
        ("executions[0].outcome is 'fine'", lambda table: table["executions"][0].update(outcome="fine")),
        ("executions[0].duration_s is nan", lambda table: table["executions"][0].update(duration_s=float("nan"))),
        ("executions[0].duration_s is '1'", lambda table: table["executions"][0].update(duration_s="1")),
        ("executions[0].processes is missing", lambda table: table["executions"][0].pop("processes")),
        ("executions[0].operations is -1", lambda table: table["executions"][0].update(operations=-1)),
        ("executions[0].operations is 1.0", lambda table: table["executions"][0].update(operations=1.0)),
        ("executions[0].tier is unknown", lambda table: table["executions"][0].update(tier="host")),
    ],
)
def test_a_wrong_field_is_named_with_the_file(tmp_path: Path, field: str, change: Change) -> None:
    path = tmp_path / "run.json"
    write_run(record(execution("KEY-1")), path)
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))
    with pytest.raises(ConfigurationError) as raised:
        read_run(path)
    assert str(raised.value).startswith(f"{path}: {field}"), f"expected {path}: {field}, got {raised.value}"


OLDER = {
    1: (("versions", "profile"), ("causes", "lacks", "evidence", "processes", "collectives"), Versions(1, 1, 1)),
    2: ((), ("collectives",), record().versions),
}
"""The fields that an earlier schema did not have, of a run and of an execution, and the versions that it stands for."""


@pytest.mark.parametrize("schema", OLDER)
def test_a_run_of_an_earlier_schema_is_read(tmp_path: Path, schema: int) -> None:
    path, (of_run, of_execution, versions) = tmp_path / "run.json", OLDER[schema]
    write_run(record(replace(execution("RANK-1"), collectives=("nccl",))), path)
    table = json.loads(path.read_text())
    table = {name: value for name, value in table.items() if name not in of_run}
    for one in table["executions"]:
        for name in of_execution:
            del one[name]
    path.write_text(json.dumps({**table, "schema_version": schema}))
    found = read_run(path)
    assert found == replace(record(execution("RANK-1")), versions=versions), f"got {found}"


@pytest.mark.parametrize("text", [None, "", "[]", "{", "null"])
def test_a_file_that_is_missing_or_no_table_is_named(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "run.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"run\.json"):
        read_run(path)


ONE_OF_EACH = """
@clause("KEY-1", "MATCH-14", page_sizes=[3])
def test_passes(driver):
    slots = driver.allocate(3)
    driver.free(slots)

@clause("KEY-1", page_sizes=[1, 16])
def test_fails_once(config):
    assert config.page_size == 1, "KEY-1: expected 1"

@clause("LOCK-7")
def test_lacks(driver): ...

@clause("POOL-2", "MATCH-3")
def test_has_no_configuration(record_property):
    record_property("hicache.operations", 5)
    record_property("hicache.operations", 7)

@clause("KEY-1")
def test_starts_processes():
    import subprocess, sys
    subprocess.run([sys.executable, "-c", ""], check=True)
    sys.audit("hicache.process_started", 0)

@clause("KEY-1")
def test_has_ranks():
    from hicache.testing.ranks.seen import SEEN
    SEEN.add([("nccl", "gloo"), ("gloo",)])

@pytest.fixture
def broken():
    raise RuntimeError("no such pool")

@clause("POOL-3")
def test_does_not_begin(broken): ...

@clause()
def test_of_the_suite(): ...
"""


def _by_name(record: RunRecord) -> dict[str, Execution]:
    return {execution.node_id.partition("::")[2]: execution for execution in record.executions}


def _said(one: Execution) -> tuple[object, ...]:
    return one.outcome, one.clauses, one.configuration, one.operations, one.reason.partition("\n")[0]


KEY_1 = ("KEY-1",)
EXECUTED = {
    "test_passes[full/page3/lru]": (Outcome.PASSED, ("KEY-1", "MATCH-14"), "full/page3/lru", 2, ""),
    "test_fails_once[full/page1/lru]": (Outcome.PASSED, KEY_1, "full/page1/lru", 0, ""),
    "test_fails_once[full/page16/lru]": (
        *(Outcome.FAILED, KEY_1, "full/page16/lru", 0),
        "AssertionError: KEY-1: expected 1",
    ),
    "test_lacks[none]": (Outcome.SKIPPED, ("LOCK-7",), "", 0, "adapter FlatCache does not declare HOST: a host tier"),
    # MATCH-3 needs SWA, which FlatCache has not.
    "test_has_no_configuration": (Outcome.PASSED, ("POOL-2",), "", 12, ""),
    "test_starts_processes": (Outcome.PASSED, KEY_1, "", 0, ""),
    "test_has_ranks": (Outcome.PASSED, KEY_1, "", 0, ""),
    "test_does_not_begin": (Outcome.FAILED, ("POOL-3",), "", 0, "RuntimeError: no such pool"),
    "test_of_the_suite": (Outcome.PASSED, (), "", 0, ""),
}
"""Of each test: its outcome, its clauses, its configuration, its operations, and the first line of the reason."""


def test_every_test_has_one_execution_that_says_what_was_checked(pytester: pytest.Pytester) -> None:
    write_suite(pytester, ONE_OF_EACH)
    executions = _by_name(run_recorded(pytester))
    found = {name: _said(one) for name, one in executions.items()}
    assert found == EXECUTED, f"expected {EXECUTED}, got {found}"
    passed = executions["test_passes[full/page3/lru]"]
    place = "conformance/test_it.py::test_passes[full/page3/lru]"
    expected = ("conformance", place, f"pytest '{place}' --hicache-adapter {FLAT_CACHE}")
    assert (passed.suite, passed.node_id, passed.replay) == expected, f"the id begins at the suite, got {passed}"
    counts = {name: one.processes for name, one in executions.items() if one.processes}
    assert counts == {"test_starts_processes": 2}, f"expected one of subprocess and one of a fork server, got {counts}"
    seen = {name: one.collectives for name, one in executions.items() if one.collectives}
    assert seen == {"test_has_ranks": ("gloo",)}, f"expected what two ranks saw, in that test alone, got {seen}"


TWO_DEFECTS = """
from hypothesis import given, settings, strategies as st

@clause("POOL-2")
@settings(report_multiple_bugs=True)
@given(st.sampled_from((0, 10, -11)))  # few, so that no search misses one
def test_two_defects(number):
    assert number < 10, "too much"
    if number < -10:
        raise KeyError("too little")
"""


A_GROUP = """
@clause("POOL-2")
def test_a_group():
    raise ExceptionGroup("two", [AssertionError("too much"), KeyError("too little")])
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes from Python 3.11 on")
def test_a_failure_group_reports_each_failure_with_its_steps(pytester: pytest.Pytester) -> None:
    write_suite(pytester, TWO_DEFECTS)
    reason = _by_name(run_recorded(pytester))["test_two_defects"].reason
    for expected in ("2 failures in one test", "too much", "number=10", "KeyError: 'too little'", "number=-11"):
        assert expected in reason, f"{expected!r} is not in {reason!r}"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes from Python 3.11 on")
def test_a_known_failure_group_reports_each_failure(pytester: pytest.Pytester) -> None:
    # One failure is enough for a known failure, so that Hypothesis itself reports no group there.
    write_suite(pytester, A_GROUP)
    entry = '[[failure]]\nid = "conformance/test_it.py::*"\nkind = "bug"\nreason = "we know"\nlink = ""\n'
    (pytester.path / "known.toml").write_text(entry, encoding="utf-8")
    found = _by_name(run_recorded(pytester, "--hicache-known-failures", "known.toml"))["test_a_group"]
    assert found.reason.startswith("bug: we know\n"), f"why it is known comes first, got {found.reason!r}"
    for expected in ("too much", "KeyError: 'too little'"):
        assert expected in found.reason, f"its messages follow, got {found.reason!r}"


def test_a_known_failure_is_recorded_as_one(pytester: pytest.Pytester) -> None:
    write_suite(pytester, ONE_OF_EACH)
    entry = '[[failure]]\nid = "conformance/test_it.py::*[*/page16/*]"\nkind = "bug"\nreason = "we know"\nlink = ""\n'
    (pytester.path / "known.toml").write_text(entry, encoding="utf-8")
    executions = _by_name(run_recorded(pytester, "--hicache-known-failures", "known.toml"))
    found = executions["test_fails_once[full/page16/lru]"]
    assert found.outcome is Outcome.KNOWN_FAILURE, f"got {found}"
    lines = found.reason.splitlines()[:2]
    assert lines == ["bug: we know", "AssertionError: KEY-1: expected 1"], f"why it is known, and what it says: {lines}"


ONE_TEST = '@clause("KEY-1", page_sizes=[1])\ndef test_a(config): ...\n'


def test_the_report_or_the_record_alone_is_written(pytester: pytest.Pytester) -> None:
    write_suite(pytester, ONE_TEST)
    run(pytester, "--hicache-report", "new/folder").stdout.fnmatch_lines(["report: new/folder/report.html"])
    files = {path.name for path in (pytester.path / "new" / "folder").iterdir()}
    assert files == {"run.json", "report.html", "report.md", "junit.xml"}, f"got {sorted(files)}"
    run(pytester, "--hicache-report", "alone/one.json").stdout.fnmatch_lines(["report: alone/one.json"])
    files = {path.name for path in (pytester.path / "alone").iterdir()}
    assert files == {"one.json"}, f"expected the record alone, got {sorted(files)}"
    record = read_run(pytester.path / "alone" / "one.json")
    assert [one.outcome for one in record.executions] == [Outcome.PASSED], f"expected the run, got {record}"
    said = (record.implementation, record.capabilities)
    assert said == (FLAT_CACHE, ("NAMESPACES", "PAGED", "RESET", "VERBS")), f"expected those of FlatCache, got {said}"
    assert record.started.endswith("+00:00"), f"expected a time in UTC, got {record.started}"
    assert {"python", "platform", "pytest", "hicache"} <= set(record.environment), f"got {record.environment}"


def test_the_record_of_no_test_is_of_the_same_implementation(pytester: pytest.Pytester) -> None:
    write_suite(pytester, ONE_TEST)
    record = run_recorded(pytester, "-k", "KEY-1 and not test_a")
    assert not record.executions, f"no test is selected, got {record.executions}"
    assert record.implementation == FLAT_CACHE, f"expected that of the other suites, got {record.implementation!r}"


DIES = """
@clause("POOL-4")
def test_dies():
    import os
    os._exit(1)
"""


def test_a_worker_says_what_it_does_in_a_run_without_options(pytester: pytest.Pytester) -> None:
    write_suite(
        pytester,
        """
        @clause("KEY-1")
        def test_a(request):
            import pathlib
            assert pathlib.Path(request.config.workerinput["hicache_doing"]).is_dir(), "the main process reads there"
        """,
    )
    result = pytester.runpytest_subprocess("-n", "1", "conformance")
    result.assert_outcomes(passed=1)
    result.stderr.no_fnmatch_line("*ResourceWarning*")


def test_workers_report_to_one_record(pytester: pytest.Pytester) -> None:
    write_suite(pytester, ONE_OF_EACH + DIES)
    executions = _by_name(run_recorded(pytester, "-n", "1"))
    outcomes = Counter(execution.outcome for execution in executions.values())
    expected = {Outcome.PASSED: 6, Outcome.FAILED: 3, Outcome.SKIPPED: 1}
    assert outcomes == expected, f"expected {expected}, got {executions}"
    found = executions["test_passes[full/page3/lru]"]
    assert (found.clauses, found.operations) == (("KEY-1", "MATCH-14"), 2), f"got {found}"
    started = executions["test_starts_processes"].processes
    assert started == 2, f"expected the processes that a worker counted, got {started}"
    seen = executions["test_has_ranks"].collectives
    assert seen == ("gloo",), f"expected the collectives that a worker saw, got {seen}"
    died = executions["test_dies"]
    assert (died.clauses, died.outcome) == (("POOL-4",), Outcome.FAILED), f"a worker that dies is a failure: {died}"
    assert "crashed while running" in died.reason, f"expected the crash as the reason, got {died.reason!r}"


@pytest.mark.parametrize("order", [[["pump"], []], [[], ["pump"]]], ids=["first", "last"])
def test_the_threads_of_each_worker_are_named(pytester: pytest.Pytester, order: list[list[str]]) -> None:
    workers = Workers(pytester.parseconfig())
    for threads in order:
        workers.ended({LEFT_THREADS: threads})
    assert workers.left_behind().endswith("left running: pump"), f"got {workers.left_behind()!r}"


@pytest.mark.parametrize("narrowing", [("-k", "good"), ("-m", "clause"), ("--maxfail", "1"), ()], ids=" ".join)
def test_a_narrowed_run_is_whole_for_no_level(pytester: pytest.Pytester, narrowing: tuple[str, ...]) -> None:
    write_suite(
        pytester, '@clause("KEY-1")\ndef test_good(): ...\n@clause("KEY-1")\ndef test_bad():\n    assert None, "no"\n'
    )
    left = levels_not_whole(run_recorded(pytester, *narrowing))
    assert left == (frozenset(Level) if narrowing else frozenset()), f"{narrowing}: got {left}"


SEEN = """
@clause("MATCH-1", page_sizes=[1], policies=["lru"])
def test_hits_and_evictions(driver):
    key = driver.key(driver.prompt([1, 2, 3]))
    driver.match(key)
    driver.put(key)
    tokens = len(driver.match(key).device_indices)
    assert tokens == len(driver.adapter.read("kv", driver.match(key).device_indices, 0))
    driver.adapter.evict("full", tokens)

@clause("KEY-1", page_sizes=[1], policies=["lru"])
def test_nothing(driver): ...
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_run_records_what_its_tests_saw_the_cache_do(pytester: pytest.Pytester, workers: str) -> None:
    write_suite(pytester, SEEN)
    result = run(pytester, "--hicache-report", "out", "-n", workers, adapter=DEFAULT_ADAPTER)
    assert result.ret == pytest.ExitCode.OK, f"got {result.outlines}"
    found = read_run(pytester.path / "out" / "run.json")
    seen = {name: int(found.environment[name]) for name in WITNESSES}
    tests = sum("test_hits" in one.node_id for one in found.executions)
    assert tests > 0, f"no test ran: {found.executions}"
    assert (seen["hits"], seen["loads"]) == (2 * tests, 0), f"two hits in each of {tests} tests, no load: {seen}"
    assert seen["evictions"] >= tests, f"an eviction in each of {tests} tests: {seen}"
    assert seen["bytes read back"] > 0, f"the bytes of a hit were read: {seen}"
    both = merge_runs([found, replace(found, executions=())])
    assert witnesses(both).startswith(f"witnesses: {4 * tests:,} hits, 0 loads, "), f"the sum of two runs: {both}"


def test_what_a_cache_of_blocks_evicts_is_seen_between_two_snapshots() -> None:
    block = CachedBlock("full", 1, SHARED, b"1234", 0)
    seen = Witnesses()
    seen.add_snapshots(None, BlockSnapshot((block,), ()))
    seen.add_snapshots(BlockSnapshot((block,), ()), BlockSnapshot((replace(block, prefix=b"5678"),), ()))
    seen.add("match", None)
    assert dict(seen.take())["hicache.evictions"] == 1, "one block has another prefix now, and no answer shows a hit"
    assert not any(count for _, count in seen.take()), "what was taken does not count twice"


def test_workers_alone_import_the_reference(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        seen="""
        import sys

        def pytest_unconfigure(config):
            print("torch is imported:", "torch" in sys.modules)
        """
    )
    write_suite(pytester, ONE_TEST)
    pytester.syspathinsert()
    result = pytester.runpytest_subprocess("-n", "1", "-p", "seen", "--hicache-report", "out", "conformance")
    result.stdout.fnmatch_lines(["*torch is imported: False"])
    found = read_run(pytester.path / "out" / "run.json")
    assert found.implementation == DEFAULT_ADAPTER, f"expected the reference, got {found.implementation}"
    assert "SNAPSHOT" in found.capabilities, f"expected what it declares, got {found.capabilities}"
