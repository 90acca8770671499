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

from ..answers import Answer, compute_rest
from ..engine.engine import Engine, Generation, Hits
from .vocabulary import Message, Vocabulary


@dataclass(frozen=True, slots=True, eq=False)
class AnsweredRequest:
    """`task`: its name. `tokens`: the prompt and the generated tokens.

    `reusable_tokens`: how many tokens of the prompt may be hits. `ends`: the position at which each forward ended.
    `logits`: from position `reusable_tokens` on, for as many tokens as are kept, float32 [tokens, vocabulary] on the
    CPU. `wait_s`: seconds from the arrival until the prompt was computed. `seconds`: from the arrival to the end.
    """

    task: str
    tokens: Tokens
    reusable_tokens: int
    hits: Hits
    ends: tuple[int, ...]
    logits: torch.Tensor
    wait_s: float
    seconds: float


class RequestRecorder:
    """Runs requests on an engine, one after the other. `requests`: those so far, in order.

    `kept_tokens`: for how many tokens of each answer the logits are kept. Raises ValueError for a request for which an
    idle cache has too few slots.
    """

    def __init__(self, engine: Engine, *, kept_tokens: int) -> None:
        self.requests: list[AnsweredRequest] = []
        self._engine = engine
        self._kept_tokens = kept_tokens

    def score(self, task: str, tokens: Tokens, reusable_tokens: int) -> torch.Tensor:
        """The logits from position `reusable_tokens` on, float32 [tokens, vocabulary]."""
        started = time.perf_counter()
        generation, answer, wait_s = self._begin(tokens, reusable_tokens)
        self._engine.finish(generation)
        logits = answer.logits[reusable_tokens - answer.hits.total :]
        seconds = time.perf_counter() - started
        self._record(task, generation, reusable_tokens, answer.ends, logits, wait_s, seconds)
        return logits

    def generate(self, task: str, prompt: Tokens, is_enough: Callable[[Tokens], bool]) -> Tokens:
        """Generate the likeliest tokens after a prompt, until `is_enough` of the generated tokens is true."""
        started = time.perf_counter()
        generation, answer, wait_s = self._begin(prompt, len(prompt) - 1)
        chosen_by, ends = [answer.logits[-1:]], list(answer.ends)
        tokens = chosen_by[0].argmax(-1).int().cpu().numpy()
        while not is_enough(tokens):
            if not self._engine.append(generation, int(tokens[-1])):
                raise ValueError(f"the cache has no free slot for a token after {len(generation.tokens)} tokens")
            chosen_by.append(self._engine.compute_chunk(generation))
            ends.append(generation.computed_tokens)
            tokens = torch.cat(chosen_by).argmax(-1).int().cpu().numpy()
        self._engine.finish(generation)
        seconds = time.perf_counter() - started
        self._record(task, generation, len(prompt) - 1, tuple(ends), torch.cat(chosen_by), wait_s, seconds)
        return tokens

    def _begin(self, tokens: Tokens, reusable_tokens: int) -> tuple[Generation, Answer, float]:
        started = time.perf_counter()
        generation = self._engine.begin(tokens, reusable_tokens=reusable_tokens)
        if generation is None:
            raise ValueError(f"the cache has too few slots for a prompt of {len(tokens)} tokens")
        answer = compute_rest(self._engine, generation)
        return generation, answer, time.perf_counter() - started

    def _record(
        self,
        task: str,
        generation: Generation,
        reusable: int,
        ends: tuple[int, ...],
        logits: torch.Tensor,
        wait_s: float,
        seconds: float,
    ) -> None:
        kept = logits[: self._kept_tokens].cpu()
        self.requests.append(
            AnsweredRequest(task, generation.tokens, reusable, generation.hits, ends, kept, wait_s, seconds)
        )


MAX_ANSWER_TOKENS = 256
"""The longest generated answer, unless a task sets another limit."""


class CachedModel(TemplateLM):
    """The interface of lm-eval to a model on an engine. Answers one request after the other, by greedy decoding.

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
        return [self._likelihood(task, [*context, *rest[:-1]], rest) for task, (_, context, rest) in asked]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihoods of whole texts."""
        return [self._rolling(request.task_name, self._vocabulary.encode(request.args[0])) for request in requests]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The generated text after each prompt. Raises ValueError for a task that samples its answers."""
        return [self._generate(request.task_name, *request.args) for request in requests]

    def _likelihood(self, task: str, inputs: Sequence[int], expected: Sequence[int]) -> tuple[float, bool]:
        """The log-likelihood of the expected tokens, and whether each is the likeliest. The last follows the inputs."""
        tokens = _tokens(inputs[-self._max_tokens :])
        logits = self._recorder.score(task, tokens, len(tokens) - len(expected))
        wanted = torch.tensor(list(expected), device=logits.device)
        chances = logits.log_softmax(-1).gather(-1, wanted[:, None])
        return float(chances.sum()), bool((logits.argmax(-1) == wanted).all())

    def _rolling(self, task: str, tokens: list[int]) -> float:
        windows = get_rolling_token_windows(tokens, self.prefix_token_id, self._max_tokens, context_len=1)
        pairs = [make_disjoint_window(window) for window in windows]
        return sum(self._likelihood(task, [*context, *expected[:-1]], expected)[0] for context, expected in pairs)

    def _generate(self, task: str, context: str, options: Mapping[str, Any]) -> str:
        if options.get("do_sample") and options.get("temperature", 1) > 0:
            raise ValueError(f"sampled answers cannot be compared between passes: {dict(options)}")
        limit = int(options.get("max_gen_toks", MAX_ANSWER_TOKENS))
        stops = options.get("until", ())
        stops = [stops] if isinstance(stops, str) else list(stops)
        prompt = _tokens(self._vocabulary.encode(context)[-(self._max_tokens - limit) :])
        generated = self._recorder.generate(task, prompt, self._enough(stops, limit))
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


def _tokens(tokens: Sequence[int]) -> Tokens:
    return np.array(tokens, dtype=np.int32)


def _before(text: str, stops: Sequence[str]) -> str:
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]


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
) -> ScoredPass:
    """`tasks`: as `simple_evaluate` takes them, but no names. `limit`: documents of each task, None for all.

    `max_tokens`: the longest sequence of the model. `chats`: whether prompts are formatted by the chat template.
    """
    recorder = RequestRecorder(engine, kept_tokens=KEPT_TOKENS)
    started = time.perf_counter()
    with _one_process():
        results = simple_evaluate(
            model=CachedModel(recorder, vocabulary, max_tokens=max_tokens),
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
