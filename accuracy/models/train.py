"""Train a small model in minutes and save it: `python -m accuracy.models.train window`, or `hybrid`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import torch

from hicache.types import Component

from .recipe import RECIPES
from .scoring import score
from .shipped import WEIGHTS, save
from .training import training

REPORTED_STEPS = 50
QUESTIONS = 200


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


def _say(subject: str, values: Iterable[str]) -> None:
    sys.stdout.write(f"{subject}:  {'  '.join(values)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
