"""Asker: asks an engine one thing after the other, and keeps what it was answered."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from hicache.types import Tokens

from ..answer import Answer, rest_of
from ..engine.engine import Engine
from ..engine.generation import Generation
from .asked import Asked


class Asker:
    """`asked`: every request so far, in order.

    `kept_tokens`: of how many tokens of each answer the logits are kept. Raises ValueError for a request that does not
    fit into the cache alone.
    """

    def __init__(self, engine: Engine, *, kept_tokens: int) -> None:
        self.asked: list[Asked] = []
        self._engine = engine
        self._kept_tokens = kept_tokens

    def score(self, tokens: Tokens, reusable_tokens: int) -> torch.Tensor:
        """The logits from position `reusable_tokens` on, float32 [tokens, vocabulary]."""
        generation, answer, wait_s = self._begin(tokens, reusable_tokens)
        self._engine.finish(generation)
        logits = answer.logits[reusable_tokens - answer.hits.total :]
        self._keep(generation, reusable_tokens, answer.ends, logits, wait_s)
        return logits

    def say(self, prompt: Tokens, is_enough: Callable[[Tokens], bool]) -> Tokens:
        """The likeliest tokens after a prompt, one by one, until those said are enough."""
        generation, answer, wait_s = self._begin(prompt, len(prompt) - 1)
        said, ends = [answer.logits[-1:]], list(answer.ends)
        tokens = said[0].argmax(-1).int().cpu().numpy()
        while not is_enough(tokens):
            if not self._engine.append(generation, int(tokens[-1])):
                raise ValueError(f"no room for an answer after {len(generation.tokens)} tokens")
            said.append(self._engine.compute_chunk(generation))
            ends.append(generation.computed_tokens)
            tokens = torch.cat(said).argmax(-1).int().cpu().numpy()
        self._engine.finish(generation)
        self._keep(generation, len(prompt) - 1, tuple(ends), torch.cat(said), wait_s)
        return tokens

    def _begin(self, tokens: Tokens, reusable_tokens: int) -> tuple[Generation, Answer, float]:
        started = time.perf_counter()
        generation = self._engine.begin(tokens, reusable_tokens=reusable_tokens)
        if generation is None:
            raise ValueError(f"a prompt of {len(tokens)} tokens does not fit into the cache")
        answer = rest_of(self._engine, generation)
        return generation, answer, time.perf_counter() - started

    def _keep(
        self, generation: Generation, reusable: int, ends: tuple[int, ...], logits: torch.Tensor, wait_s: float
    ) -> None:
        kept = logits[: self._kept_tokens].cpu()
        self.asked.append(Asked(generation.tokens, reusable, generation.hits, ends, kept, wait_s))
