"""Answers: the prompts of this suite, what an engine computes for one, and the gates within which two answers agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hicache.types import Tokens

from .engine.engine import Engine, Generation, Hits
from .engine.model_runner import ModelRunner, divergence
from .families import VOCABULARY

FIRST_TOKEN = 3
"""Tokens below this one are special."""

MORE_TOKENS = 45
"""How many tokens follow a cached prompt, computed in one chunk."""

MORE_SEED = 1 << 20
"""Their seed, above those of the prompts."""


def prompt(seed: int, length: int) -> Tokens:
    """A prompt of `length` tokens. Each seed gives another one."""
    return np.random.default_rng(seed).integers(FIRST_TOKEN, VOCABULARY, length).astype(np.int32)


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


@dataclass(frozen=True, slots=True)
class Gate:
    """The largest divergence that is accepted, in nats per token: on average, and at the worst token."""

    mean: float
    worst: float


GATES: Mapping[torch.dtype, Gate] = {torch.float32: Gate(1e-9, 1e-9), torch.bfloat16: Gate(1e-4, 5e-3)}
"""By the model's dtype. One forward over the whole prompt, the reference, adds its sums in another order."""


def check_exact(place: str, expected: torch.Tensor, answer: torch.Tensor) -> None:
    """Check logits that must be equal in every bit, since chunks, bytes and kernels are the same."""
    assert torch.equal(expected, answer), (
        f"REQ-3: {place}: expected the logits of the cache that was never stored, in every bit; "
        f"{int((expected != answer).any(-1).sum())} of {len(answer)} tokens differ, "
        f"at most by {float((expected - answer).abs().max()):.1e}"
    )


def check_close(place: str, dtype: torch.dtype, expected: torch.Tensor, answer: torch.Tensor) -> None:
    """Check logits of other chunks: their distributions may differ by rounding only."""
    gate, nats = GATES[dtype], divergence(expected, answer)
    mean, worst = float(nats.mean()), float(nats.max())
    assert mean <= gate.mean, f"REQ-3: {place}: {mean:.1e} nats a token from the answer without a cache, over {gate}"
    assert worst <= gate.worst, f"REQ-3: {place}: {worst:.1e} nats from the answer without a cache, over {gate}"
