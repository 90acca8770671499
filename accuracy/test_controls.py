"""The negative control: a component that is lost on its way from any tier costs its task the score."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import Tier

from .evaluation.comparison import apart, differences, unserved
from .evaluation.controls import without
from .evaluation.passes import Passes, Room
from .evaluation.task_table import task
from .evaluation.vocabulary import AlphabetVocabulary
from .gates import GATES
from .models.recipe import RECIPES
from .models.task import Task
from .stage import OpenCache
from .trained_models import trained_model

QUESTIONS = 16
LEAST_LOSS = 0.2
ROOM = Room(page_size=16, chunk_tokens=64, tokens=1 << 13, states=256)

CARRIED = [(name, carried) for name, recipe in RECIPES.items() for carried in recipe.tasks]


@clause("REQ-3", "HOST-7", "FLOW-9", "FLOW-10", needs=(Capability.STORAGE,))
@pytest.mark.parametrize("tier", Tier, ids=lambda tier: tier.value)
@pytest.mark.parametrize(("name", "carried"), CARRIED, ids=lambda value: getattr(value, "name", value))
def test_a_lost_component_costs_its_task_the_score(
    name: str, carried: Task, tier: Tier, open_cache: OpenCache, tmp_path: Path
) -> None:
    model, tasks = trained_model(name, torch.float32), [task(carried.name, QUESTIONS)]
    passes = Passes(model, AlphabetVocabulary(), tasks, ROOM, open_cache, tmp_path)
    first = passes.ask()
    lossy = without(carried.component, tier, passes, passes.ask)
    place = f"{name} without {carried.component.value} from {tier.value}"
    assert not list(unserved(place, tier, ROOM.page_size, lossy)), f"{place}: it was not answered from there"
    measure = f"{carried.name} exact_match"
    loss = first.scores[measure] - lossy.scores[measure]
    assert loss >= LEAST_LOSS, f"{place}: {first.scores} fell to {lossy.scores}, expected {LEAST_LOSS} less"
    mean = float(apart(first, lossy).mean())
    assert mean > GATES[torch.float32].mean, f"{place}: {mean:.1e} nats a token, which the gate lets pass"
    told = list(differences(place, torch.float32, first, lossy, same_bytes=True))
    assert len(told) >= 3, f"{place}: expected the score, the answers and the distributions to tell, got {told}"
