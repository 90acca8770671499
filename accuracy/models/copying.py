"""Near copy: the last letters again, each from as far back as the others."""

from __future__ import annotations

import numpy as np

from .alphabet import LETTERS, MARK, encoded
from .questions import UNASKED, Lesson, Question

SPAN = 8
"""How many letters are copied, and how far back of its copy's predecessor a letter stands."""

PROMPT_LETTERS = 128
"""How many letters a question's prompt holds."""

_LETTERS = np.array(encoded(LETTERS))
_PERIOD = 2 * SPAN + 1


def copying_lesson(random: np.random.Generator, lines: int, length: int) -> Lesson:
    """Letters, the mark, the same letters; and again with new letters. Each line starts anywhere in the round."""
    rounds = length // _PERIOD + 2
    drawn = random.choice(_LETTERS, (lines, rounds, SPAN))
    marks = np.full((lines, rounds, 1), encoded(MARK)[0])
    tokens = np.concatenate([drawn, marks, drawn], axis=2).reshape(lines, -1)
    unasked = np.full((lines, rounds, SPAN), UNASKED)
    labels = np.concatenate([unasked, drawn, marks * 0 + UNASKED], axis=2).reshape(lines, -1)
    starts = random.integers(_PERIOD, size=(lines, 1)) + np.arange(length)
    rows = np.arange(lines)[:, None]
    labels = labels[rows, starts]
    labels[:, :SPAN] = UNASKED
    return Lesson(tokens[rows, starts], labels)


def copying_question(random: np.random.Generator) -> Question:
    """The mark after many letters: the last of them are to follow."""
    letters = "".join(random.choice(list(LETTERS), PROMPT_LETTERS))
    return Question(prompt=letters + MARK, answer=letters[-SPAN:], asking=1)
