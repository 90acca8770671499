"""Decoding: tokens that are generated one by one, and their hits in the next turn of a conversation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hicache.testing.contract import clause
from hicache.types import Tokens

from .answer import ask, compute_rest
from .cache_setup import CHUNK, PAGE, CacheSetup, OpenCache, on_device, served
from .engine.engine import Engine
from .families import REPRESENTATIVES
from .gates import check_close
from .prompts import prompt

PROMPT, SAID, MORE = 41, 24, 19


def say(engine: Engine, tokens: Tokens, count: int) -> tuple[Tokens, torch.Tensor]:
    """Generate tokens one by one. Returns the prompt with the generated tokens, and the logits that chose each."""
    generation = engine.begin(tokens)
    assert generation is not None, "expected room for one conversation"
    chosen_by = [compute_rest(engine, generation).logits[-1:]]
    for _ in range(count):
        assert engine.append(generation, int(chosen_by[-1].argmax())), "expected room for one more token"
        chosen_by.append(engine.compute_chunk(generation))
    engine.finish(generation)
    return generation.tokens, torch.cat(chosen_by)


@pytest.mark.parametrize("rereads", [False, True], ids=["kept", "reread"])
@pytest.mark.parametrize("family", REPRESENTATIVES)
@clause("REQ-3")
def test_a_conversation_goes_on_as_no_cache_would(family: str, rereads: bool, open_cache: OpenCache) -> None:
    model = served(family, torch.float32, "cpu")
    setup = CacheSetup(model, on_device(model, PAGE, CHUNK), open_cache)
    engine = setup.engine(CHUNK, rereads=rereads)
    cached = 0
    tokens = prompt(5, PROMPT)
    for turn in range(2):
        before = len(tokens)
        tokens, chosen_by = say(engine, tokens, SAID)
        whole = model.runner.forward(tokens, 0, None)
        check_close(f"turn {turn} of {family}", torch.float32, whole[before - 1 :], chosen_by)
        again = ask(engine, np.concatenate((tokens, prompt(6, MORE))))
        cached = len(tokens) // PAGE * PAGE
        assert again.hits.device == cached, (
            f"REQ-3: expected {cached} tokens of the turn from the device, got {again.hits}"
        )
        tokens = np.concatenate((tokens, prompt(7 + turn, MORE)))
