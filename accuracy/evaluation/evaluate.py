"""evaluate: lm-eval over an engine, once, without any store of lm-eval's own."""

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
from .asker import Asker
from .cached_model import CachedModel
from .scored_pass import ScoredPass
from .vocabulary import Vocabulary

KEPT_TOKENS = 16
"""Of each answer: more would fill the memory with the vocabularies of large models."""


def evaluate(
    engine: Engine,
    vocabulary: Vocabulary,
    tasks: Sequence[Mapping[str, Any] | str],
    *,
    most_tokens: int,
    limit: int | None,
    chats: bool,
) -> ScoredPass:
    """`tasks`: our own, or names of public ones. `limit`: documents of each. `chats`: by the chat template."""
    # It warns of each task whose documents are made and not downloaded.
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    asker = Asker(engine, kept_tokens=KEPT_TOKENS)
    started = time.perf_counter()
    with _as_if_alone():
        results = simple_evaluate(
            model=CachedModel(asker, vocabulary, most_tokens=most_tokens),
            tasks=list(tasks),
            task_manager=TaskManager(include_defaults=any(isinstance(task, str) for task in tasks)),
            bootstrap_iters=0,
            limit=limit,
            apply_chat_template=chats,
            log_samples=True,
        )
    seconds = time.perf_counter() - started
    return ScoredPass(_scores(results), _answers(results), tuple(asker.asked), seconds)


@contextmanager
def _as_if_alone() -> Iterator[None]:
    """To a process that the environment numbers, lm-eval gives no results but on the first."""
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
    """The text, the number, or of several likelihoods which one is the highest."""
    given = sample["filtered_resps"]
    if not isinstance(given[0], tuple | list):
        return given[0]
    chances = [chance for chance, *_ in given]
    return chances.index(max(chances))
