"""Answer: the logits that an engine computed for a prompt, and its hits; and the same logits without a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hicache.types import Tokens

from .engine.engine import Engine, Generation
from .engine.model_runner import ModelRunner
from .engine.prefix_finder import Hits


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """`logits`: of the computed tokens, those after the hits. `ends`: the position at which each forward ended."""

    hits: Hits
    logits: torch.Tensor
    ends: tuple[int, ...]


def ask(engine: Engine, tokens: Tokens) -> Answer:
    """Run one request alone, from its arrival to its end."""
    generation = engine.begin(tokens)
    assert generation is not None, f"expected an idle cache to have room for a prompt of {len(tokens)} tokens"
    answer = compute_rest(engine, generation)
    engine.finish(generation)
    return answer


def compute_rest(engine: Engine, generation: Generation) -> Answer:
    """Compute all tokens of a request that are not computed yet."""
    logits, ends = [], []
    while not generation.is_computed:
        logits.append(engine.compute_chunk(generation))
        ends.append(generation.computed_tokens)
    return Answer(generation.hits, torch.cat(logits), tuple(ends))


def library_logits(runner: ModelRunner, tokens: Tokens, ends: Sequence[int]) -> torch.Tensor:
    """The logits of a prompt with a cache of transformers that is never stored, and forwards that end at `ends`."""
    cache, starts = runner.new_cache(), (0, *ends)
    parts = zip(starts, ends, strict=False)
    return torch.cat([runner.forward(tokens[start:end], start, cache) for start, end in parts])
