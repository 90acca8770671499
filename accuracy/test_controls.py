"""The negative control: losing a component on its way from any tier lowers the score of the task that needs it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import Tier

from .answers import GATES
from .cache_setup import OpenCache
from .evaluation.comparison import differences, missing_hits, nats_between
from .evaluation.documents import task
from .evaluation.passes import CacheSize, Passes, pass_without
from .evaluation.vocabulary import AlphabetVocabulary
from .models.recipe import RECIPES
from .models.task import Task
from .trained_models import trained_model

QUESTIONS = 16
MIN_DROP = 0.2
SIZE = CacheSize(page_size=16, chunk_tokens=64, tokens=1 << 13, states=256)

CARRIED = [(name, carried) for name, recipe in RECIPES.items() for carried in recipe.tasks]


@clause("REQ-3", "HOST-7", "FLOW-9", "FLOW-10", needs=(Capability.STORAGE,))
@pytest.mark.parametrize("tier", Tier, ids=lambda tier: tier.value)
@pytest.mark.parametrize(("name", "carried"), CARRIED, ids=lambda value: getattr(value, "name", value))
def test_losing_a_component_lowers_the_score_of_its_task(
    name: str, carried: Task, tier: Tier, open_cache: OpenCache, tmp_path: Path
) -> None:
    model, tasks = trained_model(name, torch.float32), [task(carried.name, QUESTIONS)]
    passes = Passes(model, AlphabetVocabulary(), tasks, SIZE, open_cache, tmp_path)
    first = passes.ask()
    lossy = pass_without(carried.component, tier, passes, passes.ask)
    place = f"{name} without {carried.component.value} from {tier.value}"
    missing = list(missing_hits(place, tier, SIZE.page_size, lossy))
    assert not missing, f"{place}: expected all hits on {tier.value}, got {missing}"
    measure = f"{carried.name} exact_match"
    loss = first.scores[measure] - lossy.scores[measure]
    assert loss >= MIN_DROP, f"{place}: {first.scores} fell to {lossy.scores}, expected {MIN_DROP} less"
    mean = float(nats_between(first, lossy).mean())
    gate = GATES[torch.float32]
    assert mean > gate.mean, f"{place}: expected more than {gate}, got {mean:.1e} nats a token"
    lines = list(differences(place, torch.float32, first, lossy, same_bytes=True))
    assert len(lines) >= 3, f"{place}: expected differences in score, answers and distributions, got {lines}"
