"""CachedModel: the interface of lm-eval to a model, on an engine with a prefix cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from hicache.types import Tokens

from .request_recorder import RequestRecorder
from .vocabulary import Message, Vocabulary

MAX_ANSWER_TOKENS = 256
"""The longest generated answer, unless a task sets another limit."""


class CachedModel(TemplateLM):
    """Answers one request after the other, by greedy decoding.

    `max_tokens`: the longest sequence of the model. A longer prompt is truncated at its beginning.
    """

    def __init__(self, recorder: RequestRecorder, vocabulary: Vocabulary, *, max_tokens: int) -> None:
        super().__init__()
        self._recorder = recorder
        self._vocabulary = vocabulary
        self._max_tokens = max_tokens

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

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, Sequence[int], Sequence[int]]], **options: Any
    ) -> list[tuple[float, bool]]:
        return [self._likelihood([*context, *rest[:-1]], rest) for _, context, rest in requests]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihoods of whole texts."""
        return [self._rolling(self._vocabulary.encode(request.args[0])) for request in requests]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The generated text after each prompt. Raises ValueError for a task that samples its answers."""
        return [self._generate(*request.args) for request in requests]

    def _likelihood(self, inputs: Sequence[int], expected: Sequence[int]) -> tuple[float, bool]:
        """The log-likelihood of the expected tokens, and whether each is the likeliest. The last follows the inputs."""
        tokens = _tokens(inputs[-self._max_tokens :])
        logits = self._recorder.score(tokens, len(tokens) - len(expected))
        wanted = torch.tensor(list(expected), device=logits.device)
        chances = logits.log_softmax(-1).gather(-1, wanted[:, None])
        return float(chances.sum()), bool((logits.argmax(-1) == wanted).all())

    def _rolling(self, tokens: list[int]) -> float:
        windows = get_rolling_token_windows(tokens, self.prefix_token_id, self._max_tokens, context_len=1)
        pairs = [make_disjoint_window(window) for window in windows]
        return sum(self._likelihood([*context, *expected[:-1]], expected)[0] for context, expected in pairs)

    def _generate(self, context: str, options: Mapping[str, Any]) -> str:
        if options.get("do_sample") and options.get("temperature", 1) > 0:
            raise ValueError(f"sampled answers cannot be compared between passes: {dict(options)}")
        limit = int(options.get("max_gen_toks", MAX_ANSWER_TOKENS))
        stops = options.get("until", ())
        stops = [stops] if isinstance(stops, str) else list(stops)
        prompt = _tokens(self._vocabulary.encode(context)[-(self._max_tokens - limit) :])
        generated = self._recorder.generate(prompt, self._enough(stops, limit))
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
