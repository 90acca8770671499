"""The characters that the small models read and write: one token each."""

from __future__ import annotations

from collections.abc import Iterable

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
