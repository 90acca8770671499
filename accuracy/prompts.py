"""Prompts: tokens drawn from a seed."""

from __future__ import annotations

import numpy as np

from hicache.types import Tokens

from .families import VOCABULARY

FIRST_TOKEN = 3
"""Tokens below this one are special."""


def prompt(seed: int, length: int) -> Tokens:
    """A prompt of `length` tokens. Each seed gives another one."""
    return np.random.default_rng(seed).integers(FIRST_TOKEN, VOCABULARY, length).astype(np.int32)
