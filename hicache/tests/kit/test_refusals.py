"""What the suites check of a cache that does not declare REFUSALS."""

from __future__ import annotations

from pathlib import Path

from hicache.testing.adapter import Capability
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.report import Outcome
from hicache.tests.kit.suite_runs import run_apart

OF_MORE_THAN_REFUSALS = (
    "conformance/test_match.py::test_a_node_that_left_both_tiers_is_not_found",
    "conformance/test_prefetch_end.py::test_a_prefetch_leaves_nothing_held_however_it_ends",
)
OF_REFUSALS_ALONE = "conformance/test_prefetch_end.py::test_a_ticket_that_has_ended_is_refused"


class Trusting(ReferenceAdapter):
    """Declares all but REFUSALS."""

    capabilities = ReferenceAdapter.capabilities - {Capability.REFUSALS}


def test_a_test_of_more_than_refusals_is_executed_and_one_of_refusals_alone_is_skipped(tmp_path: Path) -> None:
    tests = (*OF_MORE_THAN_REFUSALS, OF_REFUSALS_ALONE, "--hicache-quick", "-k", "not held_however or lose")
    outcomes: dict[str, set[Outcome]] = {}
    for one in run_apart(f"{Trusting.__module__}:{Trusting.__name__}", tmp_path, *tests).executions:
        outcomes.setdefault(one.node_id.partition("[")[0], set()).add(one.outcome)
    expected = {test: {Outcome.PASSED} for test in OF_MORE_THAN_REFUSALS} | {OF_REFUSALS_ALONE: {Outcome.SKIPPED}}
    assert outcomes == expected, f"expected {expected}, got {outcomes}"
