"""Mutants of the block cache: the tests that need requests alone find each, and accept the sound cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from hicache.cli.stage import suite_folder
from hicache.testing.caches.block_cache import BlockCache
from hicache.testing.caches.blocks import BlockCacheAdapter
from hicache.testing.report import Outcome
from hicache.tests.kit.suite_runs import run_recorded
from hicache.tests.proof.mutants import block_cache as mutants


class FreesDuplicates(BlockCacheAdapter):
    """Frees a page that another request computed too, while its own request reads it."""

    cache_type: ClassVar[type[BlockCache]] = mutants.DuplicateFreedInUse


class KeepsAge(BlockCacheAdapter):
    """A use does not make a prefix more recent."""

    cache_type: ClassVar[type[BlockCache]] = mutants.UseKeepsTheAge


class EvictsMoreAndKeepsAge(KeepsAge):
    """Has a rule of its own for how much is evicted; its order must be found wrong all the same."""

    departures = frozenset({"EVICT-1"})


class BlankLast(BlockCacheAdapter):
    """Evicts cached pages while blank ones are free."""

    cache_type: ClassVar[type[BlockCache]] = mutants.BlankBehindCached


class LosesCopies(BlockCacheAdapter):
    """Of two copies of a page, only the last one is found."""

    cache_type: ClassVar[type[BlockCache]] = mutants.LastCopyTakesTheEntry


class AllocatesFirst(BlockCacheAdapter):
    """A request may evict its own prefix."""

    cache_type: ClassVar[type[BlockCache]] = mutants.AllocatesBeforeItTakes


class TrustsDigests(BlockCacheAdapter):
    """Compares hashes and no tokens."""

    cache_type: ClassVar[type[BlockCache]] = mutants.TrustsTheDigest


class LogsEachCopy(BlockCacheAdapter):
    """Reports a page as removed while another copy of it is found."""

    cache_type: ClassVar[type[BlockCache]] = mutants.RemovedWhileACopyRemains


class TruncatesStates(BlockCacheAdapter):
    """Takes the state that a chunk left inside a block for the state at its end."""

    cache_type: ClassVar[type[BlockCache]] = mutants.TruncatedState


class MistakesUnits(BlockCacheAdapter):
    """Looks for the state of a hit in units of the smallest block."""

    cache_type: ClassVar[type[BlockCache]] = mutants.StateIndexInSmallestBlocks


class PassesTheHit(BlockCacheAdapter):
    """Resumes before the last token of a prompt from the state after it."""

    cache_type: ClassVar[type[BlockCache]] = mutants.StateAfterTheHit


class AsksAttention(BlockCacheAdapter):
    """Takes the hit of FULL for the hit of all components."""

    cache_type: ClassVar[type[BlockCache]] = mutants.AttentionHitAlone


class CountsOneRank(BlockCacheAdapter):
    """Divides the tokens of all ranks by the block size of one."""

    cache_type: ClassVar[type[BlockCache]] = mutants.BlocksOfOneRank


class AsksOnce(BlockCacheAdapter):
    """Does not ask SWA again when MAMBA shortens the hit."""

    cache_type: ClassVar[type[BlockCache]] = mutants.GroupsNotAskedAgain


class InsistsOnHits(BlockCacheAdapter):
    """Refuses a request that does not fit beside the state of its own hit."""

    cache_type: ClassVar[type[BlockCache]] = mutants.InsistsOnTheHit


@dataclass(frozen=True)
class Kill:
    """What finds a mutant: a test of the conformance suite, and the clause that its failure names."""

    test: str
    clause_id: str


FOUND = {
    FreesDuplicates: Kill("equal_prompts_in_one_batch", "POOL-1"),
    KeepsAge: Kill("a_prefix_that_was_used_outlives", "EVICT-2"),
    BlankLast: Kill("nothing_cached_is_evicted", "EVICT-1"),
    LosesCopies: Kill("as_long_as_a_copy_of_it_stays", "MATCH-1"),
    AllocatesFirst: Kill("never_evicts_the_prefix_that_it_found", "POOL-1"),
    TrustsDigests: Kill("whose_hashes_collide", "SEC-2"),
    LogsEachCopy: Kill("removed_from_the_log_with_its_last_copy", "EVENT-1"),
    TruncatesStates: Kill("chunks_may_end_inside_a_page", "REQ-3"),
    MistakesUnits: Kill("a_hit_leaves_the_tokens", "REQ-3"),
    PassesTheHit: Kill("a_hit_leaves_the_tokens", "MATCH-1"),
    AsksAttention: Kill("where_every_component_can_serve_it", "MATCH-1"),
    CountsOneRank: Kill("equal_prompts_in_one_batch", "REQ-3"),
    InsistsOnHits: Kill("the_longest_prompt_that_fits", "REQ-5"),
    AsksOnce: Kill("needs_the_window_before_its_own_end", "MATCH-1"),
}


def reasons(pytester: pytest.Pytester, adapter: type[BlockCacheAdapter], test: str = "") -> list[str]:
    """Why tests of the conformance suite failed with this adapter. `test`: a part of the name of those that run."""
    path, suite = f"{adapter.__module__}:{adapter.__name__}", suite_folder("conformance") / "test_requests_alone.py"
    record = run_recorded(pytester, str(suite), "--hicache-quick", "--hicache-adapter", path, "-k", test)
    assert record.executions, f"expected tests of {path} to run"
    return [one.reason for one in record.executions if one.outcome is Outcome.FAILED]


def test_every_mutant_is_put_under_the_suite() -> None:
    defined = {one for one in vars(mutants).values() if isinstance(one, type) and issubclass(one, BlockCache)}
    missing = defined - {BlockCache} - {adapter.cache_type for adapter in FOUND}
    assert not missing, f"expected an adapter for every mutant, none for {missing}"


def test_the_block_cache_is_found_right(pytester: pytest.Pytester) -> None:
    found = reasons(pytester, BlockCacheAdapter)
    assert not found, f"expected no failure of a sound cache, got {found}"


@pytest.mark.parametrize("adapter", FOUND, ids=lambda adapter: adapter.__name__)
def test_a_mutant_is_found(pytester: pytest.Pytester, adapter: type[BlockCacheAdapter]) -> None:
    kill = FOUND[adapter]
    found = reasons(pytester, adapter, kill.test)
    assert any(kill.clause_id in reason for reason in found), f"expected {kill.clause_id} to be broken, got {found}"


def test_a_departure_in_how_much_is_evicted_leaves_the_order_checked(pytester: pytest.Pytester) -> None:
    path, suite = f"{__name__}:{EvictsMoreAndKeepsAge.__name__}", suite_folder("properties") / "test_machines.py"
    options = ("--hypothesis-profile", "hicache-quick", "--hypothesis-seed", "0")
    record = run_recorded(pytester, str(suite), "-k", "requests and full]", *options, "--hicache-adapter", path)
    causes = [one.causes for one in record.executions if one.outcome is Outcome.FAILED]
    assert causes == [("EVICT-2",)], f"expected the machine of requests to find the order, got {causes}"
