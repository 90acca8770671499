"""Batch and Question: what the models are trained on, and what they are tested with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NO_LABEL = -100
"""The label of a position that the loss ignores."""


@dataclass(frozen=True)
class Batch:
    """Training sequences of one task, both int64 [lines, length]. A label is the token that follows its position."""

    tokens: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Question:
    """A prompt and its only right answer.

    The last `query_length` characters of the prompt are the query. The text before them fills whole pages of 64 tokens,
    or of any smaller power of two: all of it can be a hit, so no recomputed token hides a loss.
    """

    prompt: str
    answer: str
    query_length: int
