"""The interface of lm-eval: an engine with a cache answers as the model without a cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hicache.testing.contract import clause

from .cache_setup import CHUNK, PAGE, CacheSetup, OpenCache, on_device
from .engine.served_model import ServedModel
from .evaluation.evaluate import CachedModel
from .evaluation.recorder import RequestRecorder
from .evaluation.subject import opened
from .evaluation.vocabulary import AlphabetVocabulary, TokenizerVocabulary, Vocabulary
from .models.task import decoded, encoded

TEXT = "abcdefgh>abcdefgh" * 4
ROUND = "hgfedcba>"
MAX_TOKENS = 1024

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
WORDS = ["<s>", "</s>", "<turn>", "one", "two", "three", "four"]
TEMPLATE = (
    "<s>{% for message in messages %}<turn> {{ message.content }} {% endfor %}"
    "{% if add_generation_prompt %}<turn>{% endif %}"
)


def request(*arguments: Any) -> Any:
    """A request as lm-eval makes it."""
    return SimpleNamespace(args=arguments, task_name="task")


def trained_model(name: str) -> ServedModel:
    model, _ = opened(name, torch.float32, "cpu")
    return model


def answering(open_cache: OpenCache, max_tokens: int = MAX_TOKENS) -> tuple[CachedModel, RequestRecorder]:
    model = trained_model("hybrid")
    recorder = RequestRecorder(
        CacheSetup(model, on_device(model, PAGE, CHUNK), open_cache).engine(CHUNK), kept_tokens=4
    )
    return CachedModel(recorder, AlphabetVocabulary(), max_tokens=max_tokens), recorder


def logits_of(tokens: Sequence[int]) -> torch.Tensor:
    return trained_model("hybrid").runner.forward(np.array(tokens, dtype=np.int32), 0, None)


def chance(context: Sequence[int], rest: Sequence[int]) -> float:
    """The log-likelihood of `rest` after `context`, without a cache."""
    chances = logits_of([*context, *rest[:-1]])[-len(rest) :].log_softmax(-1)
    return float(chances.gather(-1, torch.tensor(list(rest))[:, None]).sum())


@clause("REQ-3")
def test_likelihoods_are_those_without_a_cache(open_cache: OpenCache) -> None:
    model, recorder = answering(open_cache)
    context = TEXT + ROUND
    for rest in ("hgfedcba", "hgfedcbb", "h"):
        likelihood, is_likeliest = model.loglikelihood([request(context, rest)])[0]
        assert likelihood == pytest.approx(chance(encoded(context), encoded(rest)), abs=1e-4), f"REQ-3: {rest}"
        assert is_likeliest == (rest != "hgfedcbb"), f"expected {rest != 'hgfedcbb'}, got {is_likeliest}: {rest}"
    cached = (len(context) - 1) // PAGE * PAGE
    assert [one.hits.device for one in recorder.requests] == [0, cached, cached], f"REQ-3: {recorder.requests}"
    assert [len(one.logits) for one in recorder.requests] == [4, 4, 1], (
        "expected the logits of at most four tokens of each answer"
    )


@clause("REQ-3")
def test_a_text_without_context_follows_the_end_token(open_cache: OpenCache) -> None:
    model, _ = answering(open_cache)
    expected = chance([AlphabetVocabulary.end_token], encoded(TEXT))
    answers = [model.loglikelihood([request("", TEXT)])[0][0], model.loglikelihood_rolling([request(TEXT)])[0]]
    assert answers == pytest.approx([expected] * 2, rel=1e-5), f"REQ-3: expected {expected} twice, got {answers}"


@clause("REQ-3")
def test_a_text_that_is_too_long_is_read_in_windows(open_cache: OpenCache) -> None:
    model, _ = answering(open_cache, max_tokens=40)
    tokens = [AlphabetVocabulary.end_token, *encoded(TEXT)]
    expected = chance(tokens[:1], tokens[1:41]) + chance(tokens[28:41], tokens[41:])
    assert len(tokens) == 69, f"expected 69 tokens: windows of 40 and of 28 tokens after the first, got {len(tokens)}"
    answer = model.loglikelihood_rolling([request(TEXT)])[0]
    assert answer == pytest.approx(expected, rel=1e-5), f"REQ-3: expected {expected}, got {answer}"


@clause("REQ-3")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_gen_toks": 8}, "hgfedcba"),
        ({"max_gen_toks": 3}, "hgf"),
        ({"max_gen_toks": 8, "until": ["dc", "a"]}, "hgfe"),
        ({"max_gen_toks": 8, "until": "f"}, "hg"),
    ],
)
def test_an_answer_ends_at_its_limit_or_at_a_stop_string(
    options: Mapping[str, Any], expected: str, open_cache: OpenCache
) -> None:
    model, recorder = answering(open_cache)
    for _ in range(2):
        generated = model.generate_until([request(TEXT + ROUND, options)])
        assert generated == [expected], f"{options}: expected {expected!r}, got {generated}"
    first, second = recorder.requests
    assert torch.equal(first.logits, second.logits), "REQ-3: expected equal logits for the same prompt"
    cached = (len(TEXT + ROUND) - 1) // PAGE * PAGE
    assert second.hits.device == cached, f"REQ-3: {cached} tokens are cached, got {second.hits}"


def test_a_prompt_that_is_too_long_loses_its_beginning(open_cache: OpenCache) -> None:
    model, recorder = answering(open_cache, max_tokens=40)
    model.generate_until([request(TEXT + ROUND, {"max_gen_toks": 8})])
    assert decoded(recorder.requests[0].tokens[:32]) == (TEXT + ROUND)[-32:], (
        "expected the last 32 tokens of the prompt"
    )


def test_sampled_answers_are_refused(open_cache: OpenCache) -> None:
    model, _ = answering(open_cache)
    with pytest.raises(ValueError, match="sampled answers cannot be compared"):
        model.generate_until([request(TEXT, {"do_sample": True, "temperature": 0.7})])


def tokenizer() -> Any:
    """A word tokenizer of transformers."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}))
    words.pre_tokenizer = WhitespaceSplit()
    words.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=words, **SPECIAL, chat_template=TEMPLATE, name_or_path="words")


def test_the_beginning_of_a_text_is_encoded_once() -> None:
    words = TokenizerVocabulary(tokenizer())
    assert words.encode("one two") == [0, 3, 4], "expected the token <s> before the words"
    assert words.encode("<s> one two") == [0, 3, 4], "expected the token <s> once"
    assert words.decode([3, 4]) == "one two", "expected the words back"
    assert words.end_token == 1, "expected the token </s>"


def test_a_conversation_is_formatted_by_the_template() -> None:
    words: Vocabulary = TokenizerVocabulary(tokenizer())
    turns = [{"role": "user", "content": "one two"}, {"role": "assistant", "content": "three"}]
    assert words.chat(turns[:1], asks=True) == "<s><turn> one two <turn>", "expected the beginning of the model's turn"
    assert words.chat(turns, asks=False) == "<s><turn> one two <turn> three", "expected an unfinished turn of the model"
    assert words.template(True) == TEMPLATE, "expected the chat template"
    assert words.template(False) is None, "expected None without a chat template"


def test_a_model_with_a_tokenizer_goes_through_lm_eval(open_cache: OpenCache) -> None:
    model = trained_model("window")
    recorder = RequestRecorder(
        CacheSetup(model, on_device(model, PAGE, CHUNK), open_cache).engine(CHUNK), kept_tokens=4
    )
    words = CachedModel(recorder, TokenizerVocabulary(tokenizer()), max_tokens=MAX_TOKENS)
    chat = words.apply_chat_template([{"role": "user", "content": "one two three four " * 8}])
    words.loglikelihood([request(chat, " one"), request(chat, " two")])
    first, second = recorder.requests
    assert first.tokens.tolist() == [0, 2, *[3, 4, 5, 6] * 8, 2], f"expected the template's tokens, got {first.tokens}"
    assert second.hits.device == 32, f"REQ-3: the context is cached, got {second.hits}"
    assert words.tokenizer_name == "words", "expected the name by which lm-eval distinguishes templates"
