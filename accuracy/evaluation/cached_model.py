"""CachedModel: an engine as lm-eval asks models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from hicache.types import Tokens

from .asker import Asker
from .vocabulary import Message, Vocabulary

LONGEST_ANSWER_TOKENS = 256
"""Unless a task says otherwise."""


class CachedModel(TemplateLM):
    """Answers one request after the other, greedily. `most_tokens`: that the model takes in at a time.

    A prompt that is longer loses its beginning.
    """

    def __init__(self, asker: Asker, vocabulary: Vocabulary, *, most_tokens: int) -> None:
        super().__init__()
        self._asker = asker
        self._vocabulary = vocabulary
        self._most_tokens = most_tokens

    @property
    def eot_token_id(self) -> int:
        """What stands before a text without context."""
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
        """The likelihood of whole texts, of which every token is computed."""
        return [self._rolling(self._vocabulary.encode(request.args[0])) for request in requests]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """What follows each prompt. Raises ValueError for a task that draws its answers by lot."""
        return [self._generate(*request.args) for request in requests]

    def _likelihood(self, inputs: Sequence[int], expected: Sequence[int]) -> tuple[float, bool]:
        """How likely the expected tokens are, of which the last follows the inputs; and whether all are likeliest."""
        tokens = _tokens(inputs[-self._most_tokens :])
        logits = self._asker.score(tokens, len(tokens) - len(expected))
        wanted = torch.tensor(list(expected), device=logits.device)
        chances = logits.log_softmax(-1).gather(-1, wanted[:, None])
        return float(chances.sum()), bool((logits.argmax(-1) == wanted).all())

    def _rolling(self, tokens: list[int]) -> float:
        windows = get_rolling_token_windows(tokens, self.prefix_token_id, self._most_tokens, context_len=1)
        pairs = [make_disjoint_window(window) for window in windows]
        return sum(self._likelihood([*context, *expected[:-1]], expected)[0] for context, expected in pairs)

    def _generate(self, context: str, options: Mapping[str, Any]) -> str:
        if options.get("do_sample") and options.get("temperature", 1) > 0:
            raise ValueError(f"answers drawn by lot cannot be compared between passes: {dict(options)}")
        most = int(options.get("max_gen_toks", LONGEST_ANSWER_TOKENS))
        stops = options.get("until", ())
        stops = [stops] if isinstance(stops, str) else list(stops)
        prompt = _tokens(self._vocabulary.encode(context)[-(self._most_tokens - most) :])
        said = self._asker.say(prompt, self._enough(stops, most))
        return _before(self._vocabulary.decode(self._spoken(said)), stops)

    def _enough(self, stops: Sequence[str], most: int) -> Callable[[Tokens], bool]:
        def is_enough(said: Tokens) -> bool:
            if len(said) >= most or said[-1] == self._vocabulary.end_token:
                return True
            text = self._vocabulary.decode(said.tolist())
            return any(stop in text for stop in stops)

        return is_enough

    def _spoken(self, said: Tokens) -> list[int]:
        """Without the token that ended it."""
        tokens: list[int] = said.tolist()
        return tokens[:-1] if tokens[-1] == self._vocabulary.end_token else tokens


def _tokens(tokens: Sequence[int]) -> Tokens:
    return np.array(tokens, dtype=np.int32)


def _before(text: str, stops: Sequence[str]) -> str:
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]
