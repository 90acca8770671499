"""The tasks, and the component whose data each of them needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hicache.types import Component

from .copying import copying_batch, copying_question
from .questions import Batch, Question
from .recall import recall_batch, recall_question
from .running import running_batch, running_question


@dataclass(frozen=True)
class Task:
    """A task: `batch` makes training lines of a given length, `question` a test prompt. All prompts have one length.

    `component`: the component whose data the task needs. `batch_tokens`: how many tokens one training step uses.
    """

    name: str
    component: Component
    batch: Callable[[np.random.Generator, int, int], Batch]
    question: Callable[[np.random.Generator], Question]
    batch_tokens: int

    def questions(self, seed: int, count: int) -> list[Question]:
        """Questions drawn from the seed."""
        random = np.random.default_rng(seed)
        return [self.question(random) for _ in range(count)]


RECALL = Task("recall", Component.FULL, recall_batch, recall_question, batch_tokens=2048)
COPYING = Task("copying", Component.SWA, copying_batch, copying_question, batch_tokens=512)
RUNNING = Task("running", Component.MAMBA, running_batch, running_question, batch_tokens=512)
