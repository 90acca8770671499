"""Searches for sequences of verbs, and for faults, after which a backend gives a wrong answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from hicache.testing.contract import clause
from hicache.testing.plugin.tags import OPERATIONS
from hicache.testing.storage.fault_runs import NO_RUNS, fault_run
from hicache.testing.storage.subject import BackendSubject

from .backend_machine import BackendMachine

FAULT_RUNS = 60


def search(subject: BackendSubject, folder: Path, *, is_small: bool, fails: bool) -> int:
    """Let Hypothesis search for a sequence with a wrong answer; returns the number of verbs called."""
    bound = {"subject": subject, "folder": folder, "is_small": is_small, "fails": fails, "operations": []}
    machine: type[BackendMachine] = type("Machine", (BackendMachine,), bound)
    # An example opens no cache, so it takes less time than the profiles assume.
    many = settings(max_examples=settings().max_examples * 2)
    run_state_machine_as_test(machine, settings=many)
    return sum(machine.operations)


@clause("KEY-2", "STORE-1", "STORE-2", "STORE-3", "STORE-5", "STORE-6", "STORE-7")
def test_any_order_of_verbs(
    backend: BackendSubject, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """With enough capacity and no disk faults a backend answers as a dictionary does."""
    record_property(OPERATIONS, search(backend, tmp_path, is_small=False, fails=False))


@clause("STORE-1", "STORE-3", "STORE-5", "STORE-8")
def test_any_order_of_verbs_where_room_is_short(
    backend: BackendSubject, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Objects may be evicted; the others have the right bytes."""
    if not backend.is_bounded:
        pytest.skip(f"no option of {backend.name} sets its capacity: it cannot be limited")
    record_property(OPERATIONS, search(backend, tmp_path, is_small=True, fails=False))


@clause("STORE-3", "STORE-4")
def test_any_order_of_verbs_while_the_disk_fails(
    backend: BackendSubject, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Pages may be lost or refused; the others have the right bytes, and nothing raises."""
    if not backend.is_on_disk:
        pytest.skip(f"no option of {backend.name} is a folder: there is no disk that could fail")
    record_property(OPERATIONS, search(backend, tmp_path, is_small=False, fails=True))


@clause("STORE-3", "STORE-4")
def test_runs_with_faults(
    backend: BackendSubject, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """A few of the runs that `hicache verify-storage --fault-runs` does."""
    counts = NO_RUNS
    for seed in range(FAULT_RUNS):
        counts += fault_run(backend, tmp_path, seed)
    assert counts.faults or not backend.is_on_disk, f"STORE-3: expected some calls to fail, got {counts}"
    assert counts.hits, f"STORE-3: expected some pages to be read, got {counts}"
    record_property(OPERATIONS, counts.operations)
