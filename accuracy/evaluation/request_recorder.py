"""RequestRecorder: run requests on an engine one after the other, and record their answers."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from hicache.types import Tokens

from ..answers import Answer, compute_rest
from ..engine.engine import Engine, Generation
from .answered_request import AnsweredRequest


class RequestRecorder:
    """`requests`: every request so far, in order.

    `kept_tokens`: for how many tokens of each answer the logits are kept. Raises ValueError for a request for which an
    idle cache has too few slots.
    """

    def __init__(self, engine: Engine, *, kept_tokens: int) -> None:
        self.requests: list[AnsweredRequest] = []
        self._engine = engine
        self._kept_tokens = kept_tokens

    def score(self, tokens: Tokens, reusable_tokens: int) -> torch.Tensor:
        """The logits from position `reusable_tokens` on, float32 [tokens, vocabulary]."""
        generation, answer, wait_s = self._begin(tokens, reusable_tokens)
        self._engine.finish(generation)
        logits = answer.logits[reusable_tokens - answer.hits.total :]
        self._record(generation, reusable_tokens, answer.ends, logits, wait_s)
        return logits

    def generate(self, prompt: Tokens, is_enough: Callable[[Tokens], bool]) -> Tokens:
        """Generate the likeliest tokens after a prompt, until `is_enough` of the generated tokens is true."""
        generation, answer, wait_s = self._begin(prompt, len(prompt) - 1)
        chosen_by, ends = [answer.logits[-1:]], list(answer.ends)
        tokens = chosen_by[0].argmax(-1).int().cpu().numpy()
        while not is_enough(tokens):
            if not self._engine.append(generation, int(tokens[-1])):
                raise ValueError(f"the cache has no free slot for a token after {len(generation.tokens)} tokens")
            chosen_by.append(self._engine.compute_chunk(generation))
            ends.append(generation.computed_tokens)
            tokens = torch.cat(chosen_by).argmax(-1).int().cpu().numpy()
        self._engine.finish(generation)
        self._record(generation, len(prompt) - 1, tuple(ends), torch.cat(chosen_by), wait_s)
        return tokens

    def _begin(self, tokens: Tokens, reusable_tokens: int) -> tuple[Generation, Answer, float]:
        started = time.perf_counter()
        generation = self._engine.begin(tokens, reusable_tokens=reusable_tokens)
        if generation is None:
            raise ValueError(f"the cache has too few slots for a prompt of {len(tokens)} tokens")
        answer = compute_rest(self._engine, generation)
        return generation, answer, time.perf_counter() - started

    def _record(
        self, generation: Generation, reusable: int, ends: tuple[int, ...], logits: torch.Tensor, wait_s: float
    ) -> None:
        kept = logits[: self._kept_tokens].cpu()
        self.requests.append(AnsweredRequest(generation.tokens, reusable, generation.hits, ends, kept, wait_s))
