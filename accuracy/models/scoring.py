"""The score of a model on a task, with a complete cache or with one component erased."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from hicache.types import Component

from .alphabet import encoded
from .erasing import erase
from .questions import Question


@torch.inference_mode()
def score(model: Any, questions: Sequence[Question], erased: Component | None) -> float:
    """The share of questions answered completely, when `erased` is lost after the prompt, before its query."""
    prompts = torch.tensor([encoded(question.prompt) for question in questions])
    answers = torch.tensor([encoded(question.answer) for question in questions])
    known = prompts.shape[1] - questions[0].query_length
    cache = DynamicCache(config=model.config)
    _next_tokens(model, prompts[:, :known], cache, 0)
    if erased is not None:
        erase(cache, erased, model.config.layer_types)
    given = _next_tokens(model, prompts[:, known:], cache, known)
    right = given == answers[:, :1]
    for position in range(1, answers.shape[1]):
        given = _next_tokens(model, given, cache, prompts.shape[1] + position - 1)
        right = right & (given == answers[:, position : position + 1])
    return float(right.float().mean())


def _next_tokens(model: Any, tokens: torch.Tensor, cache: Any, start: int) -> torch.Tensor:
    """The likeliest token after each line, [lines, 1]."""
    positions = torch.arange(start, start + tokens.shape[1])[None]
    answer = model(input_ids=tokens, position_ids=positions, past_key_values=cache, use_cache=True)
    return answer.logits[:, -1:].argmax(-1)  # type: ignore[no-any-return]
