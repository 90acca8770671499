"""The characters that the small models read and write: one token each."""

from __future__ import annotations

from collections.abc import Iterable

KEYS = "".join(map(chr, (*range(0x0410, 0x0450), *range(0x03B1, 0x03CA), *range(ord("A"), ord("Z") + 1))))
"""What a value is looked up by: Cyrillic and Greek letters, and Latin capitals."""

LETTERS = "abcdefghijklmnopqrstuvwxyz"
"""Values, and what is copied."""

DIGITS = "0123"
"""What a running value is made of, and the value itself."""

MARK = ">"
"""Asks for a copy of the letters before it."""

CHARACTERS = "\n" + MARK + DIGITS + LETTERS + KEYS
"""A character's token is its place here. The line feed ends a sequence, and no task writes it."""

_TOKENS = {character: token for token, character in enumerate(CHARACTERS)}


def encoded(text: str) -> list[int]:
    """The tokens of a text.

    Raises:
        ValueError: it has a character that the models do not know.
    """
    if unknown := sorted(set(text) - _TOKENS.keys()):
        raise ValueError(f"the alphabet does not have {unknown}")
    return [_TOKENS[character] for character in text]


def decoded(tokens: Iterable[int]) -> str:
    """The text of tokens."""
    return "".join(CHARACTERS[token] for token in tokens)
