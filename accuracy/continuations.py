"""Continuations: prompts of many lengths are computed, and then each is taken up again, with more tokens after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from hicache.types import Tier

from .answer import Answer, ask, live
from .gates import close, exact
from .prompts import prompt
from .stage import Stage

MORE_TOKENS = 45
"""What is computed past the first prompt, at once."""

AT_ONCE = 1024
MORE_SEED = 1 << 20


def compute_each(stage: Stage, lengths: Iterable[int], chunk_tokens: int) -> dict[int, Answer]:
    """Prompts of these lengths, of which the cache has nothing, computed in chunks."""
    engine = stage.engine(chunk_tokens)
    return {length: ask(engine, prompt(length, length)) for length in lengths}


def continue_each(stage: Stage, firsts: Mapping[int, Answer], tier: Tier) -> None:
    """Each is answered from this tier as far as its whole pages go.

    The answer is in every bit that of a cache which stopped at the same places, and as near as rounding allows that of
    one pass over everything.
    """
    engine, page, model = stage.engine(AT_ONCE), stage.config.page_size, stage.model
    for length, first in firsts.items():
        place = f"{length} tokens from {tier.value}, and {MORE_TOKENS} more"
        tokens = np.concatenate((prompt(length, length), prompt(MORE_SEED + length, MORE_TOKENS)))
        answer = ask(engine, tokens)
        came = {one: getattr(answer.hits, one.value) for one in Tier}
        cached = length // page * page
        assert came == dict.fromkeys(Tier, 0) | {tier: cached}, (
            f"REQ-3: {place}: expected {cached} tokens from {tier.value} and none from elsewhere, got {answer.hits}"
        )
        stops = [end for end in first.ends if end <= cached] + list(answer.ends)
        exact(place, live(model.runner, tokens, stops)[cached:], answer.logits)
        close(place, model.layout.dtype, model.runner.forward(tokens, 0, None)[cached:], answer.logits)
