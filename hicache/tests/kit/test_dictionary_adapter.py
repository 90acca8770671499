"""The adapters of a dictionary: they pass all clauses that apply, and a defect in the smallest one is found."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.caches.dictionary import DictionaryAdapter
from hicache.testing.caches.paged_dictionary import InspectedDictionaryAdapter, PagedDictionaryAdapter
from hicache.testing.report import Outcome, RunRecord
from hicache.tests.kit.suite_runs import run_apart
from hicache.types import Handle, Key, MatchResult


class Forgetful(DictionaryAdapter):
    """`lock` protects nothing."""

    def lock(self, handle: Handle) -> Handle:
        return self.cache.pin(b"")


class LockRefreshes(InspectedDictionaryAdapter):
    """A use counts at its lock: a match alone leaves the order as it was."""

    departures = frozenset({"MATCH-16"})

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        order = list(self.cache.slots)
        found = super().match(key, chunked=chunked)
        self.cache.slots = {prefix: self.cache.slots[prefix] for prefix in order}
        return found

    def lock(self, handle: Handle) -> Handle:
        self.refresh(handle)
        return super().lock(handle)

    def refresh(self, prefix: bytes) -> None:
        """Make a prefix and those that it extends the most recently used ones."""
        for used in sorted(filter(prefix.startswith, self.cache.slots), key=len, reverse=True):
            self.cache.slots[used] = self.cache.slots.pop(used)


class ReleaseRefreshes(LockRefreshes):
    """A use counts at the release of its lock."""

    def lock(self, handle: Handle) -> Handle:
        return self.cache.pin(handle)

    def unlock(self, receipt: Handle) -> None:
        self.refresh(self.cache.pins[receipt])
        super().unlock(receipt)


def verified(adapter: str, directory: Path, *options: str, absent: str = "") -> RunRecord:
    """A run of the conformance suite, without the tests of backends. `absent`: a library that cannot be imported."""
    return run_apart(adapter, directory, "conformance", "--ignore", "conformance/storage", *options, absent=absent)


def test_it_passes_all_that_it_can_be_held_to_without_torch_and_skips_the_rest(tmp_path: Path) -> None:
    adapter = f"{DictionaryAdapter.__module__}:{DictionaryAdapter.__name__}"
    run = verified(adapter, tmp_path, "properties", absent="torch")
    suites = {one.suite for one in run.executions}
    assert suites == {"conformance", "properties"}, f"expected tests of two suites, got those of {suites}"
    failed = [one.node_id for one in run.executions if one.outcome is Outcome.FAILED]
    assert not failed, f"expected no failure, got {failed}"
    passed = {clause for one in run.executions if one.outcome is Outcome.PASSED for clause in one.clauses}
    missing = {"KEY-1", "POOL-2", "POOL-3", "INS-1", "LOCK-5", "EVICT-1", "COMP-2"} - passed
    assert not missing, f"clauses that need no capability did not run: {missing}"
    reasons = {one.reason for one in run.executions if one.outcome is Outcome.SKIPPED}
    for capability in (Capability.SWA, Capability.NAMESPACES, Capability.HOST):
        matching = [reason for reason in reasons if f"{capability.name}: {capability.value}" in reason]
        assert matching, f"no reason names {capability.name}: {reasons}"


@pytest.mark.parametrize(
    ("adapter", "clauses"),
    [
        (PagedDictionaryAdapter, {"KEY-1", "POOL-4"}),
        (InspectedDictionaryAdapter, {"POOL-1", "LOCK-1", "LOCK-4", "REQ-3"}),
    ],
)
def test_the_next_steps_pass_too(adapter: type[CacheAdapter], clauses: set[str], tmp_path: Path) -> None:
    run = verified(f"{adapter.__module__}:{adapter.__name__}", tmp_path, "--hicache-quick")
    failed = [one.node_id for one in run.executions if one.outcome is Outcome.FAILED]
    assert not failed, f"expected no failure, got {failed}"
    passed = {clause for one in run.executions if one.outcome is Outcome.PASSED for clause in one.clauses}
    assert passed >= clauses, f"clauses that need no more than it declares did not run: {clauses - passed}"


@pytest.mark.parametrize("adapter", [LockRefreshes, ReleaseRefreshes])
def test_a_use_may_count_at_its_lock_or_at_its_release(adapter: type[CacheAdapter], tmp_path: Path) -> None:
    run = verified(f"{__name__}:{adapter.__name__}", tmp_path, "--hicache-quick", "-k", "MATCH-10 or EVICT-2")
    found = {(one.node_id, one.reason) for one in run.executions if one.outcome is Outcome.FAILED}
    assert not found, f"expected no failure, got {found}"
    passed = {clause for one in run.executions if one.outcome is Outcome.PASSED for clause in one.clauses}
    assert passed >= {"MATCH-10", "EVICT-2"}, f"expected the order of uses to be tested, got {passed}"


def test_a_defect_in_it_is_found(tmp_path: Path) -> None:
    run = verified(f"{__name__}:Forgetful", tmp_path, "-k", "LOCK-5")
    failed = {clause for one in run.executions if one.outcome is Outcome.FAILED for clause in one.clauses}
    assert "LOCK-5" in failed, f"a lock that protects nothing breaks LOCK-5, got {failed or 'no failure'}"


def test_it_stays_short() -> None:
    lines = inspect.getsource(DictionaryAdapter).splitlines()
    code = [line for line in lines[2:] if line.strip()]
    assert len(code) <= 30, f"expected less than thirty lines of code, got {len(code)}"
