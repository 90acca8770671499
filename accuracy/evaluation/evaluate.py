"""evaluate: run lm-eval once over an engine, without the caches of lm-eval."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from ..engine.engine import Engine
from .cached_model import CachedModel
from .request_recorder import RequestRecorder
from .scored_pass import ScoredPass
from .vocabulary import Vocabulary

KEPT_TOKENS = 16
"""Tokens of each answer whose logits are kept: with a large vocabulary, more would need too much memory."""


def evaluate(
    engine: Engine,
    vocabulary: Vocabulary,
    tasks: Sequence[Mapping[str, Any] | str],
    *,
    max_tokens: int,
    limit: int | None,
    chats: bool,
) -> ScoredPass:
    """`tasks`: those of this suite, or names of public tasks. `limit`: documents of each task, None for all.

    `max_tokens`: the longest sequence of the model. `chats`: whether prompts are formatted by the chat template.
    """
    # lm-eval warns of each task whose documents are not downloaded.
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    recorder = RequestRecorder(engine, kept_tokens=KEPT_TOKENS)
    started = time.perf_counter()
    with _without_local_rank():
        results = simple_evaluate(
            model=CachedModel(recorder, vocabulary, max_tokens=max_tokens),
            tasks=list(tasks),
            task_manager=TaskManager(include_defaults=any(isinstance(task, str) for task in tasks)),
            bootstrap_iters=0,
            limit=limit,
            apply_chat_template=chats,
            log_samples=True,
        )
    seconds = time.perf_counter() - started
    return ScoredPass(_scores(results), _answers(results), tuple(recorder.requests), seconds)


@contextmanager
def _without_local_rank() -> Iterator[None]:
    """Remove LOCAL_RANK from the environment: with it lm-eval gives results on the first rank only."""
    with patch.dict(os.environ):
        os.environ.pop("LOCAL_RANK", None)
        yield


def _scores(results: Mapping[str, Any]) -> dict[str, float]:
    return {
        f"{task} {measure.removesuffix(',none')}": float(value)
        for task, measures in results["results"].items()
        for measure, value in measures.items()
        if isinstance(value, int | float) and "," in measure and "stderr" not in measure
    }


def _answers(results: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {
        task: [_answer(sample) for sample in sorted(samples, key=lambda sample: int(sample["doc_id"]))]
        for task, samples in results["samples"].items()
    }


def _answer(sample: Mapping[str, Any]) -> Any:
    """The text or the number; of several likelihoods, the index of the highest."""
    given = sample["filtered_resps"]
    if not isinstance(given[0], tuple | list):
        return given[0]
    chances = [chance for chance, *_ in given]
    return chances.index(max(chances))
