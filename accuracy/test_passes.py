"""The trained models answer their tasks in passes, each from another tier, as they did at first."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hicache.config import read_table
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import Tier

from .evaluation import task_table
from .evaluation.comparison import differences, same_chunks, unserved, unspared
from .evaluation.passes import Room
from .evaluation.processes import ask_anew
from .evaluation.scored_pass import ScoredPass
from .evaluation.subject import Subject
from .evaluation.whole import whole
from .gates import GATES
from .models.recipe import RECIPES
from .stage import OpenCache

QUESTIONS = 16
ROOM = Room(page_size=16, chunk_tokens=64, tokens=1 << 15, states=1024)
BASELINE = read_table(f"@{Path(task_table.__file__).parent / 'baseline.toml'}")

each_model = pytest.mark.parametrize("name", RECIPES)
each_dtype = pytest.mark.parametrize("dtype", GATES, ids=["float32", "bfloat16"])


def subject(name: str, dtype: torch.dtype, adapter_path: str) -> Subject:
    return Subject(name, tuple(BASELINE[name]), QUESTIONS, dtype, "cpu", False, ROOM, adapter_path)


def below_baseline(name: str, scored: ScoredPass) -> list[str]:
    """The scores that are worse than they were, by more than one answer."""
    lost = []
    for task, measures in BASELINE[name].items():
        for measure, expected in measures.items():
            score = scored.scores[f"{task} {measure}"]
            # Bits are the fewer the better, and differ in their last digits from machine to machine.
            worse = score - expected if measure == "bits_per_byte" else expected - score
            if worse > (1e-3 if measure == "bits_per_byte" else 1 / QUESTIONS):
                lost.append(f"{name}: {task} {measure}: {score}, and it was {expected}")
    return lost


@clause("REQ-3", "HOST-7", "FLOW-9", "FLOW-10", needs=(Capability.STORAGE,))
@each_dtype
@each_model
def test_every_tier_answers_as_the_first_pass(
    name: str, dtype: torch.dtype, adapter_path: str, open_cache: OpenCache, tmp_path: Path
) -> None:
    asked = subject(name, dtype, adapter_path)
    asking = asked.passes(open_cache, tmp_path)
    first = asked.ask(asking)
    wrong = list(differences("in one forward", dtype, whole(asking.stage.model.runner, first), first, same_bytes=False))
    if dtype is torch.float32:
        wrong += below_baseline(name, first)
    for tier in Tier:
        if tier is Tier.STORAGE:
            with asking.set_aside():
                later = ask_anew(asked, tmp_path, first)
        else:
            asking.lose_above(tier)
            later = asked.ask(asking)
        wrong += differences(tier.value, dtype, first, later, same_bytes=True)
        wrong += unserved(tier.value, tier, ROOM.page_size, later)
        same = [same_chunks(*pair) for pair in zip(first.asked, later.asked, strict=True)]
        assert all(same), f"{same.count(False)} of {len(same)} requests stop at other places: nothing is exact of them"
    assert not wrong, "REQ-3: the same questions, and other answers:\n" + "\n".join(wrong)


@clause("REQ-3", "FLOW-9", needs=(Capability.STORAGE,))
@each_model
def test_storage_that_fails_answers_as_the_first_pass(
    name: str, adapter_path: str, open_cache: OpenCache, tmp_path: Path
) -> None:
    asked = subject(name, torch.float32, adapter_path)
    asking = asked.passes(open_cache, tmp_path)
    first = asked.ask(asking)
    asking.lose_to_faults()
    faulty = asked.ask(asking)
    asking.lose_above(Tier.STORAGE)
    after = asked.ask(asking)
    wrong = list(differences("faults", torch.float32, first, faulty, same_bytes=False))
    wrong += unspared("faults", ROOM.page_size, faulty)
    wrong += differences("after faults", torch.float32, first, after, same_bytes=False)
    wrong += unserved("after faults", Tier.STORAGE, ROOM.page_size, after)
    assert not wrong, "REQ-3: the same questions, and other answers:\n" + "\n".join(wrong)
