"""What the suites check of a cache that does not declare REFUSALS."""

from __future__ import annotations

import pytest

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


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[Outcome]]:
    """The outcomes of each test function, of quick configurations."""
    folder = tmp_path_factory.mktemp("report")
    tests = (*OF_MORE_THAN_REFUSALS, OF_REFUSALS_ALONE, "--hicache-quick", "-k", "not held_however or lose")
    adapter = f"{Trusting.__module__}:{Trusting.__name__}"
    found: dict[str, set[Outcome]] = {}
    for one in run_apart(adapter, folder, *tests).executions:
        found.setdefault(one.node_id.partition("[")[0], set()).add(one.outcome)
    return found


@pytest.mark.parametrize("test", OF_MORE_THAN_REFUSALS)
def test_a_test_of_more_than_refusals_is_executed(outcomes: dict[str, set[Outcome]], test: str) -> None:
    assert outcomes[test] == {Outcome.PASSED}, (
        f"{test} checks more than refusals: expected passed, got {outcomes[test]}"
    )


def test_a_test_of_refusals_alone_is_skipped(outcomes: dict[str, set[Outcome]]) -> None:
    found = outcomes[OF_REFUSALS_ALONE]
    assert found == {Outcome.SKIPPED}, f"nothing of {OF_REFUSALS_ALONE} is executed: expected skipped, got {found}"
