"""The recall task: the letter that followed a key once, far back in the prompt."""

from __future__ import annotations

import numpy as np

from .alphabet import KEYS, LETTERS, encoded
from .questions import NO_LABEL, Batch, Question

RECORDS = 96
"""How many keys a question's prompt holds."""

_KEYS, _LETTERS = np.array(encoded(KEYS)), np.array(encoded(LETTERS))


def recall_batch(random: np.random.Generator, lines: int, length: int) -> Batch:
    """Keys with their letters, each key once, and then some of the keys again, in random order.

    Labels also ask each letter for its key: a model that learns the token before each letter soon learns to find a
    letter by its key.
    """
    tokens = np.empty((lines, length), np.int64)
    labels = np.full((lines, length), NO_LABEL)
    for line in range(lines):
        records = int(random.integers(length // 8, min(length * 7 // 16, len(_KEYS)) + 1))
        keys, letters = random.permutation(_KEYS)[:records], random.choice(_LETTERS, records)
        again = random.integers(records, size=length // 2 - records)
        order = np.concatenate([np.arange(records), again])
        tokens[line, ::2], tokens[line, 1::2] = keys[order], letters[order]
        labels[line, 1::2] = keys[order]
        labels[line, 2 * records :: 2] = letters[again]
    return Batch(tokens, labels)


def recall_question(random: np.random.Generator) -> Question:
    """All keys with their letters, and then one of the keys of the first half."""
    keys = random.permutation(list(KEYS))[:RECORDS]
    letters = random.choice(list(LETTERS), RECORDS)
    asked = int(random.integers(RECORDS // 2))
    table = "".join(key + letter for key, letter in zip(keys, letters, strict=True))
    return Question(prompt=table + str(keys[asked]), answer=str(letters[asked]), query_length=1)
