"""Mutants: their tables name what there is; each that diverges between ranks fails the test that is named for it.

That the reference passes the same tests is what the environment `distributed` shows.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

import pytest

from hicache.cli.stage import suite_folder
from hicache.parallel.group import Reduction
from hicache.testing.adapter import CacheAdapter
from hicache.testing.contract import CONTRACT
from hicache.testing.plugin.options import DEFAULT_ADAPTER
from hicache.tests.cache.parallel import test_torch_group
from hicache.tests.kit.suite_runs import run
from hicache.tests.proof.mutant_table import MUTANTS, QUICK
from hicache.tests.proof.mutants.accuracy import transfers as accuracy
from hicache.tests.proof.mutants.accuracy.unseen import UNSEEN, Unseen
from hicache.tests.proof.mutants.rank_streams import EventsOfTheFirst, OwnEvents
from hicache.tests.proof.mutants.ranks import (
    NumbersAnywhere,
    OwnCapacities,
    PoolByPool,
    SidecarsOnTheirOwn,
    StagesOnTheirOwn,
)
from hicache.tests.proof.mutants.rows import ROWS, Row
from hicache.tests.proof.only_full import only_full

ROOT = Path(__file__).parents[3]

# The tables.

SOURCE = r"ours|[A-Za-z-]+#\d+"

BY_SUITE = {"distributed_tests": ROWS, "accuracy": accuracy.ROWS}

each_row = pytest.mark.parametrize(
    ("suite", "row"),
    [pytest.param(suite, row, id=row.slug) for suite, rows in BY_SUITE.items() for row in rows],
)


def defines(test: str) -> bool:
    """Whether there is a test function of this name, with any parameters."""
    path, _, name = test.partition("[")[0].partition("::")
    return bool(re.search(rf"^def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE))


@each_row
def test_a_row_names_clauses_a_source_and_a_test(suite: str, row: Row) -> None:
    assert set(row.clauses) <= CONTRACT.keys(), f"{row.slug}: the contract has no clause {row.clauses}"
    assert re.fullmatch(SOURCE, row.source), f"{row.slug}: a source is {SOURCE}, got {row.source}"
    assert defines(f"{suite}/{row.test}"), f"{row.slug}: {suite} has no test {row.test}"


@pytest.mark.parametrize("suite", BY_SUITE)
def test_no_mutant_stands_in_a_table_twice(suite: str) -> None:
    slugs, adapters = ([getattr(row, name) for row in BY_SUITE[suite]] for name in ("slug", "adapter"))
    assert len({*slugs}) == len({*adapters}) == len(slugs), f"{suite}: expected each once, got {slugs}, {adapters}"


@pytest.mark.parametrize("unseen", UNSEEN, ids=lambda unseen: unseen.source)
def test_what_no_model_sees_is_found_elsewhere(unseen: Unseen) -> None:
    assert re.fullmatch(SOURCE, unseen.source), f"a source is {SOURCE}, got {unseen.source}"
    assert defines(unseen.test), f"{unseen.source}: {unseen.defect}: there is no test {unseen.test}"


# What `make test` finds.

RACE = "hicache/tests/cache/transfer/test_streams.py::test_a_schedule_of_a_cache_has_no_race_in_any_order"
"""Finds each mutant on streams: it plays the schedule that they are found by."""


def test_the_quick_profile_runs_a_test_that_finds_a_mutant_or_the_mutant_says_why_not() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    quick = {line for line in done.stdout.splitlines() if "::" in line}
    quick |= {line.partition("[")[0] for line in quick}
    assert RACE in quick, f"expected {RACE} in the quick profile"
    of_suites = [(row.slug, f"{suite}/{row.test}", row.quick_test) for suite, rows in BY_SUITE.items() for row in rows]
    of_table = [(one.slug, one.test if one.adapter == DEFAULT_ADAPTER else "", one.quick_test) for one in MUTANTS]
    listed = {*chain.from_iterable(only_full().values())}
    for slug, test, quick_test in (*of_suites, *of_table):
        found = [test in quick, quick_test in quick, slug in listed]
        assert sum(found) == 1, f"{slug}: expected one of: test in quick, quick_test in quick, full_only; got {found}"


# Each mutant on several ranks fails by name, within its time.

SUITE = "distributed_tests"

MACHINE = "test_one_tree.py::test_ranks_hold_one_tree_whatever_happens_on_each"

ON_STREAMS = "test_streams.py::test_ranks_on_streams_hold_one_tree_whatever_happens_on_each"

PARTED = r"RANK-1: \w+: expected the same tree on every rank, got rank \d has"

SEARCHED: Mapping[type[CacheAdapter], tuple[str, str]] = {
    OwnCapacities: (f"{MACHINE}[tp2]", PARTED),
    StagesOnTheirOwn: (f"{MACHINE}[pp2-tp2]", PARTED),
    PoolByPool: (f"{MACHINE}[tp2]", r"rank \d of tp skipped call \d+ \(MIN completed \w+\)"),
    OwnEvents: (f"{ON_STREAMS}[tp2]", PARTED),
    EventsOfTheFirst: (f"{ON_STREAMS}[tp2]", r"pairs of accesses in no order"),
    SidecarsOnTheirOwn: (
        f"{MACHINE}[tp2]",
        r"RANK-1: expected the same answer of check_prefetch on every rank, got by rank \[\d+, \d+\]",
    ),
}
"""What a search in one process finds too: which one, and what it says."""

WITHOUT = (
    "test_slow_rank.py::test_no_rank_has_a_backup_before_every_rank_has_it[gloo-tp2]",
    "test_one_tree.py::test_ranks_with_a_host_tier_hold_one_tree[gloo-tp2]",
    "test_streams.py::test_ranks_on_streams_hold_one_tree[gloo-tp1]",
)
"""Ranks without streams, and streams on one rank."""

KNOWN = """
[[failure]]
id = "{suite}/{search}*"
kind = "bug"
reason = "it is broken on purpose; so the example that is found is not made smaller"
link = ""
"""


def run_suite(
    pytester: pytest.Pytester, adapter: type[CacheAdapter], tests: Iterable[str], *options: str
) -> tuple[int, str]:
    """The exit code and the words of a run of the suite on a cache, in this process: its fork server serves all."""
    suite, path = suite_folder(SUITE), f"{adapter.__module__}:{adapter.__qualname__}"
    done = run(pytester, "-q", *options, *(f"{suite}/{test}" for test in tests), adapter=path)
    return done.ret, done.stdout.str()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.slug)
def test_a_mutant_is_found_by_name_and_not_by_a_hang(pytester: pytest.Pytester, row: Row) -> None:
    code, words = run_suite(pytester, row.adapter, [row.test])
    assert code == pytest.ExitCode.TESTS_FAILED, f"{row.slug} ({row.source}) passes {row.test}:\n{words}"
    assert re.search(row.told, words), f"{row.slug}: expected {row.told!r}, got:\n{words}"
    waits = [wait for wait in ("did not reach call", "had not ended within") if wait in words]
    assert not waits, f"{row.slug}: RANK-8: expected the error at once, got {waits} in:\n{words}"


@pytest.mark.parametrize("row", [row for row in ROWS if row.quick_test], ids=lambda row: row.slug)
def test_the_quick_profile_finds_a_mutant(pytester: pytest.Pytester, row: Row) -> None:
    known = pytester.path / "known.toml"
    known.write_text(KNOWN.format(suite=SUITE, search=MACHINE), encoding="utf-8")
    options = [QUICK, "--hypothesis-profile", "hicache-quick"]
    if row.quick_test.startswith(f"{SUITE}/{MACHINE}"):
        options += ["--hicache-known-failures", str(known)]
    _, words = run_suite(pytester, row.adapter, [row.quick_test.removeprefix(f"{SUITE}/")], *options)
    assert re.search("1 (xfailed|failed)", words), f"{row.slug} passes {row.quick_test}:\n{words}"


@pytest.mark.parametrize("adapter", SEARCHED, ids=lambda adapter: adapter.__name__)
def test_a_search_finds_a_mutant_and_tells_how_to_find_it_again(
    pytester: pytest.Pytester, adapter: type[CacheAdapter]
) -> None:
    test, told = SEARCHED[adapter]
    known = pytester.path / "known.toml"
    known.write_text(KNOWN.format(suite=SUITE, search=test.partition("[")[0]), encoding="utf-8")
    options = ["--hypothesis-profile", "hicache-ci", "--hicache-known-failures", str(known), "--xfail-tb"]
    _, words = run_suite(pytester, adapter, [test], *options)
    assert "1 xfailed" in words, f"{adapter.__name__}: expected it to be found by {test}:\n{words}"
    assert re.search(told, words), f"{adapter.__name__}: expected {told!r}, got:\n{words}"
    assert "@reproduce_failure" in words, f"{adapter.__name__}: expected a line to reproduce it, got:\n{words}"


@pytest.mark.parametrize("adapter", [OwnEvents, EventsOfTheFirst], ids=lambda adapter: adapter.__name__)
def test_ranks_without_streams_and_streams_on_one_rank_find_no_mutant_of_both(
    pytester: pytest.Pytester, adapter: type[CacheAdapter]
) -> None:
    code, words = run_suite(pytester, adapter, WITHOUT)
    assert code == pytest.ExitCode.OK, f"{adapter.__name__}: expected {WITHOUT} to pass:\n{words}"
    assert f"{len(WITHOUT)} passed" in words, f"expected none of {WITHOUT} to be skipped, got:\n{words}"


def test_numbers_that_lie_anywhere_are_found_where_the_group_is_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_torch_group, "TorchGroup", NumbersAnywhere)
    with pytest.raises(AssertionError, match=r"RANK-3: the group's device is cuda:1: .* got .*cpu"):
        test_torch_group.test_every_collective_gets_a_tensor_of_the_groups_device(
            lambda group: group.reduce([3, -4], Reduction.MIN, "progress"), monkeypatch
        )
