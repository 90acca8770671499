"""Gates: by how much an answer from a cache may differ from the answer without a cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from .engine.model_runner import divergence


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
