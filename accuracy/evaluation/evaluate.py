"""evaluate: run lm-eval once over an engine, without the caches of lm-eval, and record every request and answer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from lm_eval import simple_evaluate
from lm_eval.api.model import TemplateLM
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from hicache.types import Tokens

from ..engine.engine import Engine, Hits
from .recorder import AnsweredRequest, Prompt, RequestRecorder
from .vocabulary import Message, Vocabulary

MAX_ANSWER_TOKENS = 256
"""The longest generated answer, unless a task sets another limit."""


@dataclass(frozen=True, slots=True)
class _Scored:
    """`inputs`: the context and all expected tokens but the last. `expected`: the tokens whose likelihood is asked."""

    task: str
    inputs: Sequence[int]
    expected: Sequence[int]


class CachedModel(TemplateLM):
    """The interface of lm-eval to a model on an engine. Answers by greedy decoding.

    `max_tokens`: the longest sequence of the model. A longer prompt is truncated at its beginning.
    """

    def __init__(self, recorder: RequestRecorder, vocabulary: Vocabulary, *, max_tokens: int) -> None:
        super().__init__()
        self._recorder = recorder
        self._vocabulary = vocabulary
        self._max_tokens = max_tokens
        self._scored_tasks: list[str] = []

    @property
    def eot_token_id(self) -> int:
        """The token that precedes a text without context."""
        return self._vocabulary.end_token

    @property
    def tokenizer_name(self) -> str:
        """The name of the vocabulary."""
        return self._vocabulary.name

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: Any) -> list[int]:
        return self._vocabulary.encode(string)

    def apply_chat_template(self, chat_history: Sequence[Message], add_generation_prompt: bool = True) -> str:
        return self._vocabulary.chat(chat_history, asks=add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return self._vocabulary.template(chat_template)

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """The log-likelihood of each continuation, and whether each of its tokens is the likeliest."""
        # lm-eval passes on the tokens of the requests, in their order, without the tasks.
        self._scored_tasks = [request.task_name for request in requests]
        answers: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm)
        return answers

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, Sequence[int], Sequence[int]]], **options: Any
    ) -> list[tuple[float, bool]]:
        asked = zip(self._scored_tasks, requests, strict=True)
        return self._likelihoods([_Scored(task, [*context, *rest[:-1]], rest) for task, (_, context, rest) in asked])

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihoods of whole texts."""
        windows = [self._windows(request.task_name, self._vocabulary.encode(request.args[0])) for request in requests]
        chances = iter(self._likelihoods([window for text in windows for window in text]))
        return [sum(next(chances)[0] for _ in text) for text in windows]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The generated text after each prompt. Raises ValueError for a task that samples its answers."""
        encode = self._vocabulary.encode
        return self.generate([(one.task_name, encode(one.args[0]), one.args[1]) for one in requests])

    def generate(self, asked: Sequence[tuple[str, Sequence[int], Mapping[str, Any]]]) -> list[str]:
        """The generated text for each task, prompt in tokens, and options as lm-eval has them."""
        prompts = [self._prompt(*one) for one in asked]
        texts = {
            number: self._text(logits, _stops(asked[number][2])) for number, logits in self._recorder.answer(prompts)
        }
        return [texts[number] for number in range(len(prompts))]

    def _likelihoods(self, scored: Sequence[_Scored]) -> list[tuple[float, bool]]:
        """The log-likelihood of the expected tokens of each, and whether each of them is the likeliest."""
        prompts = []
        for one in scored:
            tokens = _tokens(one.inputs[-self._max_tokens :])
            prompts.append(Prompt(one.task, tokens, len(tokens) - len(one.expected), is_enough=None))
        chances = {
            number: _likelihood(logits, scored[number].expected) for number, logits in self._recorder.answer(prompts)
        }
        return [chances[number] for number in range(len(prompts))]

    def _windows(self, task: str, tokens: list[int]) -> list[_Scored]:
        windows = get_rolling_token_windows(tokens, self.prefix_token_id, self._max_tokens, context_len=1)
        pairs = [make_disjoint_window(window) for window in windows]
        return [_Scored(task, [*context, *expected[:-1]], expected) for context, expected in pairs]

    def _prompt(self, task: str, context: Sequence[int], options: Mapping[str, Any]) -> Prompt:
        if options.get("do_sample") and options.get("temperature", 1) > 0:
            raise ValueError(f"sampled answers cannot be compared between passes: {dict(options)}")
        limit = int(options.get("max_gen_toks", MAX_ANSWER_TOKENS))
        tokens = _tokens(context[-(self._max_tokens - limit) :])
        return Prompt(task, tokens, len(tokens) - 1, self._enough(_stops(options), limit))

    def _text(self, logits: torch.Tensor, stops: Sequence[str]) -> str:
        generated: Tokens = logits.argmax(-1).int().cpu().numpy()
        return _before(self._vocabulary.decode(self._without_end(generated)), stops)

    def _enough(self, stops: Sequence[str], limit: int) -> Callable[[Tokens], bool]:
        def is_enough(generated: Tokens) -> bool:
            if len(generated) >= limit or generated[-1] == self._vocabulary.end_token:
                return True
            text = self._vocabulary.decode(generated.tolist())
            return any(stop in text for stop in stops)

        return is_enough

    def _without_end(self, generated: Tokens) -> list[int]:
        """The generated tokens without the end token."""
        tokens: list[int] = generated.tolist()
        return tokens[:-1] if tokens[-1] == self._vocabulary.end_token else tokens


def _likelihood(logits: torch.Tensor, expected: Sequence[int]) -> tuple[float, bool]:
    wanted = torch.tensor(list(expected), device=logits.device)
    chances = logits.log_softmax(-1).gather(-1, wanted[:, None])
    return float(chances.sum()), bool((logits.argmax(-1) == wanted).all())


def _stops(options: Mapping[str, Any]) -> list[str]:
    stops = options.get("until", ())
    return [stops] if isinstance(stops, str) else list(stops)


def _tokens(tokens: Sequence[int]) -> Tokens:
    return np.array(tokens, dtype=np.int32)


def _before(text: str, stops: Sequence[str]) -> str:
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]


@dataclass(frozen=True, slots=True)
class ForwardCounts:
    """`forwards`: how many. `tokens`: those that were computed, in prompts and answers. `padding`: positions beside."""

    forwards: int
    tokens: int
    padding: int


@dataclass(frozen=True, slots=True, eq=False)
class ScoredPass:
    """`scores`: by `task metric` or `group metric`. `groups`: the tasks of each group.

    `answers`: by task, in the order of its documents. `seconds`: of the whole pass.
    """

    scores: Mapping[str, float]
    groups: Mapping[str, frozenset[str]]
    answers: Mapping[str, Sequence[Any]]
    requests: Sequence[AnsweredRequest]
    seconds: float

    @property
    def hits(self) -> Hits:
        """The sum of the hits of all requests."""
        each = [one.hits for one in self.requests]
        return Hits(sum(one.device for one in each), sum(one.host for one in each), sum(one.storage for one in each))

    @property
    def computed_tokens(self) -> int:
        """The reusable tokens of all prompts that were not hits."""
        return sum(one.reusable_tokens - one.hits.total for one in self.requests)

    @property
    def forwards(self) -> ForwardCounts:
        """What the forwards computed that had a row of these requests."""
        rows = [row for one in self.requests for row in one.forwards]
        return ForwardCounts(
            len({row.number for row in rows}), sum(row.tokens for row in rows), sum(row.padding for row in rows)
        )

    @property
    def names(self) -> list[str]:
        """The tasks and groups that have a score."""
        return list(dict.fromkeys(score.split(" ")[0] for score in self.scores))

    def part(self, name: str) -> ScoredPass:
        """The part of a task or a group. Its seconds are those of its requests, without the work of lm-eval."""
        tasks = self.groups.get(name, {name})
        scores = {score: value for score, value in self.scores.items() if score.split(" ")[0] == name}
        answers = {task: given for task, given in self.answers.items() if task in tasks}
        requests = [one for one in self.requests if one.task in tasks]
        return ScoredPass(scores, self.groups, answers, requests, sum(one.seconds for one in requests))


KEPT_TOKENS = 16
"""Tokens of each answer whose logits are kept: with a large vocabulary, more would need too much memory."""


def evaluate(
    engine: Engine,
    vocabulary: Vocabulary,
    tasks: Sequence[Any],
    *,
    max_tokens: int,
    limit: int | None,
    chats: bool,
    batch_size: int,
) -> ScoredPass:
    """`tasks`: as `simple_evaluate` takes them, but no names. `limit`: documents of each task, None for all.

    `max_tokens`: the longest sequence of the model. `chats`: whether prompts are formatted by the chat template.
    `batch_size`: how many requests one forward may compute.
    """
    recorder = RequestRecorder(engine, kept_tokens=KEPT_TOKENS, batch_size=batch_size)
    model = CachedModel(recorder, vocabulary, max_tokens=max_tokens)
    return evaluate_model(model, recorder, tasks, limit=limit, chats=chats)


def evaluate_model(
    model: Any, recorder: RequestRecorder, tasks: Sequence[Any], *, limit: int | None, chats: bool
) -> ScoredPass:
    """The same for any model of lm-eval whose requests reach this recorder."""
    started = time.perf_counter()
    with _one_process():
        results = simple_evaluate(
            model=model,
            tasks=list(tasks),
            task_manager=TaskManager(include_defaults=False),
            bootstrap_iters=0,
            limit=limit,
            apply_chat_template=chats,
            log_samples=True,
        )
    seconds = time.perf_counter() - started
    return ScoredPass(_scores(results), _groups(results), _answers(results), tuple(recorder.requests), seconds)


@contextmanager
def _one_process() -> Iterator[None]:
    """Remove LOCAL_RANK from the environment: with it lm-eval gives results on the first rank only.

    Leave out its description of the machine: no result contains it, and it starts a dozen processes at each evaluation.
    """
    with (
        patch.dict(os.environ),
        patch("lm_eval.evaluator.add_env_info"),
        patch("lm_eval.evaluator.get_git_commit_hash"),
    ):
        os.environ.pop("LOCAL_RANK", None)
        yield


def _scores(results: Mapping[str, Any]) -> dict[str, float]:
    return {
        f"{task} {measure.removesuffix(',none')}": float(value)
        for task, measures in results["results"].items()
        for measure, value in measures.items()
        if isinstance(value, int | float) and "," in measure and "stderr" not in measure
    }


def _groups(results: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """The tasks of each group, also those of the groups in it."""
    members: Mapping[str, Sequence[str]] = results["group_subtasks"]

    def tasks_in(name: str) -> frozenset[str]:
        inner = members.get(name)
        return frozenset().union(*map(tasks_in, inner)) if inner else frozenset({name})

    return {name: tasks_in(name) for name, inner in members.items() if inner}


def _answers(results: Mapping[str, Any]) -> dict[str, list[Any]]:
    # A task with several filters has a sample for each of them.
    by_document = {task: {int(one["doc_id"]): one for one in samples} for task, samples in results["samples"].items()}
    return {task: [_answer(samples[number]) for number in sorted(samples)] for task, samples in by_document.items()}


def _answer(sample: Mapping[str, Any]) -> Any:
    """The text or the number, before any filter; of several likelihoods, the index of the highest."""
    given = [one[0] for one in sample["resps"]]
    if not isinstance(given[0], tuple | list):
        return given[0]
    chances = [chance for chance, *_ in given]
    return chances.index(max(chances))
