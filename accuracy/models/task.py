"""The tasks, and the component that each of them cannot do without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hicache.types import Component

from .copying import copying_lesson, copying_question
from .questions import Lesson, Question
from .recall import recall_lesson, recall_question
from .running import running_lesson, running_question


@dataclass(frozen=True)
class Task:
    """How one thing is taught, in lines of a given length, and asked. Its prompts are all of one length.

    `lesson_tokens`: how many tokens a step of training takes of it.
    """

    name: str
    component: Component
    lesson: Callable[[np.random.Generator, int, int], Lesson]
    question: Callable[[np.random.Generator], Question]
    lesson_tokens: int

    def questions(self, seed: int, count: int) -> list[Question]:
        """Questions drawn from the seed."""
        random = np.random.default_rng(seed)
        return [self.question(random) for _ in range(count)]


RECALL = Task("recall", Component.FULL, recall_lesson, recall_question, lesson_tokens=2048)
COPYING = Task("copying", Component.SWA, copying_lesson, copying_question, lesson_tokens=512)
RUNNING = Task("running", Component.MAMBA, running_lesson, running_question, lesson_tokens=512)
