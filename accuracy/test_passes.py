"""The trained models answer their tasks in passes, each from another tier, as in the first pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hicache.config import read_table
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import Tier

from .answers import GATES
from .cache_setup import OpenCache
from .evaluation.comparison import differences, missing_hits, missing_partial_hits, same_chunks
from .evaluation.documents import FOLDER
from .evaluation.evaluate import ScoredPass
from .evaluation.passes import CacheSize, uncached_pass
from .evaluation.processes import ask_new_process
from .evaluation.subject import Subject
from .models.recipe import RECIPES

QUESTIONS = 16
SIZE = CacheSize(page_size=16, chunk_tokens=64, tokens=1 << 15, states=1024)
BASELINE = read_table(f"@{FOLDER.parent / 'baseline.toml'}")

each_model = pytest.mark.parametrize("name", RECIPES)
each_dtype = pytest.mark.parametrize("dtype", GATES, ids=["float32", "bfloat16"])


def subject(name: str, dtype: torch.dtype, adapter_path: str) -> Subject:
    return Subject(name, tuple(BASELINE[name]), QUESTIONS, dtype, "cpu", False, SIZE, adapter_path)


def below_baseline(name: str, scored: ScoredPass) -> list[str]:
    """The scores that are worse than the baseline by more than one answer."""
    lost = []
    for task, measures in BASELINE[name].items():
        for measure, expected in measures.items():
            score = scored.scores[f"{task} {measure}"]
            # Fewer bits are better. Their last digits differ from machine to machine.
            worse = score - expected if measure == "bits_per_byte" else expected - score
            if worse > (1e-3 if measure == "bits_per_byte" else 1 / QUESTIONS):
                lost.append(f"{name}: {task} {measure}: expected {expected}, got {score}")
    return lost


@clause("REQ-3", "HOST-7", "FLOW-9", "FLOW-10", needs=(Capability.STORAGE,))
@each_dtype
@each_model
def test_every_tier_answers_as_the_first_pass(
    name: str, dtype: torch.dtype, adapter_path: str, open_cache: OpenCache, tmp_path: Path
) -> None:
    own = subject(name, dtype, adapter_path)
    passes = own.passes(open_cache, tmp_path)
    first = own.ask(passes)
    wrong = list(
        differences("in one forward", dtype, uncached_pass(passes.setup.model.runner, first), first, same_bytes=False)
    )
    if dtype is torch.float32:
        wrong += below_baseline(name, first)
    for tier in Tier:
        if tier is Tier.STORAGE:
            with passes.released():
                later = ask_new_process(own, tmp_path, first)
        else:
            passes.drop_above(tier)
            later = own.ask(passes)
        wrong += differences(tier.value, dtype, first, later, same_bytes=True)
        wrong += missing_hits(tier.value, tier, SIZE.page_size, later)
        same = [same_chunks(*pair) for pair in zip(first.requests, later.requests, strict=True)]
        assert all(same), (
            f"expected the same chunks in every request, so that logits are compared exactly; "
            f"{same.count(False)} of {len(same)} requests have other chunks"
        )
    assert not wrong, "REQ-3: expected the same answers to the same questions, got:\n" + "\n".join(wrong)


@clause("REQ-3", "FLOW-9", needs=(Capability.STORAGE,))
@each_model
def test_failing_storage_answers_as_the_first_pass(
    name: str, adapter_path: str, open_cache: OpenCache, tmp_path: Path
) -> None:
    own = subject(name, torch.float32, adapter_path)
    passes = own.passes(open_cache, tmp_path)
    first = own.ask(passes)
    passes.reopen_with_faults()
    faulty = own.ask(passes)
    passes.drop_above(Tier.STORAGE)
    after = own.ask(passes)
    wrong = list(differences("faults", torch.float32, first, faulty, same_bytes=False))
    wrong += missing_partial_hits("faults", SIZE.page_size, faulty)
    wrong += differences("after faults", torch.float32, first, after, same_bytes=False)
    wrong += missing_hits("after faults", Tier.STORAGE, SIZE.page_size, after)
    assert not wrong, "REQ-3: expected the same answers to the same questions, got:\n" + "\n".join(wrong)
