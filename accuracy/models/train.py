"""Train a small model in minutes, score it and save it: `python -m accuracy.models.train window`, or another one."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import DynamicCache
from transformers.cache_utils import DynamicSlidingWindowLayer

from hicache.types import Component

from .guidance import Attention, Guide, guidance_loss, indexers, watched
from .recipe import RECIPES, WEIGHTS, Recipe, Stage, save, trained
from .task import NO_LABEL, Question, Task, encoded

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
    optimiser = _optimiser(model.parameters(), recipe.learning_rate)
    stages = [stage for stage in recipe.stages for _ in range(stage.steps)]
    model.train()
    with watched(model) if recipe.guide is not None else nullcontext(Attention()) as attention:
        for number, stage in enumerate(stages):
            _set_rate(optimiser, recipe.learning_rate * _share_of_rate(number, len(stages)))
            losses = {}
            for task in stage.lengths:
                loss = _loss(model, task, stage, random, attention, recipe.guide)
                loss.backward()  # type: ignore[no-untyped-call]
                losses[task] = float(loss.detach())
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            optimiser.step()
            yield Step(number, losses)
        if recipe.indexing is not None:
            yield from _fitting(recipe, recipe.indexing, model, attention)
    model.eval()


INDEX_RATE = 5e-3
"""The learning rate of indexers. During the last third of their steps it falls to zero."""


def _fitting(recipe: Recipe, stage: Stage, model: Any, attention: Attention) -> Iterator[Step]:
    """Fit the indexers to what their layers attend to, and leave all other weights unchanged."""
    random = np.random.default_rng(recipe.seed + 1)
    optimiser = _optimiser([one for indexer in indexers(model) for one in indexer.parameters()], INDEX_RATE)
    tasks = tuple(stage.lengths)
    for number in range(stage.steps):
        _set_rate(optimiser, INDEX_RATE * min(1, 3 * (1 - number / stage.steps)))
        task = tasks[number % len(tasks)]
        attention.losses.clear()
        _loss(model, task, stage, random, attention, None)
        loss = torch.stack(attention.losses).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        yield Step(sum(one.steps for one in recipe.stages) + number, {task: float(loss.detach())})


def _optimiser(parameters: Iterable[torch.nn.Parameter], rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.01)


def _set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of a step, and forget the gradients of the step before."""
    for group in optimiser.param_groups:
        group["lr"] = rate
    optimiser.zero_grad()


def _share_of_rate(number: int, steps: int) -> float:
    rising = (number + 1) / WARM_UP_STEPS
    falling = 3 * (1 - number / steps)
    return min(1, rising, falling)


def _loss(
    model: Any, task: Task, stage: Stage, random: np.random.Generator, attention: Attention, guide: Guide | None
) -> torch.Tensor:
    """The loss of one batch of a task, with the guidance that its labels lack."""
    length = stage.lengths[task]
    batch = task.batch(random, task.batch_tokens // length, length)
    positions = torch.arange(length)[None]
    attention.losses.clear()
    logits = model(input_ids=torch.from_numpy(batch.tokens), position_ids=positions, use_cache=False).logits
    loss = cross_entropy(logits.flatten(0, 1), torch.from_numpy(batch.labels).flatten())
    if guide is None or (batch.read == NO_LABEL).all():
        return loss
    return loss + guidance_loss(guide, attention, batch)


INDEXER = "indexer"
"""What `erase` loses beside components: the keys of indexers alone."""


def erase(cache: Any, lost: str) -> None:
    """Replace the data of one component, or of the indexers, by zeros, as if a server had lost it without noticing."""
    for layer in cache.layers:
        for tensor in _held(layer, lost):
            if tensor is not None:
                tensor.zero_()


def _held(layer: Any, lost: str) -> list[torch.Tensor | None]:
    """The tensors of a layer that belong to a component, or to its indexer."""
    rows = [getattr(layer, "keys", None), getattr(layer, "values", None)]
    entries: Mapping[str, torch.Tensor | None] = getattr(layer, "compressed_kv", {})
    index = [getattr(layer, "indexer_keys", None), entries.get(INDEXER)]
    if lost == INDEXER:
        return index
    if lost == Component.MAMBA:
        kinds = [getattr(layer, kind, {}) for kind in ("conv_states", "recurrent_states")]
        return [state for kind in kinds for state in kind.values()]
    is_window = isinstance(layer, DynamicSlidingWindowLayer)
    if lost == Component.FULL:
        return [*([] if is_window else rows), *index, *entries.values()]
    projected = ("buffer_kv", "buffer_gate", "overlap_kv", "overlap_gate")
    return [*rows, *(one for name in projected for one in getattr(layer, name, {}).values())] if is_window else []


@torch.inference_mode()
def score(model: Any, questions: Sequence[Question], erased: str | None) -> float:
    """The share of questions answered completely, when `erased` is lost after the prompt, before its query."""
    prompts = torch.tensor([encoded(question.prompt) for question in questions])
    answers = torch.tensor([encoded(question.answer) for question in questions])
    known = prompts.shape[1] - questions[0].query_length
    cache = DynamicCache(config=model.config)
    _next_tokens(model, prompts[:, :known], cache, 0)
    if erased is not None:
        erase(cache, erased)
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
    model = trained(given.name, folder=given.folder)
    for task in recipe.tasks:
        questions = task.questions(seed=0, count=QUESTIONS)
        scores = {lost: score(model, questions, lost) for lost in (None, *(one.value for one in Component), INDEXER)}
        _say(task.name, [f"without {lost or 'nothing'} {found:.3f}" for lost, found in scores.items()])


if __name__ == "__main__":
    main(sys.argv[1:])
