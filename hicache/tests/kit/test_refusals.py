"""What the suites check of a cache that does not declare REFUSALS."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hicache.testing.adapter import Capability
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.testing.report import Outcome, read_run

ROOT = Path(__file__).parents[3]

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
    run_file = tmp_path_factory.mktemp("report") / "run.json"
    tests = (*OF_MORE_THAN_REFUSALS, OF_REFUSALS_ALONE, "--hicache-quick", "-k", "not held_however or lose")
    adapter = f"{Trusting.__module__}:{Trusting.__name__}"
    options = (
        "-q",
        "-p",
        "no:cacheprovider",
        "--hicache-adapter",
        adapter,
        "--hicache-report",
        str(run_file),
    )
    command = [sys.executable, "-m", "pytest", *tests, *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode in (0, 1), f"pytest ended with {done.returncode}: {done.stdout}{done.stderr}"
    found: dict[str, set[Outcome]] = {}
    for one in read_run(run_file).executions:
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
