"""Documents: the tasks of this suite as lm-eval takes them, with prompts and answers that are drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from hicache.config import read_table

from ..models.task import COPYING, LETTERS, MARK, RECALL, RUNNING, SPAN, Task

Documents = Mapping[str, list[dict[str, Any]]]
"""The documents of each split."""

FOLDER = Path(__file__).parent / "tasks"
"""The YAML of each task."""

SEED = 5
SHOTS = 12
CHOICES = 4
READ_ROUNDS = 6


def questions_of(task: Task) -> Callable[[int], Documents]:
    """A function that draws the questions of a trained model's task."""

    def questions(count: int) -> Documents:
        drawn = task.questions(SEED, count)
        return {"test": [{"prompt": question.prompt, "answer": question.answer} for question in drawn]}

    return questions


def choices(count: int) -> Documents:
    """Recall questions with a choice of letters, one of which is right."""
    random = np.random.default_rng(SEED)
    documents = []
    for question in RECALL.questions(SEED + 1, count):
        others = random.permutation([letter for letter in LETTERS if letter != question.answer])
        right = int(random.integers(CHOICES))
        letters = [str(letter) for letter in others[: CHOICES - 1]]
        letters.insert(right, question.answer)
        documents.append({"prompt": question.prompt, "choices": letters, "right": right})
    return {"test": documents}


def shots(count: int) -> Documents:
    """Copies of a few letters. Every prompt begins with the same examples of such copies."""
    random = np.random.default_rng(SEED)
    return {"shots": [_copy(random) for _ in range(SHOTS)], "test": [_copy(random) for _ in range(count)]}


def readings(count: int) -> Documents:
    """Texts that consist of several copies."""
    random = np.random.default_rng(SEED + 2)
    rounds = [[_copy(random) for _ in range(READ_ROUNDS)] for _ in range(count)]
    return {"test": [{"text": "".join(one["prompt"] + one["answer"] for one in line)} for line in rounds]}


def _copy(random: np.random.Generator) -> dict[str, Any]:
    letters = "".join(random.choice(list(LETTERS), SPAN))
    return {"prompt": letters + MARK, "answer": letters}


DOCUMENTS: Mapping[str, Callable[[int], Documents]] = {
    "recall": questions_of(RECALL),
    "copying": questions_of(COPYING),
    "running": questions_of(RUNNING),
    "choice": choices,
    "shots": shots,
    "reading": readings,
}
"""By task: a function that makes a number of its documents."""

VARIANTS: Mapping[str, Task] = {"choice": RECALL, "shots": COPYING, "reading": COPYING}
"""The tasks that no model is trained on, and the task that each is a variant of."""


def task(name: str, count: int) -> Mapping[str, Any]:
    """A task in lm-eval's form, with `count` documents. Raises KeyError for an unknown task."""
    documents = DOCUMENTS[name](count)

    def data(**_options: Any) -> dict[str, Any]:
        return {split: Dataset.from_list(lines) for split, lines in documents.items()}

    return {**read_table(f"@{FOLDER / f'{name}.yaml'}"), "custom_dataset": data}
