"""Mutants of the cache of chunks: the tests that need requests alone find each, and accept the sound cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from hicache.cli.stage import suite_folder
from hicache.testing.caches.offload import OffloadCacheAdapter
from hicache.testing.caches.offload_cache import OffloadCache
from hicache.testing.report import Outcome
from hicache.tests.kit.suite_runs import run_recorded
from hicache.tests.proof.mutants import offload_cache as mutants

ALONE, OVER_TIERS = "test_requests_alone.py", "test_requests_over_tiers.py"


class PinsNothing(OffloadCacheAdapter):
    """What was found may be evicted before it was retrieved."""

    cache_type: ClassVar[type[OffloadCache]] = mutants.EvictedBeforeRetrieved


class LeaksPins(OffloadCacheAdapter):
    """A request that is not admitted leaves its pins behind."""

    cache_type: ClassVar[type[OffloadCache]] = mutants.PinKeptWithoutRetrieval


class ReleasesAllPins(OffloadCacheAdapter):
    """One request releases the pins of another."""

    cache_type: ClassVar[type[OffloadCache]] = mutants.PinsOfAllReleased


class FindsTooEarly(OffloadCacheAdapter):
    """A chunk is found before it was copied."""

    cache_type: ClassVar[type[OffloadCache]] = mutants.FoundBeforeItIsCopied


class KeepsFailures(OffloadCacheAdapter):
    """A chunk is found whose store failed."""

    cache_type: ClassVar[type[OffloadCache]] = mutants.FailedStoreIsKept


class Overcounts(OffloadCacheAdapter):
    """A request sees all tokens as arrived."""

    cache_type: ClassVar[type[OffloadCache]] = mutants.CountsWhatWasFound


class ClosesGaps(OffloadCacheAdapter):
    """A chunk is taken for the one before it, which is missing."""

    cache_type: ClassVar[type[OffloadCache]] = mutants.SkipsAGap


class ServesShortReads(OffloadCacheAdapter):
    """An object that was cut off is served."""

    cache_type: ClassVar[type[OffloadCache]] = mutants.ShortReadIsServed


class IgnoresNamespaces(OffloadCacheAdapter):
    """Equal tokens of two namespaces share a chunk."""

    cache_type: ClassVar[type[OffloadCache]] = mutants.NamespaceLeftOut


class TrustsDigests(OffloadCacheAdapter):
    """Compares hashes and no tokens."""

    cache_type: ClassVar[type[OffloadCache]] = mutants.TrustsTheDigest


class KeepsAge(OffloadCacheAdapter):
    """A use does not make a chunk more recent."""

    cache_type: ClassVar[type[OffloadCache]] = mutants.UseKeepsTheAge


FreesTooEarly, StoresTooMuch = mutants.FreedWhileMoving, mutants.StoresWhatIsScheduled


@dataclass(frozen=True)
class Kill:
    """What finds a mutant: a test of a file of the conformance suite, and the clause that its failure names."""

    file: str
    test: str
    clause_id: str


FOUND: dict[type[OffloadCacheAdapter], Kill] = {
    PinsNothing: Kill(OVER_TIERS, "waits_for_is_not_evicted", "LOCK-2"),
    LeaksPins: Kill(OVER_TIERS, "not_admitted_holds_nothing", "LOCK-2"),
    ReleasesAllPins: Kill(OVER_TIERS, "two_requests_wait", "LOCK-2"),
    FindsTooEarly: Kill(OVER_TIERS, "neither_overwritten_nor_found", "POOL-1"),
    KeepsFailures: Kill(OVER_TIERS, "failed_to_be_stored", "REQ-3"),
    Overcounts: Kill(OVER_TIERS, "goes_on_with_what_arrived", "REQ-3"),
    ClosesGaps: Kill(OVER_TIERS, "damaged_object", "MATCH-1"),
    ServesShortReads: Kill(OVER_TIERS, "damaged_object", "REQ-3"),
    IgnoresNamespaces: Kill(ALONE, "in_its_namespace_alone", "MATCH-1"),
    TrustsDigests: Kill(ALONE, "whose_hashes_collide", "SEC-2"),
    KeepsAge: Kill(OVER_TIERS, "keeps_what_was_used_last", "EVICT-11"),
    FreesTooEarly: Kill(OVER_TIERS, "abort_while_loading", "POOL-1"),
    StoresTooMuch: Kill(ALONE, "a_hit_ends_where_every_component", "REQ-3"),
}


def reasons(pytester: pytest.Pytester, adapter: type[OffloadCacheAdapter], file: str, test: str = "") -> list[str]:
    """Why tests of a file failed with this adapter. `test`: a part of the name of those that run."""
    path, suite = f"{adapter.__module__}:{adapter.__name__}", suite_folder("conformance") / file
    record = run_recorded(pytester, str(suite), "--hicache-quick", "--hicache-adapter", path, "-k", test)
    assert record.executions, f"expected tests of {path} to run"
    return [one.reason for one in record.executions if one.outcome is Outcome.FAILED]


def test_every_mutant_is_put_under_the_suite() -> None:
    defined = {one for one in vars(mutants).values() if isinstance(one, type)}
    caches = {one for one in defined if issubclass(one, OffloadCache)} - {OffloadCache}
    engines = {one for one in defined if issubclass(one, OffloadCacheAdapter)} - {OffloadCacheAdapter}
    missing = (caches - {adapter.cache_type for adapter in FOUND}) | (engines - FOUND.keys())
    assert not missing, f"expected an adapter for every mutant, none for {missing}"


@pytest.mark.parametrize("file", [ALONE, OVER_TIERS])
def test_the_cache_of_chunks_is_found_right(pytester: pytest.Pytester, file: str) -> None:
    found = reasons(pytester, OffloadCacheAdapter, file)
    assert not found, f"expected no failure of a sound cache, got {found}"


@pytest.mark.parametrize("adapter", FOUND, ids=lambda adapter: adapter.__name__)
def test_a_mutant_is_found(pytester: pytest.Pytester, adapter: type[OffloadCacheAdapter]) -> None:
    kill = FOUND[adapter]
    found = reasons(pytester, adapter, kill.file, kill.test)
    assert any(kill.clause_id in reason for reason in found), f"expected {kill.clause_id} to be broken, got {found}"
