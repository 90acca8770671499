"""Running value: the exclusive or of all digits so far."""

from __future__ import annotations

import numpy as np

from .alphabet import DIGITS, encoded
from .questions import Lesson, Question

PROMPT_DIGITS = 193
"""How many digits a question's prompt holds."""

_ZERO = encoded(DIGITS)[0]


def running_lesson(random: np.random.Generator, lines: int, length: int) -> Lesson:
    """Digits, and after each the value of all so far. The value itself does not stand in the line."""
    digits = random.integers(len(DIGITS), size=(lines, length))
    return Lesson(_ZERO + digits, _ZERO + np.bitwise_xor.accumulate(digits, axis=1))


def running_question(random: np.random.Generator) -> Question:
    """The value of many digits."""
    digits = random.integers(len(DIGITS), size=PROMPT_DIGITS)
    prompt = "".join(DIGITS[digit] for digit in digits)
    return Question(prompt=prompt, answer=DIGITS[np.bitwise_xor.reduce(digits)], asking=1)
