"""Asked: one request of an evaluation, what it was answered, and where its prompt came from."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hicache.types import Tokens

from ..engine.arrivals import Hits


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """`tokens`: all that were computed or cached, with those of a generated answer.

    `reusable_tokens`: of the prompt, that a cache may answer for. `ends`: where each forward stopped. `logits`: from
    position `reusable_tokens` on, as many as are kept, float32 [tokens, vocabulary] on the CPU. `wait_s`: from the
    arrival until the prompt was computed.
    """

    tokens: Tokens
    reusable_tokens: int
    hits: Hits
    ends: tuple[int, ...]
    logits: torch.Tensor
    wait_s: float
