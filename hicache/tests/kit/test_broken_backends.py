"""The suite of storage backends finds every defective backend, and no failure in the correct ones."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from hicache.cli.stage import suite_folder
from hicache.storage.slotfile.backend import SlotFileStorage
from hicache.testing.contract import CONTRACT
from hicache.testing.report import Outcome
from hicache.tests.kit import storage_backends as backends
from hicache.tests.kit.storage_backends import DictionaryStorage, FolderStorage
from hicache.tests.kit.suite_runs import run_recorded

IN_MEMORY = {"store": "{unique}", "capacity_bytes": "{capacity_bytes}"}
ON_DISK = {"directory": "{directory}"}

FOUND = [
    (backends.SmallestOfEach, "conformance/storage/test_pages.py", "STORE-2"),
    (backends.FixedWindow, "conformance/storage/test_pages.py", "STORE-2"),
    (backends.TurnedAnswers, "conformance/storage/test_pages.py", "STORE-3"),
    (backends.VectorAnswers, "conformance/storage/test_pages.py", "STORE-12"),
    (backends.VectorCounts, "conformance/storage/test_pages.py", "STORE-12"),
    (backends.ClearsAll, "conformance/storage/test_pages.py", "STORE-4"),
    (backends.Overwrites, "conformance/storage/test_pages.py", "STORE-5"),
    (backends.TakesShort, "conformance/storage/test_pages.py", "STORE-3"),
    (backends.Raises, "conformance/storage/test_pages.py", "STORE-3"),
    (backends.TouchesTargets, "conformance/storage/test_pages.py", "STORE-6"),
    (backends.OneForAll, "conformance/storage/test_pages.py", "STORE-6"),
    (backends.WritesBeyond, "conformance/storage/test_pages.py", "no write outside its targets"),
    (backends.Unbounded, "conformance/storage/test_capacity.py", "STORE-8"),
    (backends.EvictsItsBatch, "conformance/storage/test_capacity.py", "STORE-5"),
    (backends.NeverAgain, "conformance/storage/test_capacity.py", "STORE-4"),
    (backends.Remembers, "conformance/storage/test_pages.py", "STORE-7"),
    (backends.OneScope, "conformance/storage/test_names.py", "STORE-7"),
    (backends.ShortNames, "conformance/storage/test_names.py", "STORE-7"),
    (backends.FlatKeys, "conformance/storage/test_names.py", "STORE-7"),
    (backends.NoCase, "conformance/storage/test_names.py", "STORE-7"),
    (backends.OneContextRank, "conformance/storage/test_names.py", "STORE-7"),
    (backends.AnyKey, "conformance/storage/test_names.py", "KeyFormError"),
    (backends.Copies, "conformance/storage/test_capacity.py", "STORE-9"),
    (backends.KeepsMemory, "conformance/storage/test_capacity.py", "STORE-16"),
    (backends.WritesLate, "conformance/storage/test_capacity.py", "STORE-16"),
    (backends.Unpickles, "conformance/storage/test_names.py", "SEC-6"),
    (backends.HalfBatches, "conformance/storage/test_pages.py", "STORE-4"),
    (backends.SharedRoom, "conformance/storage/test_concurrency.py", "STORE-3"),
    (backends.Forgets, "conformance/storage/test_pages.py", "STORE-4"),
    (backends.KeepsBeginnings, "conformance/storage/test_damage.py", "STORE-8"),
    (backends.TornVisible, "conformance/storage/test_damage.py", "STORE-3"),
    (backends.NoDigest, "conformance/storage/test_damage.py", "STORE-3"),
    (backends.BytesAlone, "conformance/storage/test_exchange.py", "STORE-13"),
    (backends.KeepsDamage, "conformance/storage/test_damage.py", "STORE-4"),
    (backends.Escapes, "conformance/storage/test_names.py", "KeyFormError"),
    (backends.DiskRaises, "properties/storage/test_backends.py::test_runs_with_faults", "STORE-3"),
    (backends.TrustsWrites, "properties/storage/test_backends.py::test_runs_with_faults", "STORE-4"),
]


SMALL_FOUND = [
    (backends.TakesShort, "pages", "STORE-3"),
    (backends.ClearsAll, "pages", "STORE-4"),
    (backends.Overwrites, "pages", "STORE-5"),
    (backends.NoCase, "names", "STORE-7"),
    (backends.Forgets, "pages", "STORE-4"),
]
"""Those that can be found also where eight pages are all that is kept."""


def failures(
    pytester: pytest.Pytester, backend: type, place: str, *options: str, config: Mapping[str, object] | None = None
) -> list[str]:
    """The failure reasons of a file or folder of the suites with a backend."""
    suite, _, rest = place.partition("/")
    config = config or (ON_DISK if issubclass(backend, FolderStorage) else IN_MEMORY)
    named = (
        "--hicache-backend",
        f"{backend.__module__}:{backend.__name__}",
        "--hicache-backend-config",
        json.dumps(config),
    )
    record = run_recorded(pytester, str(suite_folder(suite) / rest), "--hicache-quick", *named, *options)
    assert record.executions, f"tests of {place} were executed"
    return [one.reason for one in record.executions if one.outcome is Outcome.FAILED]


ELSEWHERE = (
    *(backends.ClearsAll, backends.OneScope, backends.ShortNames, backends.FlatKeys, backends.NoCase),
    *(backends.OneContextRank, backends.HalfBatches, backends.KeepsDamage),
)
"""Backends that a test of another clause finds."""


def selecting(backend: type, clause_id: str) -> tuple[str, ...]:
    """The words that select the tests of a clause, which find the backend; none where others find it."""
    return ("-k", clause_id) if clause_id in CONTRACT and backend not in ELSEWHERE else ()


@pytest.mark.parametrize(("backend", "place", "clause_id"), FOUND, ids=[found[0].__name__ for found in FOUND])
def test_a_broken_backend_is_found(pytester: pytest.Pytester, backend: type, place: str, clause_id: str) -> None:
    found = failures(pytester, backend, place, *selecting(backend, clause_id))
    assert any(clause_id in reason for reason in found), f"{backend.__name__}: expected {clause_id}, found {found}"


def test_a_backend_that_counts_what_it_did_not_link_is_found(pytester: pytest.Pytester) -> None:
    config = {"root": "{directory}", "capacity_bytes": "{capacity_bytes}"}
    found = failures(pytester, backends.CountsFailedLinks, "conformance/storage/test_capacity.py", config=config)
    assert any("STORE-8" in reason for reason in found), f"expected STORE-8, found {found}"


def test_a_dictionary_is_found_right(pytester: pytest.Pytester) -> None:
    found = failures(pytester, DictionaryStorage, "conformance/storage")
    assert not found, f"expected no failure of a correct backend over a dictionary, found {found}"


SMALL = {"store": "{unique}", "capacity_bytes": 8 * 4096}
"""Eight pages, which no placeholder tells the suite."""


@pytest.mark.parametrize("place", ["conformance/storage", "properties/storage"])
def test_a_store_of_few_pages_is_found_right(pytester: pytest.Pytester, place: str) -> None:
    found = failures(pytester, DictionaryStorage, place, config=SMALL)
    assert not found, f"expected no failure of a correct backend that keeps eight pages, found {found}"


SMALL_SLOTS = {"root": "{directory}", "capacity_slots": 8}


@pytest.mark.parametrize("file", ["names", "pages", "capacity"])
def test_slots_for_few_pages_are_found_right(pytester: pytest.Pytester, file: str) -> None:
    found = failures(pytester, SlotFileStorage, f"conformance/storage/test_{file}.py", config=SMALL_SLOTS)
    assert not found, f"expected no failure of slotfile with eight slots, found {found}"


def test_a_backend_that_trusts_its_reads_without_checksums_is_found(pytester: pytest.Pytester) -> None:
    config = {"root": "{directory}", "capacity_slots": "{capacity_pages}"}
    file = "conformance/storage/test_concurrency.py"
    found = failures(pytester, backends.BelievesPins, file, "-k", "without_checksums", config=config)
    assert any("STORE-4" in reason for reason in found), f"expected STORE-4, found {found}"


@pytest.mark.parametrize(("backend", "file", "clause_id"), SMALL_FOUND, ids=[one[0].__name__ for one in SMALL_FOUND])
def test_a_broken_store_of_few_pages_is_found(
    pytester: pytest.Pytester, backend: type, file: str, clause_id: str
) -> None:
    found = failures(
        pytester, backend, f"conformance/storage/test_{file}.py", *selecting(backend, clause_id), config=SMALL
    )
    assert any(clause_id in reason for reason in found), f"{backend.__name__}: expected {clause_id}, found {found}"


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
