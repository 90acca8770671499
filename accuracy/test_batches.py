"""Batches: requests that are computed side by side in one padded forward answer as each would alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import Tier, Tokens

from .answers import ask, check_close, prompt
from .cache_setup import CHUNK, PAGE, CacheSetup, OpenCache, on_device, served
from .evaluation.comparison import differences, missing_hits
from .evaluation.evaluate import ScoredPass
from .evaluation.passes import CacheSize, Passes
from .evaluation.recorder import Prompt, RequestRecorder
from .evaluation.subject import Subject

QUESTIONS = 16
ROWS = 8

ANSWER_TOKENS = 8
"""Of each answer of the task `shots`."""

SIZE = CacheSize(page_size=16, chunk_tokens=64, tokens=1 << 13, states=256)

LENGTHS = (7, 33, 64, 81)
"""Of the cached prompts: none, one, or several whole pages, below and above the window."""

PADDED = ("qwen3", "gemma3", "gpt_oss", "mistral", "deepseek_v3")
"""A family of each kind of layer that can be padded: full, both, with sinks, sliding alone, latent."""


def shots(name: str, adapter_path: str, rows: int) -> Subject:
    return Subject(name, ("shots",), None, QUESTIONS, torch.float32, "cpu", False, SIZE, adapter_path, rows)


def asked_twice(own: Subject, open_cache: OpenCache, folder: Path) -> tuple[Passes, ScoredPass, ScoredPass]:
    """A pass with a cold cache, and one from the host."""
    passes = own.passes(open_cache, folder)
    first = own.ask(passes)
    passes.drop_above(Tier.HOST)
    return passes, first, own.ask(passes)


@clause("REQ-3", "FLOW-10", needs=(Capability.STORAGE,))
def test_few_shot_prompts_take_fewer_forwards_side_by_side(
    adapter_path: str, open_cache: OpenCache, tmp_path: Path
) -> None:
    _, *alone = asked_twice(shots("window", adapter_path, 1), open_cache, tmp_path / "alone")
    _, *batched = asked_twice(shots("window", adapter_path, ROWS), open_cache, tmp_path / "batched")
    for name, one, other in zip(("first", "host"), alone, batched, strict=True):
        wrong = [*differences(name, torch.float32, one, other, same_bytes=False)]
        assert not wrong, "REQ-3: expected the answers of the prompts one by one, got:\n" + "\n".join(wrong)
        hits = [[request.hits for request in each.requests] for each in (one, other)]
        assert hits[0] == hits[1], f"REQ-3: {name}: expected the hits of prompts one by one, {hits[0]}, got {hits[1]}"
        assert one.forwards.tokens == other.forwards.tokens, (
            f"{name}: expected {one.forwards.tokens} computed tokens, none twice, got {other.forwards}"
        )
        assert one.forwards.padding == 0, f"{name}: expected no padding of one row, got {one.forwards}"
    counts = [each.forwards.forwards for each in (*alone, *batched)]
    # Eight tokens of each answer are eight forwards of a prompt alone, and of eight prompts together.
    steps = ANSWER_TOKENS * QUESTIONS * (ROWS - 1) // ROWS
    assert all(counts[number] - counts[2 + number] >= steps - ROWS for number in (0, 1)), (
        f"expected about {steps} forwards less with {ROWS} rows, in both passes, got {counts}"
    )
    missing = [*missing_hits("host", Tier.HOST, SIZE.page_size, batched[1])]
    assert not missing, "FLOW-10: expected all pages from the host, got:\n" + "\n".join(missing)


def mixed(count: int) -> list[Tokens]:
    """Prompts of different lengths, of which some share a prefix."""
    return [
        np.concatenate((prompt(number % 2, LENGTHS[number % 4]), prompt(10 + number, 5 + 3 * number)))
        for number in range(count)
    ]


@clause("REQ-3")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("family", PADDED)
def test_a_padded_row_answers_as_without_a_cache(family: str, dtype: torch.dtype, open_cache: OpenCache) -> None:
    model = served(family, dtype, "cpu")
    setup = CacheSetup(model, on_device(model, PAGE, CHUNK), open_cache)
    for number, length in enumerate(LENGTHS):
        ask(setup.engine(CHUNK), prompt(number % 2, length))
    prompts = [
        Prompt("task", tokens, 0 if number == 1 else len(tokens) - 1, None) for number, tokens in enumerate(mixed(6))
    ]
    recorder = RequestRecorder(setup.engine(CHUNK), kept_tokens=1024, batch_size=4)
    answers = dict(recorder.answer(prompts))
    for number, (one, request) in enumerate(zip(prompts, recorder.requests, strict=True)):
        expected = model.runner.forward(one.tokens, 0, None)[one.reusable_tokens :]
        check_close(f"prompt {number}, {request.hits}", dtype, expected, answers[number])
    assert any(not one.is_alone for one in recorder.requests), "expected prompts that were computed side by side"
    assert any(row.padding for one in recorder.requests for row in one.forwards), "expected rows of different lengths"


@clause("REQ-3")
@pytest.mark.parametrize("family", ["qwen3_next", "deepseek_v32", "deepseek_v4"])
def test_a_model_in_which_padding_counts_computes_one_request_at_a_time(family: str, open_cache: OpenCache) -> None:
    model = served(family, torch.float32, "cpu")
    setup = CacheSetup(model, on_device(model, PAGE, CHUNK), open_cache)
    recorder = RequestRecorder(setup.engine(CHUNK), kept_tokens=1, batch_size=4)
    tokens = np.full(20, 5, dtype=np.int32)
    list(recorder.answer([Prompt("task", np.roll(tokens, 1), 19, None), Prompt("task", tokens + 1, 19, None)]))
    assert all(one.is_alone for one in recorder.requests), f"expected rows alone, got {recorder.requests}"
    engine = setup.engine(CHUNK)
    begun = [engine.begin(tokens + number) for number in (2, 3)]
    running = [one for one in begun if one is not None]
    with pytest.raises(ValueError, match="computes one request at a time, got 2"):
        engine.compute_chunks(running)
    for one in running:
        engine.finish(one)


@clause("REQ-3")
def test_a_shared_prefix_is_computed_once(open_cache: OpenCache) -> None:
    model = served("qwen3", torch.float32, "cpu")
    setup = CacheSetup(model, on_device(model, PAGE, CHUNK), open_cache)
    recorder = RequestRecorder(setup.engine(CHUNK), kept_tokens=1, batch_size=4)
    shared = prompt(1, 6 * PAGE)
    texts = [np.concatenate((shared, prompt(2 + number, 9))) for number in range(4)]
    list(recorder.answer([Prompt("task", tokens, len(tokens) - 1, None) for tokens in texts]))
    computed = [sum(row.tokens for row in one.forwards) for one in recorder.requests]
    assert computed == [len(shared) + 9, 9, 9, 9], f"expected the prefix to be computed once, got {computed}"
    hits = [one.hits.device for one in recorder.requests]
    assert hits == [0, *[len(shared)] * 3], f"REQ-3: expected the prefix as a hit of the later ones, got {hits}"
    forwards = {row.number for one in recorder.requests for row in one.forwards}
    # The first computes three chunks of the prefix, and then the ends of all four are one forward.
    assert len(forwards) == len(shared) // CHUNK + 1, f"expected 4 forwards, got {recorder.requests[0].forwards}"


def test_a_batch_has_one_row_or_more(open_cache: OpenCache) -> None:
    model = served("qwen3", torch.float32, "cpu")
    engine = CacheSetup(model, on_device(model, PAGE, CHUNK), open_cache).engine(CHUNK)
    with pytest.raises(ValueError, match="batch_size must be 1 or more, got 0"):
        RequestRecorder(engine, kept_tokens=1, batch_size=0)
