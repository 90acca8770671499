"""The copying task: repeat the last letters. Every letter is copied from the same distance."""

from __future__ import annotations

import numpy as np

from .alphabet import LETTERS, MARK, encoded
from .questions import NO_LABEL, Batch, Question

SPAN = 8
"""How many letters are copied, and the distance from a letter to the position that predicts its copy."""

PROMPT_LETTERS = 128
"""How many letters a question's prompt holds."""

_LETTERS = np.array(encoded(LETTERS))
_PERIOD = 2 * SPAN + 1


def copying_batch(random: np.random.Generator, lines: int, length: int) -> Batch:
    """Letters, the mark, the same letters; again and again with new letters. Lines begin anywhere in this period."""
    rounds = length // _PERIOD + 2
    drawn = random.choice(_LETTERS, (lines, rounds, SPAN))
    marks = np.full((lines, rounds, 1), encoded(MARK)[0])
    tokens = np.concatenate([drawn, marks, drawn], axis=2).reshape(lines, -1)
    no_labels = np.full((lines, rounds, SPAN), NO_LABEL)
    labels = np.concatenate([no_labels, drawn, marks * 0 + NO_LABEL], axis=2).reshape(lines, -1)
    starts = random.integers(_PERIOD, size=(lines, 1)) + np.arange(length)
    rows = np.arange(lines)[:, None]
    labels = labels[rows, starts]
    labels[:, :SPAN] = NO_LABEL
    return Batch(tokens[rows, starts], labels)


def copying_question(random: np.random.Generator) -> Question:
    """Many letters and the mark. The answer is the last SPAN letters."""
    letters = "".join(random.choice(list(LETTERS), PROMPT_LETTERS))
    return Question(prompt=letters + MARK, answer=letters[-SPAN:], query_length=1)
