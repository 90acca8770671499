"""Divergence: the difference between two answers to the same tokens."""

from __future__ import annotations

import torch


def divergence(expected: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
    """Kullback-Leibler divergence per token, in nats: float64 [tokens], from two logits [tokens, vocabulary]."""
    expected, answer = (logits.double().log_softmax(-1) for logits in (expected, answer))
    nats: torch.Tensor = (expected.exp() * (expected - answer)).sum(-1)
    return nats
