"""Several processes: the ranks of a group answer as one alone does, and what fails elsewhere is told here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.ranks.outcome import RanksFailedError
from hicache.types import Tier

from .engine.arrivals import Hits
from .evaluation.passes import Room
from .evaluation.processes import LESS, ask_anew, ask_ranks
from .evaluation.rank_gates import judged_ranks
from .evaluation.scored_pass import ScoredPass
from .evaluation.subject import Subject
from .stage import OpenCache

ROOM = Room(page_size=16, chunk_tokens=64, tokens=1 << 12, states=64)
QUESTIONS = 8
"""Of each task: of 16 requests some are spared by what a rank has lost, and some are not."""

PASSES = ["first", Tier.HOST.value, Tier.STORAGE.value, LESS]


def subject(adapter_path: str) -> Subject:
    return Subject("hybrid", ("recall", "running"), QUESTIONS, torch.float32, "cpu", False, ROOM, adapter_path)


def answered(asked: Subject, open_cache: OpenCache, folder: Path) -> ScoredPass:
    """The first pass, by a cache of one rank."""
    return asked.ask(asked.passes(open_cache, folder))


@clause("REQ-3", "RANK-1", "FETCH-7", needs=(Capability.STORAGE, Capability.RANKS))
def test_two_ranks_answer_as_one_alone(adapter_path: str, open_cache: OpenCache, tmp_path: Path) -> None:
    asked = subject(adapter_path)
    first = answered(asked, open_cache, tmp_path)
    by_rank = ask_ranks(asked, 2, first)
    assert [list(own) for own in by_rank] == [PASSES] * 2, f"expected {PASSES} of each of two ranks"
    judged = list(judged_ranks(first, by_rank, torch.float32, ROOM.page_size))
    wrong = [problem for one in judged for problem in one.problems]
    assert not wrong, "REQ-3: the same questions, and other answers:\n" + "\n".join(wrong)


@clause()
def test_a_rank_that_is_answered_from_elsewhere_is_told(
    adapter_path: str, open_cache: OpenCache, tmp_path: Path
) -> None:
    first = answered(subject(adapter_path), open_cache, tmp_path)
    other = replace(first, asked=[replace(one, hits=Hits(ROOM.page_size, 0, 0)) for one in first.asked])
    (judged,) = judged_ranks(first, [{"first": first}, {"first": other}], torch.float32, ROOM.page_size)
    expected = f"rank 1 beside rank 0: first: request 0: expected {first.asked[0].hits}, got {other.asked[0].hits}"
    assert expected in judged.problems, f"expected to be told of other hits, got {judged.problems}"


@clause()
def test_what_another_process_raises_is_told_whole(adapter_path: str, open_cache: OpenCache, tmp_path: Path) -> None:
    asked = subject(adapter_path)
    first = answered(asked, open_cache, tmp_path)
    elsewhere = replace(asked, adapter="hicache.testing.adapters.dictionary:DictionaryAdapter")
    with pytest.raises(RanksFailedError, match=r"(?s)Traceback.*ConfigurationError: no cache of"):
        ask_anew(elsewhere, tmp_path, first)
