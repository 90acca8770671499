"""What the models are trained on, and what they are asked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

UNASKED = -100
"""The label of a position after which nothing is asked: the loss leaves it out."""


@dataclass(frozen=True)
class Lesson:
    """Lines of one task, of one length; both int64 [lines, length]. A label is the token to follow its position."""

    tokens: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Question:
    """A prompt and the one right answer.

    The last `asking` characters of the prompt put the question. What is before them fills pages of 64 tokens, or of any
    power of two below: nothing of it has to be computed again when it is served from a cache, so nothing hides a loss.
    """

    prompt: str
    answer: str
    asking: int
