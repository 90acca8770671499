"""RequestRecorder: answer prompts on an engine, several side by side, and record each with its forwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from hicache.types import Tokens

from ..engine.engine import Engine, Generation, Hits


@dataclass(frozen=True, slots=True)
class Forward:
    """One request's row of a forward.

    `number`: of the forward, in its pass; rows with the same number were computed together. `end`: the position at
    which it ended. `tokens`: how many it computed. `padding`: how many positions of the row were padding. `rows`: how
    many the forward had.
    """

    number: int
    end: int
    tokens: int
    padding: int
    rows: int


@dataclass(frozen=True, slots=True, eq=False)
class AnsweredRequest:
    """`task`: its name. `tokens`: the prompt and the generated tokens.

    `reusable_tokens`: how many tokens of the prompt may be hits. `forwards`: those that computed it, in order.
    `logits`: from position `reusable_tokens` on, for as many tokens as are kept, float32 [tokens, vocabulary] on the
    CPU. `wait_s`: seconds until the prompt was computed. `seconds`: until the end. The time of a forward counts for
    each of its rows in equal parts.
    """

    task: str
    tokens: Tokens
    reusable_tokens: int
    hits: Hits
    forwards: tuple[Forward, ...]
    logits: torch.Tensor
    wait_s: float
    seconds: float

    @property
    def ends(self) -> tuple[int, ...]:
        """The position at which each forward ended."""
        return tuple(one.end for one in self.forwards)

    @property
    def is_alone(self) -> bool:
        """Whether no other request was in any of its forwards, so that nothing was padded."""
        return all(one.rows == 1 for one in self.forwards)


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """`reusable_tokens`: how many tokens may be hits; the logits after them are the answer.

    `is_enough`: None to compute the prompt alone. Otherwise the likeliest tokens follow it, until this is true of the
    generated tokens; then `reusable_tokens` is one less than the tokens.
    """

    task: str
    tokens: Tokens
    reusable_tokens: int
    is_enough: Callable[[Tokens], bool] | None


@dataclass(slots=True, eq=False)
class _Running:
    """A prompt that is being answered. `chosen`: the generated tokens. `logits`: those of each forward."""

    number: int
    prompt: Prompt
    generation: Generation
    wait_s: float
    seconds: float
    chosen: list[int] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    forwards: list[Forward] = field(default_factory=list)

    @property
    def is_prefilling(self) -> bool:
        return not self.chosen and not self.generation.is_computed

    @property
    def answer(self) -> torch.Tensor:
        """The logits from the end of the reusable tokens on."""
        return torch.cat(self.logits)[self.prompt.reusable_tokens - self.generation.hits.total :]


class RequestRecorder:
    """Runs requests on an engine. `requests`: those so far, in the order in which they were asked.

    `kept_tokens`: for how many tokens of each answer the logits are kept. `batch_size`: how many requests one forward
    may compute; an engine that computes one at a time has 1.
    """

    def __init__(self, engine: Engine, *, kept_tokens: int, batch_size: int = 1) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more, got {batch_size}")
        self.requests: list[AnsweredRequest] = []
        self._engine = engine
        self._kept_tokens = kept_tokens
        self._batch_size = batch_size if engine.can_batch else 1
        self._forwards = 0

    def answer(self, prompts: Sequence[Prompt]) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the number of each prompt and its logits, float32 [tokens, vocabulary], as soon as it is answered.

        The hits of each prompt are those of prompts that are answered one after the other: a prompt waits for the ones
        before it while they compute pages that it shares. Raises ValueError for a request for which an idle cache has
        too few slots, or for whose answer there are too few beside those that run.
        """
        running: list[_Running] = []
        answered: dict[int, AnsweredRequest] = {}
        begun = 0
        while begun < len(prompts) or running:
            while begun < len(prompts) and self._may_begin(prompts[begun], running):
                one = self._begin(begun, prompts[begun], idle=not running)
                if one is None:
                    break
                running.append(one)
                begun += 1
            # Prompts first, so that no row of one token is padded to a chunk.
            self._compute([one for one in running if one.is_prefilling] or running)
            for one in [one for one in running if self._is_answered(one)]:
                running.remove(one)
                self._engine.finish(one.generation)
                answer = one.answer
                answered[one.number] = self._answered(one, answer)
                yield one.number, answer
        self.requests += [answered[number] for number in range(len(prompts))]

    def _may_begin(self, prompt: Prompt, running: Sequence[_Running]) -> bool:
        return len(running) < self._batch_size and not any(self._waits_for(prompt, one) for one in running)

    def _waits_for(self, prompt: Prompt, earlier: _Running) -> bool:
        """Whether the earlier request may still cache a page that the prompt can hit."""
        own, tokens = prompt.tokens[: prompt.reusable_tokens], earlier.generation.tokens
        shortest = min(len(own), len(tokens))
        differing = (own[:shortest] != tokens[:shortest]).nonzero()[0]
        shared = int(differing[0]) if len(differing) else shortest
        # What will be generated after the whole of the earlier prompt is not known yet.
        may_grow = earlier.prompt.is_enough is not None and shared == len(tokens) < len(own)
        return (
            may_grow
            or shared // self._engine.page_size * self._engine.page_size > earlier.generation.request.cached_tokens
        )

    def _begin(self, number: int, prompt: Prompt, *, idle: bool) -> _Running | None:
        started = time.perf_counter()
        generation = self._engine.begin(prompt.tokens, reusable_tokens=prompt.reusable_tokens)
        if generation is None:
            if idle:
                raise ValueError(f"the cache has too few slots for a prompt of {len(prompt.tokens)} tokens")
            return None
        taken_s = time.perf_counter() - started
        return _Running(number, prompt, generation, taken_s, taken_s)

    def _compute(self, rows: Sequence[_Running]) -> None:
        """Compute the next chunk of each request in one forward."""
        started = time.perf_counter()
        starts = [row.generation.computed_tokens for row in rows]
        prefilling = [row.is_prefilling for row in rows]
        logits = self._engine.compute_chunks([row.generation for row in rows])
        width = max(map(len, logits))
        for row, start, own in zip(rows, starts, logits, strict=True):
            end = start + len(own)
            row.forwards.append(Forward(self._forwards, end, len(own), width - len(own), len(rows)))
            row.logits.append(own)
        self._forwards += 1
        share_s = (time.perf_counter() - started) / len(rows)
        for row, was_prompt in zip(rows, prefilling, strict=True):
            row.seconds += share_s
            row.wait_s += share_s if was_prompt else 0.0

    def _is_answered(self, one: _Running) -> bool:
        """Whether a request has its answer. If not, and its tokens are computed, the likeliest next one is appended."""
        generation, is_enough = one.generation, one.prompt.is_enough
        if not generation.is_computed:
            return False
        if is_enough is None:
            return True
        one.chosen.append(int(one.logits[-1][-1].argmax()))
        if is_enough(np.array(one.chosen, dtype=np.int32)):
            return True
        if not self._engine.append(generation, one.chosen[-1]):
            raise ValueError(f"the cache has no free slot for a token after {len(generation.tokens)} tokens")
        return False

    def _answered(self, one: _Running, answer: torch.Tensor) -> AnsweredRequest:
        prompt, generation = one.prompt, one.generation
        kept = answer[: self._kept_tokens].cpu()
        forwards = tuple(one.forwards)
        return AnsweredRequest(
            prompt.task,
            generation.tokens,
            prompt.reusable_tokens,
            generation.hits,
            forwards,
            kept,
            one.wait_s,
            one.seconds,
        )
