"""AnsweredRequest: one request of an evaluation, with its answer and its hits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hicache.types import Tokens

from ..engine.prefix_finder import Hits


@dataclass(frozen=True, slots=True, eq=False)
class AnsweredRequest:
    """`tokens`: the prompt and the generated tokens.

    `reusable_tokens`: how many tokens of the prompt may be hits. `ends`: the position at which each forward ended.
    `logits`: from position `reusable_tokens` on, for as many tokens as are kept, float32 [tokens, vocabulary] on the
    CPU. `wait_s`: seconds from the arrival until the prompt was computed.
    """

    tokens: Tokens
    reusable_tokens: int
    hits: Hits
    ends: tuple[int, ...]
    logits: torch.Tensor
    wait_s: float
