"""Mutants of the block cache: the tests that need requests alone find each, and accept the sound cache."""

from __future__ import annotations

from typing import ClassVar

import pytest

from hicache.cli.stage import suite_folder
from hicache.testing.adapters.blocks import BlockCacheAdapter
from hicache.testing.block_cache import BlockCache
from hicache.testing.mutants.block_cache import (
    AllocatesBeforeItTakes,
    BlankBehindCached,
    DuplicateFreedInUse,
    LastCopyTakesTheEntry,
    TrustsTheDigest,
    UseKeepsTheAge,
)
from hicache.testing.report import Outcome
from hicache.tests.kit.suite_runs import run_recorded


class FreesDuplicates(BlockCacheAdapter):
    """Frees a page that another request computed too, while its own request reads it."""

    cache_type: ClassVar[type[BlockCache]] = DuplicateFreedInUse


class KeepsAge(BlockCacheAdapter):
    """A use does not make a prefix more recent."""

    cache_type: ClassVar[type[BlockCache]] = UseKeepsTheAge


class BlankLast(BlockCacheAdapter):
    """Evicts cached pages while blank ones are free."""

    cache_type: ClassVar[type[BlockCache]] = BlankBehindCached


class LosesCopies(BlockCacheAdapter):
    """Of two copies of a page, only the last one is found."""

    cache_type: ClassVar[type[BlockCache]] = LastCopyTakesTheEntry


class AllocatesFirst(BlockCacheAdapter):
    """A request may evict its own prefix."""

    cache_type: ClassVar[type[BlockCache]] = AllocatesBeforeItTakes


class TrustsDigests(BlockCacheAdapter):
    """Compares hashes and no tokens."""

    cache_type: ClassVar[type[BlockCache]] = TrustsTheDigest


FOUND = {
    FreesDuplicates: "POOL-1",
    KeepsAge: "EVICT-2",
    BlankLast: "EVICT-1",
    LosesCopies: "MATCH-1",
    AllocatesFirst: "POOL-1",
    TrustsDigests: "SEC-2",
}
"""The clause that the conformance suite says each mutant breaks."""


def reasons(pytester: pytest.Pytester, adapter: type[BlockCacheAdapter]) -> list[str]:
    """Why tests of the conformance suite failed with this adapter."""
    path = f"{adapter.__module__}:{adapter.__name__}"
    record = run_recorded(pytester, str(suite_folder("conformance") / "test_requests_alone.py"), "--adapter", path)
    assert any(one.outcome is Outcome.PASSED for one in record.executions), f"expected tests of {path} to run"
    return [one.reason for one in record.executions if one.outcome is Outcome.FAILED]


def test_the_block_cache_is_found_right(pytester: pytest.Pytester) -> None:
    found = reasons(pytester, BlockCacheAdapter)
    assert not found, f"expected no failure of a sound cache, got {found}"


@pytest.mark.parametrize(("adapter", "clause_id"), FOUND.items(), ids=lambda value: getattr(value, "__name__", value))
def test_a_mutant_is_found(pytester: pytest.Pytester, adapter: type[BlockCacheAdapter], clause_id: str) -> None:
    found = reasons(pytester, adapter)
    assert any(clause_id in reason for reason in found), f"expected {clause_id} to be broken, got {found}"
