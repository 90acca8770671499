"""Far recall: the letter that stood after a key, once, far before."""

from __future__ import annotations

import numpy as np

from .alphabet import KEYS, LETTERS, encoded
from .questions import UNASKED, Lesson, Question

RECORDS = 96
"""How many keys a question's prompt holds."""

_KEYS, _LETTERS = np.array(encoded(KEYS)), np.array(encoded(LETTERS))


def recall_lesson(random: np.random.Generator, lines: int, length: int) -> Lesson:
    """Keys with their letters, each key once, and then some of the keys again, in a drawn order.

    After each letter its key is asked, too: a model that knows what stood before a letter soon finds the letter by it.
    """
    tokens = np.empty((lines, length), np.int64)
    labels = np.full((lines, length), UNASKED)
    for line in range(lines):
        records = int(random.integers(length // 8, min(length * 7 // 16, len(_KEYS)) + 1))
        keys, letters = random.permutation(_KEYS)[:records], random.choice(_LETTERS, records)
        again = random.integers(records, size=length // 2 - records)
        order = np.concatenate([np.arange(records), again])
        tokens[line, ::2], tokens[line, 1::2] = keys[order], letters[order]
        labels[line, 1::2] = keys[order]
        labels[line, 2 * records :: 2] = letters[again]
    return Lesson(tokens, labels)


def recall_question(random: np.random.Generator) -> Question:
    """One of the keys of the first half, after all of them."""
    keys = random.permutation(list(KEYS))[:RECORDS]
    letters = random.choice(list(LETTERS), RECORDS)
    asked = int(random.integers(RECORDS // 2))
    table = "".join(key + letter for key, letter in zip(keys, letters, strict=True))
    return Question(prompt=table + str(keys[asked]), answer=str(letters[asked]), asking=1)
