"""Gates: how far an answer from a cache may be from the answer without one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from .engine.divergence import divergence


@dataclass(frozen=True, slots=True)
class Gate:
    """Nats per token: on average, and at the worst token."""

    mean: float
    most: float


GATES: Mapping[torch.dtype, Gate] = {torch.float32: Gate(1e-9, 1e-9), torch.bfloat16: Gate(1e-4, 5e-3)}
"""Against one pass over the whole prompt, whose sums are added up in another order. By the model's dtype."""


def exact(place: str, expected: torch.Tensor, answer: torch.Tensor) -> None:
    """Same chunks, same bytes, same kernels: the logits are equal in every bit."""
    assert torch.equal(expected, answer), (
        f"REQ-3: {place}: expected the logits of the cache that was never stored, in every bit; "
        f"{int((expected != answer).any(-1).sum())} of {len(answer)} tokens differ, "
        f"at most by {float((expected - answer).abs().max()):.1e}"
    )


def close(place: str, dtype: torch.dtype, expected: torch.Tensor, answer: torch.Tensor) -> None:
    """Other chunks: the distributions are as near as rounding leaves them."""
    gate, apart = GATES[dtype], divergence(expected, answer)
    mean, most = float(apart.mean()), float(apart.max())
    assert mean <= gate.mean, f"REQ-3: {place}: {mean:.1e} nats a token from the answer without a cache, over {gate}"
    assert most <= gate.most, f"REQ-3: {place}: {most:.1e} nats from the answer without a cache, over {gate}"
