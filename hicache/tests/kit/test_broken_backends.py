"""The suite of storage backends finds every defective backend, and no failure in the correct ones."""

from __future__ import annotations

import json

import pytest

from hicache.cli.suite_stage import suite_folder
from hicache.testing.report import Outcome
from hicache.tests.kit import broken_backends as broken
from hicache.tests.kit.dictionary_storage import DictionaryStorage
from hicache.tests.kit.folder_storage import FolderStorage
from hicache.tests.kit.suite_runs import run_recorded

IN_MEMORY = {"store": "{unique}", "capacity_bytes": "{capacity_bytes}"}
ON_DISK = {"directory": "{directory}"}

FOUND = [
    (broken.SmallestOfEach, "conformance/storage/test_pages.py", "STORE-2"),
    (broken.FixedWindow, "conformance/storage/test_pages.py", "STORE-2"),
    (broken.TurnedAnswers, "conformance/storage/test_pages.py", "STORE-3"),
    (broken.ClearsAll, "conformance/storage/test_pages.py", "STORE-4"),
    (broken.Overwrites, "conformance/storage/test_pages.py", "STORE-5"),
    (broken.TakesShort, "conformance/storage/test_pages.py", "STORE-3"),
    (broken.Raises, "conformance/storage/test_pages.py", "STORE-3"),
    (broken.TouchesTargets, "conformance/storage/test_pages.py", "STORE-6"),
    (broken.OneForAll, "conformance/storage/test_pages.py", "STORE-6"),
    (broken.Unbounded, "conformance/storage/test_capacity.py", "STORE-8"),
    (broken.Remembers, "conformance/storage/test_pages.py", "STORE-7"),
    (broken.OneScope, "conformance/storage/test_names.py", "STORE-7"),
    (broken.NoCase, "conformance/storage/test_names.py", "STORE-7"),
    (broken.OneContextRank, "conformance/storage/test_names.py", "STORE-7"),
    (broken.AnyKey, "conformance/storage/test_names.py", "KeyFormError"),
    (broken.Copies, "conformance/storage/test_capacity.py", "STORE-9"),
    (broken.Unpickles, "conformance/storage/test_names.py", "SEC-6"),
    (broken.HalfBatches, "conformance/storage/test_pages.py", "STORE-4"),
    (broken.SharedRoom, "conformance/storage/test_concurrency.py", "STORE-3"),
    (broken.Forgets, "conformance/storage/test_pages.py", "STORE-4"),
    (broken.KeepsBeginnings, "conformance/storage/test_damage.py", "STORE-8"),
    (broken.TornVisible, "conformance/storage/test_damage.py", "STORE-3"),
    (broken.NoDigest, "conformance/storage/test_damage.py", "STORE-3"),
    (broken.KeepsDamage, "conformance/storage/test_damage.py", "STORE-4"),
    (broken.Escapes, "conformance/storage/test_names.py", "KeyFormError"),
    (broken.DiskRaises, "properties/storage/test_backends.py::test_runs_with_faults", "STORE-3"),
    (broken.TrustsWrites, "properties/storage/test_backends.py::test_runs_with_faults", "STORE-4"),
]


def failures(pytester: pytest.Pytester, backend: type, place: str, *options: str) -> list[str]:
    """The failure reasons of a file or folder of the suites with a backend."""
    suite, _, rest = place.partition("/")
    config = ON_DISK if issubclass(backend, FolderStorage) else IN_MEMORY
    named = (
        "--backend",
        f"{backend.__module__}:{backend.__name__}",
        "--backend-config",
        json.dumps(config),
    )
    record = run_recorded(pytester, str(suite_folder(suite) / rest), *named, *options)
    assert record.executions, f"tests of {place} were executed"
    return [one.reason for one in record.executions if one.outcome is Outcome.FAILED]


@pytest.mark.parametrize(("backend", "place", "clause_id"), FOUND, ids=[found[0].__name__ for found in FOUND])
def test_a_broken_backend_is_found(pytester: pytest.Pytester, backend: type, place: str, clause_id: str) -> None:
    found = failures(pytester, backend, place)
    assert any(clause_id in reason for reason in found), f"{backend.__name__}: expected {clause_id}, found {found}"


def test_a_dictionary_is_found_right(pytester: pytest.Pytester) -> None:
    found = failures(pytester, DictionaryStorage, "conformance/storage")
    assert not found, f"expected no failure of a correct backend over a dictionary, found {found}"


FILES = {
    "prefix": ("pages", "STORE-2"),
    "damage": ("damage", "STORE-3 and not counted"),
    "names": ("names", "not counted"),
    "crash": ("damage", "STORE-4"),
    "concurrency": ("concurrency", "not counted"),
}
"""The files of the suite that a backend over files passes, and which of their tests."""


@pytest.mark.parametrize(("place", "tests"), FILES.values(), ids=FILES)
def test_files_are_found_right(pytester: pytest.Pytester, place: str, tests: str) -> None:
    found = failures(pytester, FolderStorage, f"conformance/storage/test_{place}.py", "-k", tests)
    assert not found, f"expected no failure of a correct backend over files, found {found}"
