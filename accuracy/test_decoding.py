"""Decoding: what a model says token by token, and what the next turn of a conversation finds of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hicache.testing.contract import clause
from hicache.types import Tokens

from .answer import ask, rest_of
from .engine.engine import Engine
from .families.table import REPRESENTATIVES
from .gates import close
from .prompts import prompt
from .stage import CHUNK, PAGE, OpenCache, Stage, on_device, served

PROMPT, SAID, MORE = 41, 24, 19


def say(engine: Engine, tokens: Tokens, count: int) -> tuple[Tokens, torch.Tensor]:
    """The prompt and the likeliest tokens after it, one by one; the logits that each was chosen by."""
    generation = engine.begin(tokens)
    assert generation is not None, "one conversation fits into a cache that is made for several"
    chosen_by = [rest_of(engine, generation).logits[-1:]]
    for _ in range(count):
        assert engine.append(generation, int(chosen_by[-1].argmax())), "one more token fits"
        chosen_by.append(engine.compute_chunk(generation))
    engine.finish(generation)
    return generation.tokens, torch.cat(chosen_by)


@pytest.mark.parametrize("rereads", [False, True], ids=["kept", "reread"])
@pytest.mark.parametrize("family", REPRESENTATIVES)
@clause("REQ-3")
def test_a_conversation_goes_on_as_no_cache_would(family: str, rereads: bool, open_cache: OpenCache) -> None:
    model = served(family, torch.float32, "cpu")
    stage = Stage(model, on_device(model, PAGE, CHUNK), open_cache)
    engine = stage.engine(CHUNK, rereads=rereads)
    cached = 0
    tokens = prompt(5, PROMPT)
    for turn in range(2):
        before = len(tokens)
        tokens, chosen_by = say(engine, tokens, SAID)
        whole = model.runner.forward(tokens, 0, None)
        close(f"turn {turn} of {family}", torch.float32, whole[before - 1 :], chosen_by)
        again = ask(engine, np.concatenate((tokens, prompt(6, MORE))))
        cached = len(tokens) // PAGE * PAGE
        assert again.hits.device == cached, f"REQ-3: {cached} tokens of the turn are cached, got {again.hits}"
        tokens = np.concatenate((tokens, prompt(7 + turn, MORE)))
