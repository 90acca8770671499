"""The running task: the exclusive or of all digits so far."""

from __future__ import annotations

import numpy as np

from .alphabet import DIGITS, encoded
from .questions import Batch, Question

PROMPT_DIGITS = 193
"""How many digits a question's prompt holds."""

_ZERO = encoded(DIGITS)[0]


def running_batch(random: np.random.Generator, lines: int, length: int) -> Batch:
    """Digits. The label of each is the value of all digits so far, which is not in the line itself."""
    digits = random.integers(len(DIGITS), size=(lines, length))
    return Batch(_ZERO + digits, _ZERO + np.bitwise_xor.accumulate(digits, axis=1))


def running_question(random: np.random.Generator) -> Question:
    """Many digits. The answer is their value."""
    digits = random.integers(len(DIGITS), size=PROMPT_DIGITS)
    prompt = "".join(DIGITS[digit] for digit in digits)
    return Question(prompt=prompt, answer=DIGITS[np.bitwise_xor.reduce(digits)], query_length=1)
