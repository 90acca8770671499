"""Train a small model in minutes, score it and save it: `python -m accuracy.models.train window`, or `hybrid`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import DynamicCache

from hicache.types import Component

from .recipe import RECIPES, WEIGHTS, Recipe, Stage, save
from .task import Question, Task, encoded

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


LAYER_TYPES: Mapping[Component, str] = {
    Component.FULL: "full_attention",
    Component.SWA: "sliding_attention",
    Component.MAMBA: "linear_attention",
}
"""The type of the layers whose data each component holds."""


def erase(cache: Any, component: Component, layer_types: list[str]) -> None:
    """Replace the data of all layers of one component by zeros, as if a server had lost it without noticing."""
    for layer, kind in zip(cache.layers, layer_types, strict=True):
        if kind != LAYER_TYPES[component]:
            continue
        if component is Component.MAMBA:
            layer.conv_states[0].zero_()
            layer.recurrent_states[0].zero_()
        else:
            layer.keys, layer.values = torch.zeros_like(layer.keys), torch.zeros_like(layer.values)


@torch.inference_mode()
def score(model: Any, questions: Sequence[Question], erased: Component | None) -> float:
    """The share of questions answered completely, when `erased` is lost after the prompt, before its query."""
    prompts = torch.tensor([encoded(question.prompt) for question in questions])
    answers = torch.tensor([encoded(question.answer) for question in questions])
    known = prompts.shape[1] - questions[0].query_length
    cache = DynamicCache(config=model.config)
    _next_tokens(model, prompts[:, :known], cache, 0)
    if erased is not None:
        erase(cache, erased, model.config.layer_types)
    given = _next_tokens(model, prompts[:, known:], cache, known)
    right = given == answers[:, :1]
    for position in range(1, answers.shape[1]):
        given = _next_tokens(model, given, cache, prompts.shape[1] + position - 1)
        right = right & (given == answers[:, position : position + 1])
    return float(right.float().mean())


def _next_tokens(model: Any, tokens: torch.Tensor, cache: Any, start: int) -> torch.Tensor:
    """The likeliest token after each line, [lines, 1]."""
    positions = torch.arange(start, start + tokens.shape[1])[None]
    answer = model(input_ids=tokens, position_ids=positions, past_key_values=cache, use_cache=True)
    return answer.logits[:, -1:].argmax(-1)  # type: ignore[no-any-return]


REPORTED_STEPS = 50
QUESTIONS = 200


def _say(subject: str, values: Iterable[str]) -> None:
    sys.stdout.write(f"{subject}:  {'  '.join(values)}\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> None:
    """Train the named model, report its scores and write its files."""
    parser = argparse.ArgumentParser(prog="python -m accuracy.models.train", description=__doc__)
    parser.add_argument("name", choices=sorted(RECIPES))
    parser.add_argument("--folder", type=Path, default=WEIGHTS, help="where the files are written")
    given = parser.parse_args(arguments)
    # One thread, for one order of additions; denormal numbers would slow the recurrent layers down.
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    recipe = RECIPES[given.name]
    model = recipe.untrained()
    for step in training(recipe, model):
        if step.number % REPORTED_STEPS == 0:
            losses = [f"{task.name} {loss:.3f}" for task, loss in step.losses.items()]
            _say(f"step {step.number:5}  {time.process_time():6.0f} s", losses)
    save(model, given.name, given.folder)
    for task in recipe.tasks:
        questions = task.questions(seed=0, count=QUESTIONS)
        names: dict[Component | None, str] = {None: "nothing"}
        names |= {component: component.value for component in Component}
        _say(task.name, [f"without {name} {score(model, questions, erased):.3f}" for erased, name in names.items()])


if __name__ == "__main__":
    main(sys.argv[1:])
