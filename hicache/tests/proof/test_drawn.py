"""Broken caches drawn from reported defects: a test or two find each cheaply, and name the clause that it breaks."""

from __future__ import annotations

import re

import pytest

from hicache.cli.stage import suite_folder
from hicache.testing.adapter import CacheAdapter
from hicache.testing.contract import CONTRACT
from hicache.testing.report import Outcome
from hicache.testing.report.matrix import overview
from hicache.testing.report.text import headline
from hicache.tests.kit.suite_runs import execution, record, run_recorded
from hicache.tests.proof.drawn_pairs import Verdict, problems_of
from hicache.tests.proof.mutants.drawn import (
    DRAWN,
    CountsKvAlone,
    DeepestOnHost,
    Drawn,
    FloorsTheFrontier,
    FreesWhatIsWritten,
    HashesNumbers,
    KeepsCopies,
    NeverWaits,
    RefusesPending,
    RemembersWrites,
    ReportsTheLastFragment,
)

FOUND_BY: dict[type[CacheAdapter], tuple[str, str]] = {
    FloorsTheFrontier: ("test_requests.py", "test_a_window_shorter_than_a_page_stays_wherever_decoding_ends"),
    ReportsTheLastFragment: (
        "test_events.py",
        "test_both_parts_of_a_node_that_is_split_while_it_is_copied_are_reported",
    ),
    KeepsCopies: ("test_evict_tiers.py", "test_the_host_evicts_nodes_without_device_data_before_copies"),
    RefusesPending: ("test_flow_overlaps.py", "test_pages_that_two_loads_need_are_loaded_once"),
    NeverWaits: ("test_load_back.py", "test_each_layer_is_ready_when_it_has_moved"),
    DeepestOnHost: ("test_match.py", "test_every_prefix_finds_what_the_oracle_finds"),
    HashesNumbers: ("test_store.py", "pairs_is_one_object or bigram_pages"),
    RemembersWrites: ("test_store.py", "test_an_object_that_a_prefetch_found_missing_is_written_again"),
    CountsKvAlone: ("test_prefetch.py", "test_pages_before_an_unreadable_one_are_used"),
    FreesWhatIsWritten: ("test_flow_overlaps.py", "test_an_abandoned_load_continues_for_another_one"),
}
"""A test of the conformance suite that finds each, as -k selects it."""


def test_the_table_names_sources_and_clauses() -> None:
    assert {drawn.adapter for drawn in DRAWN} == FOUND_BY.keys(), "expected a test for each"
    for drawn in DRAWN:
        assert re.fullmatch(r"sglang#\d+", drawn.source), f"{drawn.adapter.__name__}: got source {drawn.source}"
        assert set(drawn.clauses) <= CONTRACT.keys(), f"{drawn.source}: the contract has no clause {drawn.clauses}"


@pytest.mark.parametrize("drawn", DRAWN, ids=lambda drawn: drawn.adapter.__name__)
def test_the_first_cause_names_the_clause(pytester: pytest.Pytester, drawn: Drawn) -> None:
    module, test = FOUND_BY[drawn.adapter]
    path = f"{drawn.adapter.__module__}:{drawn.adapter.__name__}"
    found = run_recorded(
        pytester, str(suite_folder("conformance") / module), "--hicache-quick", "--hicache-adapter", path, "-k", test
    )
    assert any(one.outcome is Outcome.FAILED for one in found.executions), f"{drawn.source}: {test} does not find it"
    view = overview(found, CONTRACT)
    problems = problems_of(drawn, Verdict(1, view, 0.0))
    assert not problems, f"{drawn.source}: {problems}, got: {headline(view)}"


@pytest.mark.parametrize(
    ("code", "causes", "told"),
    [
        (1, ["HOST-6", "KEY-1", "KEY-2"], []),
        (0, ["HOST-6"], ["exit code 0"]),
        (1, [], ["expected HOST-6 first"]),
        (1, ["KEY-1", "KEY-1", "HOST-6"], ["expected HOST-6 first"]),
        (1, ["HOST-6", "KEY-1", "KEY-2", "KEY-3"], ["more than 3 causes"]),
    ],
)
def test_a_verdict_that_misleads_is_a_problem(code: int, causes: list[str], told: list[str]) -> None:
    failures = [
        execution("LOCK-1", outcome=Outcome.FAILED, name=f"test_{number}", causes=(cause,))
        for number, cause in enumerate(causes)
    ]
    drawn = next(one for one in DRAWN if one.adapter is NeverWaits)
    problems = problems_of(drawn, Verdict(code, overview(record(*failures), CONTRACT), 0.0))
    assert problems == told, f"expected {told}, got {problems}"
