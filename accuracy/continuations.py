"""Continuations: compute prompts of many lengths, then ask for each again with more tokens after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from hicache.types import Tier

from .answer import Answer, ask, library_logits
from .cache_setup import CacheSetup
from .gates import check_close, check_exact
from .prompts import prompt

MORE_TOKENS = 45
"""Tokens after the first prompt, computed in one chunk."""

ONE_CHUNK_TOKENS = 1024
"""A chunk size that is larger than every prompt."""

MORE_SEED = 1 << 20


def compute_each(setup: CacheSetup, lengths: Iterable[int], chunk_tokens: int) -> dict[int, Answer]:
    """Compute prompts of these lengths in chunks. No two of them share a prefix."""
    engine = setup.engine(chunk_tokens)
    return {length: ask(engine, prompt(length, length)) for length in lengths}


def continue_each(setup: CacheSetup, firsts: Mapping[int, Answer], tier: Tier) -> None:
    """Ask for each prompt with more tokens after it, and check that its whole pages are hits on this tier.

    The answer must equal, in every bit, that of a transformers cache whose forwards end at the same positions, and up
    to rounding that of one forward over all tokens.
    """
    engine, page, model = setup.engine(ONE_CHUNK_TOKENS), setup.config.page_size, setup.model
    for length, first in firsts.items():
        place = f"{length} tokens from {tier.value}, and {MORE_TOKENS} more"
        tokens = np.concatenate((prompt(length, length), prompt(MORE_SEED + length, MORE_TOKENS)))
        answer = ask(engine, tokens)
        by_tier = {one: getattr(answer.hits, one.value) for one in Tier}
        cached = length // page * page
        assert by_tier == dict.fromkeys(Tier, 0) | {tier: cached}, (
            f"REQ-3: {place}: expected {cached} tokens from {tier.value} and none from other tiers, got {answer.hits}"
        )
        ends = [end for end in first.ends if end <= cached] + list(answer.ends)
        check_exact(place, library_logits(model.runner, tokens, ends)[cached:], answer.logits)
        check_close(place, model.layout.dtype, model.runner.forward(tokens, 0, None)[cached:], answer.logits)
