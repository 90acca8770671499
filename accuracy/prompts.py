"""Prompts: tokens drawn from a seed."""

from __future__ import annotations

import numpy as np

from hicache.types import Tokens

from .families.family import VOCABULARY

FIRST_TOKEN = 3
"""Those before it are special."""


def prompt(seed: int, length: int) -> Tokens:
    """So many tokens, and others for each seed."""
    return np.random.default_rng(seed).integers(FIRST_TOKEN, VOCABULARY, length).astype(np.int32)
