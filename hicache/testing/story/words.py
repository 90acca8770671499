"""Words: a vocabulary in which each word is one token, so that a picture can show tokens as words."""

from __future__ import annotations

import numpy as np


class Words:
    """Turns texts into tokens, and the segments of nodes back into words. A new word gets the next token id."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self._tokens: dict[str, int] = {}

    def tokens(self, text: str) -> list[int]:
        """One token for each word; equal words have equal tokens."""
        return [self._tokens.setdefault(word, len(self._tokens)) for word in text.split()]

    def pages(self, segment: bytes) -> tuple[str, ...]:
        """The words of each page of a segment (token ids, 4 bytes little-endian each)."""
        known = list(self._tokens)
        words = [known[token] for token in np.frombuffer(segment, dtype="<i4").tolist()]
        size = self.page_size
        return tuple(" ".join(words[first : first + size]) for first in range(0, len(words), size))
