"""Answer: what an engine gave for a prompt, and where it came from; the same from a model without a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hicache.types import Tokens

from .engine.arrivals import Hits
from .engine.engine import Engine
from .engine.generation import Generation
from .engine.model_runner import ModelRunner


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """`logits`: of the tokens that were computed, the last of the prompt. `ends`: where each forward stopped."""

    hits: Hits
    logits: torch.Tensor
    ends: tuple[int, ...]


def ask(engine: Engine, tokens: Tokens) -> Answer:
    """One request alone, from its arrival to its end."""
    generation = engine.begin(tokens)
    assert generation is not None, f"a prompt of {len(tokens)} tokens does not fit into a cache that is made for it"
    answer = rest_of(engine, generation)
    engine.finish(generation)
    return answer


def rest_of(engine: Engine, generation: Generation) -> Answer:
    """Compute what is left of a request."""
    logits, ends = [], []
    while not generation.is_computed:
        logits.append(engine.compute_chunk(generation))
        ends.append(generation.computed_tokens)
    return Answer(generation.hits, torch.cat(logits), tuple(ends))


def live(runner: ModelRunner, tokens: Tokens, ends: Sequence[int]) -> torch.Tensor:
    """The logits of a prompt over one cache of the library's, that stops at the same places and is never stored."""
    cache, starts = runner.new_cache(), (0, *ends)
    parts = zip(starts, ends, strict=False)
    return torch.cat([runner.forward(tokens[start:end], start, cache) for start, end in parts])
