"""Prompts that the tests of storage share."""

from __future__ import annotations

PROMPT = (1, 2, 3, 4)
"""Four pages: more than a window."""

PREFIXES = tuple(PROMPT[:count] for count in range(1, len(PROMPT) + 1))
"""Each beginning of it, so that with MAMBA each page has a state."""

PAIR = (1, 2)
"""The beginning of it that is one node, whatever the components: no longer than a window."""

OTHER = (7, 8, 9)
"""A prompt that shares nothing with it."""
