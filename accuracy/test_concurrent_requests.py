"""Concurrent requests: they share prefixes, wait for slots and reuse slots of others, and each answer is right."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import Component, Tokens

from .answers import Answer, check_close, prompt
from .cache_setup import CHUNK, PAGE, OpenCache, served
from .engine.cache_config import device_config, with_host
from .engine.engine import Engine, Generation
from .families import REPRESENTATIVES

SHARED, OWN = 48, 37
PROMPTS, RUNNING, ROUNDS = 6, 4, 3
TOKENS, STATES = 256, 12
"""Capacities little larger than the running requests need: each round reuses the slots of the round before."""


class ConcurrentRequests:
    """One engine and its requests. `waited`: how often a request found too few free slots beside the running ones."""

    def __init__(self, engine: Engine, max_running: int) -> None:
        self._engine = engine
        self._max_running = max_running
        self.waited = 0

    def serve(self, prompts: Sequence[Tokens]) -> list[Answer]:
        """An answer for each prompt, in order."""
        waiting, running = deque(enumerate(prompts)), deque[tuple[int, Generation]]()
        logits: dict[int, list[torch.Tensor]] = {number: [] for number in range(len(prompts))}
        answers: dict[int, Answer] = {}
        while waiting or running:
            if waiting and len(running) < self._max_running:
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


def prompts() -> list[Tokens]:
    """Prompts of different lengths, of which some share a prefix."""
    return [
        np.concatenate((prompt(number % 2, SHARED), prompt(10 + number, OWN + number))) for number in range(PROMPTS)
    ]


@pytest.mark.parametrize("policy", [WritePolicy.WRITE_THROUGH, WritePolicy.WRITE_BACK], ids=lambda one: one.value)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("family", REPRESENTATIVES)
@clause("REQ-3", "HOST-7", needs=(Capability.HOST,))
def test_requests_that_run_together_answer_as_each_would_alone(
    family: str, dtype: torch.dtype, policy: WritePolicy, open_cache: OpenCache
) -> None:
    model = served(family, dtype, "cpu")
    config = device_config(model.layout, page_size=PAGE, chunk_tokens=CHUNK, tokens=TOKENS, states=STATES, device="cpu")
    if Component.SWA in config.components:
        # The window's slots run out first, so that a cached prompt loses its window alone.
        config = replace(config, capacity_tokens={**config.capacity_tokens, Component.FULL.value: 2 * TOKENS})
    config = with_host(config, tokens=2 * TOKENS, states=2 * STATES, policy=policy)
    engine = Engine(model, open_cache(config), config, chunk_tokens=CHUNK, rereads=True)
    requests, tokens_of_each = ConcurrentRequests(engine, RUNNING), prompts()
    expected = [model.runner.forward(tokens, 0, None) for tokens in tokens_of_each]
    hits = []
    for number in range(ROUNDS):
        for answer, whole in zip(requests.serve(tokens_of_each), expected, strict=True):
            hits.append(answer.hits)
            place = f"round {number}, {answer.hits}"
            check_close(place, dtype, whole[answer.hits.total :], answer.logits)
    assert requests.waited, f"REQ-5: expected some of {RUNNING} requests to wait for {TOKENS} slots, none waited"
    assert any(one.device for one in hits), f"REQ-3: expected device hits, as prompts share {SHARED} tokens, got {hits}"
    assert any(one.host for one in hits), (
        f"HOST-7: expected host hits, as {TOKENS} slots do not hold {PROMPTS} prompts, got {hits}"
    )
