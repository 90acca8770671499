"""ConcurrentRequests: requests that run together over one cache, one chunk of each in turn, and wait for free slots."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch

from hicache.types import Tokens

from .answer import Answer
from .engine.engine import Engine, Generation


class ConcurrentRequests:
    """One engine and its requests. `waited`: how often a request found too few free slots beside the running ones."""

    def __init__(self, engine: Engine, max_running: int) -> None:
        self._engine = engine
        self._most_running = max_running
        self.waited = 0

    def serve(self, prompts: Sequence[Tokens]) -> list[Answer]:
        """An answer for each prompt, in order."""
        waiting, running = deque(enumerate(prompts)), deque[tuple[int, Generation]]()
        logits: dict[int, list[torch.Tensor]] = {number: [] for number in range(len(prompts))}
        answers: dict[int, Answer] = {}
        while waiting or running:
            if waiting and len(running) < self._most_running:
                self._begin(waiting, running)
            number, generation = running.popleft()
            logits[number].append(self._engine.compute_chunk(generation))
            if generation.is_computed:
                self._engine.finish(generation)
                answers[number] = Answer(generation.hits, torch.cat(logits[number]), ())
            else:
                running.append((number, generation))
        return [answers[number] for number in range(len(prompts))]

    def _begin(self, waiting: deque[tuple[int, Tokens]], running: deque[tuple[int, Generation]]) -> None:
        number, tokens = waiting[0]
        generation = self._engine.begin(tokens)
        if generation is None:
            self.waited += 1
            assert running, f"REQ-5: expected an idle cache to have room for a prompt of {len(tokens)} tokens"
        else:
            waiting.popleft()
            running.append((number, generation))
