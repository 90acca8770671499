"""Several processes: the ranks of a group answer as one rank alone, and errors of other processes are reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.ranks.outcome import RanksFailedError
from hicache.types import Tier

from .cache_setup import OpenCache
from .engine.prefix_finder import Hits
from .evaluation.evaluate import ScoredPass
from .evaluation.passes import CacheSize
from .evaluation.processes import LOST_PAGES, ask_new_process, ask_ranks, compared_ranks
from .evaluation.subject import Subject

SIZE = CacheSize(page_size=16, chunk_tokens=64, tokens=1 << 12, states=64)
QUESTIONS = 8
"""Questions of each task. Of the 16 requests the lost pages affect some, and not all."""

PASSES = ["first", Tier.HOST.value, Tier.STORAGE.value, LOST_PAGES]


def subject(adapter_path: str) -> Subject:
    return Subject("hybrid", ("recall", "running"), QUESTIONS, torch.float32, "cpu", False, SIZE, adapter_path)


def answered(own: Subject, open_cache: OpenCache, folder: Path) -> ScoredPass:
    """The first pass, over a cache of one rank."""
    return own.ask(own.passes(open_cache, folder))


@clause("REQ-3", "RANK-1", "FETCH-7", needs=(Capability.STORAGE, Capability.RANKS))
def test_two_ranks_answer_as_one_alone(adapter_path: str, open_cache: OpenCache, tmp_path: Path) -> None:
    own = subject(adapter_path)
    first = answered(own, open_cache, tmp_path)
    by_rank = ask_ranks(own, 2, first)
    assert [list(own) for own in by_rank] == [PASSES] * 2, f"expected {PASSES} of each of two ranks"
    compared = list(compared_ranks(first, by_rank, torch.float32, SIZE.page_size))
    wrong = [problem for one in compared for problem in one.problems]
    assert not wrong, "REQ-3: expected the same answers to the same questions, got:\n" + "\n".join(wrong)


@clause()
def test_a_rank_with_other_hits_is_reported(adapter_path: str, open_cache: OpenCache, tmp_path: Path) -> None:
    first = answered(subject(adapter_path), open_cache, tmp_path)
    other = replace(first, requests=[replace(one, hits=Hits(SIZE.page_size, 0, 0)) for one in first.requests])
    (compared,) = compared_ranks(first, [{"first": first}, {"first": other}], torch.float32, SIZE.page_size)
    expected = (
        f"rank 1 beside rank 0: first: request 0: expected {first.requests[0].hits}, got {other.requests[0].hits}"
    )
    assert expected in compared.problems, f"expected {expected!r}, got {compared.problems}"


@clause()
def test_the_traceback_of_another_process_is_reported(adapter_path: str, open_cache: OpenCache, tmp_path: Path) -> None:
    own = subject(adapter_path)
    first = answered(own, open_cache, tmp_path)
    elsewhere = replace(own, adapter="hicache.testing.adapters.dictionary:DictionaryAdapter")
    with pytest.raises(RanksFailedError, match=r"(?s)Traceback.*ConfigurationError: no cache of"):
        ask_new_process(elsewhere, tmp_path, first)
