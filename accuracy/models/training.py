"""Training: batches of all tasks in every step, deterministic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from .recipe import Recipe, Stage
from .task import Task

WARM_UP_STEPS = 50
"""The learning rate rises during these steps. During the last third of all steps it falls to zero."""


@dataclass(frozen=True)
class Step:
    """A training step: its number from 0, and the mean loss per task, in nats per label."""

    number: int
    losses: Mapping[Task, float]


def training(recipe: Recipe, model: Any) -> Iterator[Step]:
    """Train the model in place. Each step runs when the iterator is advanced."""
    random = np.random.default_rng(recipe.seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    stages = [stage for stage in recipe.stages for _ in range(stage.steps)]
    model.train()
    for number, stage in enumerate(stages):
        for group in optimiser.param_groups:
            group["lr"] = recipe.learning_rate * _share_of_rate(number, len(stages))
        optimiser.zero_grad()
        losses = {task: _backward(model, task, stage, random) for task in stage.lengths}
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimiser.step()
        yield Step(number, losses)
    model.eval()


def _share_of_rate(number: int, steps: int) -> float:
    rising = (number + 1) / WARM_UP_STEPS
    falling = 3 * (1 - number / steps)
    return min(1, rising, falling)


def _backward(model: Any, task: Task, stage: Stage, random: np.random.Generator) -> float:
    """The loss of a lesson, whose gradient is added to the model's."""
    length = stage.lengths[task]
    batch = task.batch(random, task.batch_tokens // length, length)
    positions = torch.arange(length)[None]
    logits = model(input_ids=torch.from_numpy(batch.tokens), position_ids=positions, use_cache=False).logits
    loss = cross_entropy(logits.flatten(0, 1), torch.from_numpy(batch.labels).flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())
