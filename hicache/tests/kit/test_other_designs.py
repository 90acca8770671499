"""Sound caches of other designs pass the suites: what they declare is read, and no test assumes the reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from hicache.testing.adapter import CacheAdapter
from hicache.testing.report import Outcome
from hicache.tests.kit.merged_blocks import MergedBlocks
from hicache.tests.kit.other_designs import (
    GivingBackAdapter,
    LateTree,
    ReservingBlocksAdapter,
    ReservingTree,
    SharingBlocksAdapter,
)
from hicache.tests.kit.suite_runs import run_apart

REQUESTS = ("conformance/test_requests.py", "conformance/test_requests_alone.py")
MACHINE = "properties/test_machines.py::test_any_mix_of_requests"
OUTSIDE = f"{MACHINE}_from_outside[full]"


@pytest.mark.parametrize(
    ("adapter", "tests", "clauses"),
    [
        (LateTree, (*REQUESTS, f"{MACHINE}[full]"), {"REQ-1", "REQ-4", "MATCH-1", "REQ-2", "REQ-3"}),
        (
            MergedBlocks,
            ("conformance/test_reuse.py", f"{MACHINE}[full]", OUTSIDE),
            {"REUSE-4", "REUSE-7", "POOL-2", "REQ-2"},
        ),
        (
            GivingBackAdapter,
            (f"{MACHINE}[full]", f"{REQUESTS[1]}::test_nothing_is_cached_that_no_request_computed"),
            {"REQ-11", "POOL-1", "REQ-3"},
        ),
        (
            ReservingBlocksAdapter,
            (REQUESTS[1], f"{MACHINE}[full]", f"{MACHINE}[full+swa]"),
            {"REQ-4", "REQ-5", "POOL-1", "REQ-9"},
        ),
        (
            SharingBlocksAdapter,
            (REQUESTS[1], f"{MACHINE}[full]", OUTSIDE),
            {"POOL-1", "REQ-11", "POOL-2", "REQ-3"},
        ),
        (ReservingTree, (*REQUESTS, f"{MACHINE}[full]", "--hicache-quick"), {"REQ-4", "REQ-5", "POOL-1", "REQ-9"}),
    ],
)
def test_a_sound_cache_of_another_design_is_not_accused(
    adapter: type[CacheAdapter], tests: tuple[str, ...], clauses: set[str], tmp_path: Path
) -> None:
    run = run_apart(
        f"{adapter.__module__}:{adapter.__name__}", tmp_path, *tests, "--hypothesis-profile", "hicache-quick"
    )
    failed = {one.node_id: one.reason for one in run.executions if one.outcome is Outcome.FAILED}
    assert not failed, f"expected no failure, got {failed}"
    passed = {clause for one in run.executions if one.outcome is Outcome.PASSED for clause in one.clauses}
    assert passed >= clauses, f"clauses that were to be tested did not run: {clauses - passed}"
