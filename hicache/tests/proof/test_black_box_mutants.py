"""Caches with a door alone that serve what is gone: the machines that see nothing but answers find each at once."""

from __future__ import annotations

import re

import pytest

from hicache.cli.stage import suite_folder
from hicache.testing.adapter import CacheAdapter
from hicache.testing.report import Outcome
from hicache.tests.kit.suite_runs import run_recorded
from hicache.tests.proof.mutants.black_box import REQUESTS, ROWS, VERBS, DictionaryOf, Requests
from hicache.tests.proof.mutants.plain_radix import PlainRadixAdapter
from hicache.tests.proof.mutants.rows import Row
from hicache.types import InsertResult, Key, Slots

KNOWN = """
[[failure]]
id = "properties/test_machines.py::test_any_*_from_outside*"
kind = "bug"
reason = "it is broken on purpose; so the example that is found is not made smaller"
link = ""
"""

SOUND = {DictionaryOf: VERBS, PlainRadixAdapter: VERBS, Requests: REQUESTS}
"""What the mutants are made of, with the search that finds them."""


def ended(
    pytester: pytest.Pytester, adapter: type[CacheAdapter], test: str, *options: str
) -> list[tuple[Outcome, str]]:
    """The outcome of a quick search, with what it says. The examples are the same each time."""
    path, suite = f"{adapter.__module__}:{adapter.__name__}", str(suite_folder("properties") / test)
    profile = ("--hypothesis-profile", "hicache-quick", "--hypothesis-seed", "0")
    run = run_recorded(pytester, suite, *profile, *options, "--hicache-adapter", path)
    idle = [one.node_id for one in run.executions if not one.operations]
    assert not idle, f"a search counts its verbs also when it fails: expected none without verbs, got {idle}"
    return [(one.outcome, one.reason) for one in run.executions]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.slug)
def test_a_mutant_is_found(pytester: pytest.Pytester, row: Row) -> None:
    known = pytester.path / "known.toml"
    known.write_text(KNOWN, encoding="utf-8")
    ((outcome, reason),) = ended(pytester, row.adapter, row.test, "--hicache-known-failures", str(known))
    assert outcome is Outcome.KNOWN_FAILURE, f"{row.slug}: expected to be found by {row.test}, got {outcome}"
    assert re.search(row.told, reason), f"{row.slug}: expected {row.told}, got {reason}"


class KeepsNothing(DictionaryOf):
    """Frees what is inserted: nothing that it answers is wrong, and nothing is tested."""

    def insert(
        self, key: Key, slots: Slots, *, shared: int, window_start: int, state: int | None, priority: int
    ) -> InsertResult:
        self.free(slots)
        return InsertResult(0, 0, b"", state_adopted=False)


def test_a_search_that_meets_too_little_fails(pytester: pytest.Pytester) -> None:
    ((outcome, reason),) = ended(pytester, KeepsNothing, VERBS)
    assert outcome is Outcome.FAILED, f"nothing is ever found: expected a failure, got {outcome}"
    expected = "the search is vacuous: it met no hits, no evictions, no locks held during an eviction"
    assert expected in reason, f"expected {expected!r}, got {reason}"


@pytest.mark.parametrize("adapter", SOUND, ids=lambda adapter: adapter.__name__)
def test_a_sound_cache_passes(pytester: pytest.Pytester, adapter: type[CacheAdapter]) -> None:
    ((outcome, reason),) = ended(pytester, adapter, SOUND[adapter])
    assert outcome is Outcome.PASSED, f"{adapter.__name__} is sound: expected it to pass, got {reason}"
