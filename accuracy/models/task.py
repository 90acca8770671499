"""The tasks of the small models: what they are trained on and asked, and the component whose data each task needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hicache.types import Component

KEYS = "".join(map(chr, (*range(0x0410, 0x0450), *range(0x03B1, 0x03CA), *range(ord("A"), ord("Z") + 1))))
"""The keys of recall: Cyrillic and Greek letters, and Latin capitals."""

LETTERS = "abcdefghijklmnopqrstuvwxyz"
"""The values of recall, and the letters of copying."""

DIGITS = "0123"
"""The digits of a running value, and the value itself."""

MARK = ">"
"""Asks for a copy of the letters before it."""

CHARACTERS = "\n" + MARK + DIGITS + LETTERS + KEYS
"""A character's token is its index here. The line feed ends a sequence, and occurs in no task."""

_TOKENS = {character: token for token, character in enumerate(CHARACTERS)}


def encoded(text: str) -> list[int]:
    """The tokens of a text.

    Raises:
        ValueError: it has a character that is not in CHARACTERS.
    """
    if unknown := sorted(set(text) - _TOKENS.keys()):
        raise ValueError(f"the alphabet does not have {unknown}")
    return [_TOKENS[character] for character in text]


def decoded(tokens: Iterable[int]) -> str:
    """The text of tokens."""
    return "".join(CHARACTERS[token] for token in tokens)


_KEYS, _LETTERS, _DIGITS, _MARK = (np.array(encoded(text)) for text in (KEYS, LETTERS, DIGITS, MARK))

NO_LABEL = -100
"""The label of a position that the loss ignores."""


@dataclass(frozen=True)
class Batch:
    """Training sequences of one task, each int64 [lines, length]. A label is the token that follows its position.

    `read`: the position that a guided layer is to read for a label, NO_LABEL where it may read anything.
    """

    tokens: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    read: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Question:
    """A prompt and its only right answer.

    The last `query_length` characters of the prompt are the query. The text before them fills whole pages of 64 tokens,
    or of any smaller power of two: all of it can be a hit, so no recomputed token hides a loss.
    """

    prompt: str
    answer: str
    query_length: int


RECORDS = 96
"""How many keys the prompt of a recall question holds."""


def recall_batch(random: np.random.Generator, lines: int, length: int) -> Batch:
    """Keys with their letters, each key once, and then some of the keys again, in random order.

    Labels also ask each letter for its key: a model that learns the token before each letter soon learns to find a
    letter by its key.
    """
    tokens = np.empty((lines, length), np.int64)
    labels, read = np.full((2, lines, length), NO_LABEL)
    for line in range(lines):
        records = int(random.integers(length // 8, min(length * 7 // 16, len(_KEYS)) + 1))
        keys, letters = random.permutation(_KEYS)[:records], random.choice(_LETTERS, records)
        again = random.integers(records, size=length // 2 - records)
        order = np.concatenate([np.arange(records), again])
        tokens[line, ::2], tokens[line, 1::2] = keys[order], letters[order]
        labels[line, 1::2] = keys[order]
        labels[line, 2 * records :: 2] = letters[again]
        read[line, 2 * records :: 2] = 2 * again + 1
    return Batch(tokens, labels, read)


def recall_question(random: np.random.Generator) -> Question:
    """All keys with their letters, and then one of the keys of the first half."""
    keys = random.permutation(list(KEYS))[:RECORDS]
    letters = random.choice(list(LETTERS), RECORDS)
    asked = int(random.integers(RECORDS // 2))
    table = "".join(key + letter for key, letter in zip(keys, letters, strict=True))
    return Question(prompt=table + str(keys[asked]), answer=str(letters[asked]), query_length=1)


SPAN = 8
"""How many letters are copied, and the distance from a letter to the position that predicts its copy."""

PROMPT_LETTERS = 128
"""How many letters the prompt of a copying question holds."""

_PERIOD = 2 * SPAN + 1


def copying_batch(random: np.random.Generator, lines: int, length: int) -> Batch:
    """Letters, the mark, the same letters; again and again with new letters. Lines begin anywhere in this period."""
    rounds = length // _PERIOD + 2
    drawn = random.choice(_LETTERS, (lines, rounds, SPAN))
    marks = np.full((lines, rounds, 1), _MARK)
    tokens = np.concatenate([drawn, marks, drawn], axis=2).reshape(lines, -1)
    no_labels = np.full((lines, rounds, SPAN), NO_LABEL)
    labels = np.concatenate([no_labels, drawn, marks * 0 + NO_LABEL], axis=2).reshape(lines, -1)
    starts = random.integers(_PERIOD, size=(lines, 1)) + np.arange(length)
    rows = np.arange(lines)[:, None]
    labels = labels[rows, starts]
    labels[:, :SPAN] = NO_LABEL
    return Batch(tokens[rows, starts], labels, np.full_like(labels, NO_LABEL))


def copying_question(random: np.random.Generator) -> Question:
    """Many letters and the mark. The answer is the last SPAN letters."""
    letters = "".join(random.choice(list(LETTERS), PROMPT_LETTERS))
    return Question(prompt=letters + MARK, answer=letters[-SPAN:], query_length=1)


PROMPT_DIGITS = 193
"""How many digits the prompt of a running question holds."""


def running_batch(random: np.random.Generator, lines: int, length: int) -> Batch:
    """Digits. The label of each is the value of all digits so far, which is not in the line itself."""
    digits = random.integers(len(DIGITS), size=(lines, length))
    return Batch(_DIGITS[digits], _DIGITS[np.bitwise_xor.accumulate(digits, axis=1)], np.full_like(digits, NO_LABEL))


def running_question(random: np.random.Generator) -> Question:
    """Many digits. The answer is their value."""
    digits = random.integers(len(DIGITS), size=PROMPT_DIGITS)
    prompt = "".join(DIGITS[digit] for digit in digits)
    return Question(prompt=prompt, answer=DIGITS[np.bitwise_xor.reduce(digits)], query_length=1)


ASSIGNMENTS = 96
"""How many assignments the prompt of a latest question holds."""

QUIET = 16
"""The last assignments of a question: none of them is to the digit that is asked."""


def _assigned(random: np.random.Generator, lines: int, count: int) -> npt.NDArray[np.int64]:
    """The digit of each assignment, [lines, count]: some of the digits, two at least, in each stretch of QUIET."""
    stretches = -(-count // QUIET)
    orders = random.permuted(np.broadcast_to(np.arange(len(DIGITS)), (lines, stretches, len(DIGITS))), axis=2)
    used = random.integers(2, len(DIGITS) + 1, size=(lines, stretches, 1))
    chosen = random.integers(used, size=(lines, stretches, QUIET))
    return np.take_along_axis(orders, chosen, axis=2).reshape(lines, -1)[:, :count]


def latest_batch(random: np.random.Generator, lines: int, length: int) -> Batch:
    """Digits, each with a letter. The label of a digit is the letter that it had last, which is not the next token.

    A guided layer is to read the digit alone, so that the letter comes from the states below it.
    """
    digits = _assigned(random, lines, length // 2)
    letters = random.choice(_LETTERS, digits.shape)
    tokens = np.stack([_DIGITS[digits], letters], axis=2).reshape(lines, -1)
    labels = np.full(tokens.shape, NO_LABEL)
    last = np.full((lines, len(DIGITS)), NO_LABEL)
    rows = np.arange(lines)
    for number in range(digits.shape[1]):
        labels[:, 2 * number] = last[rows, digits[:, number]]
        last[rows, digits[:, number]] = letters[:, number]
    return Batch(tokens, labels, np.where(labels == NO_LABEL, NO_LABEL, np.arange(tokens.shape[1])))


def latest_question(random: np.random.Generator) -> Question:
    """Digits, each with a letter, and then a digit that none of the last QUIET assignments has."""
    order = random.permutation(len(DIGITS))
    digits = np.concatenate([_assigned(random, 1, ASSIGNMENTS - QUIET)[0], order[random.integers(2, size=QUIET)]])
    letters = random.choice(list(LETTERS), ASSIGNMENTS)
    asked = next(digit for digit in digits[ASSIGNMENTS - QUIET - 1 :: -1] if digit in order[2:])
    last = int(np.flatnonzero(digits == asked)[-1])
    table = "".join(DIGITS[digit] + str(letter) for digit, letter in zip(digits, letters, strict=True))
    return Question(prompt=table + DIGITS[asked], answer=str(letters[last]), query_length=1)


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
LATEST = Task("latest", Component.MAMBA, latest_batch, latest_question, batch_tokens=1024)
