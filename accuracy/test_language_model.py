"""What lm-eval asks of a model, answered by an engine as by the model alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hicache.testing.contract import clause

from .evaluation.asker import Asker
from .evaluation.cached_model import CachedModel
from .evaluation.vocabulary import AlphabetVocabulary, TokenizerVocabulary, Vocabulary
from .models.alphabet import decoded, encoded
from .stage import CHUNK, PAGE, OpenCache, Stage, on_device
from .trained_models import trained_model

TEXT = "abcdefgh>abcdefgh" * 4
ROUND = "hgfedcba>"
MOST_TOKENS = 1024

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
WORDS = ["<s>", "</s>", "<turn>", "one", "two", "three", "four"]
TEMPLATE = (
    "<s>{% for message in messages %}<turn> {{ message.content }} {% endfor %}"
    "{% if add_generation_prompt %}<turn>{% endif %}"
)


def asked(*arguments: Any) -> Any:
    """A request as lm-eval makes it."""
    return SimpleNamespace(args=arguments)


def answering(open_cache: OpenCache, most_tokens: int = MOST_TOKENS) -> tuple[CachedModel, Asker]:
    model = trained_model("hybrid", torch.float32)
    asker = Asker(Stage(model, on_device(model, PAGE, CHUNK), open_cache).engine(CHUNK), kept_tokens=4)
    return CachedModel(asker, AlphabetVocabulary(), most_tokens=most_tokens), asker


def logits_of(tokens: Sequence[int]) -> torch.Tensor:
    return trained_model("hybrid", torch.float32).runner.forward(np.array(tokens, dtype=np.int32), 0, None)


def chance(context: Sequence[int], rest: Sequence[int]) -> float:
    """The likelihood of what follows, by the model alone."""
    chances = logits_of([*context, *rest[:-1]])[-len(rest) :].log_softmax(-1)
    return float(chances.gather(-1, torch.tensor(list(rest))[:, None]).sum())


@clause("REQ-3")
def test_what_follows_is_as_likely_as_without_a_cache(open_cache: OpenCache) -> None:
    model, asker = answering(open_cache)
    context = TEXT + ROUND
    for rest in ("hgfedcba", "hgfedcbb", "h"):
        likelihood, is_likeliest = model.loglikelihood([asked(context, rest)])[0]
        assert likelihood == pytest.approx(chance(encoded(context), encoded(rest)), abs=1e-4), f"REQ-3: {rest}"
        assert is_likeliest == (rest != "hgfedcbb"), f"the letters are copied, and {rest} is {is_likeliest}"
    cached = (len(context) - 1) // PAGE * PAGE
    assert [one.hits.device for one in asker.asked] == [0, cached, cached], f"REQ-3: {asker.asked}"
    assert [len(one.logits) for one in asker.asked] == [4, 4, 1], "of each answer four tokens are kept"


@clause("REQ-3")
def test_a_text_without_context_follows_the_end_of_another(open_cache: OpenCache) -> None:
    model, _ = answering(open_cache)
    expected = chance([AlphabetVocabulary.end_token], encoded(TEXT))
    assert model.loglikelihood([asked("", TEXT)])[0][0] == pytest.approx(expected, rel=1e-5)
    assert model.loglikelihood_rolling([asked(TEXT)])[0] == pytest.approx(expected, rel=1e-5)


@clause("REQ-3")
def test_a_text_that_is_too_long_is_read_in_windows(open_cache: OpenCache) -> None:
    model, _ = answering(open_cache, most_tokens=40)
    tokens = [AlphabetVocabulary.end_token, *encoded(TEXT)]
    expected = chance(tokens[:1], tokens[1:41]) + chance(tokens[28:41], tokens[41:])
    assert len(tokens) == 69, "one window of 40 tokens, and one of 28 more, which reads 40 before its last"
    assert model.loglikelihood_rolling([asked(TEXT)])[0] == pytest.approx(expected, rel=1e-5)


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
def test_an_answer_ends_where_it_is_told_to(options: Mapping[str, Any], expected: str, open_cache: OpenCache) -> None:
    model, asker = answering(open_cache)
    for _ in range(2):
        said = model.generate_until([asked(TEXT + ROUND, options)])
        assert said == [expected], f"{options}: expected {expected!r}, got {said}"
    first, second = asker.asked
    assert torch.equal(first.logits, second.logits), "REQ-3: the same prompt, another answer"
    cached = (len(TEXT + ROUND) - 1) // PAGE * PAGE
    assert second.hits.device == cached, f"REQ-3: {cached} tokens are cached, got {second.hits}"


def test_a_prompt_that_is_too_long_loses_its_beginning(open_cache: OpenCache) -> None:
    model, asker = answering(open_cache, most_tokens=40)
    model.generate_until([asked(TEXT + ROUND, {"max_gen_toks": 8})])
    assert decoded(asker.asked[0].tokens[:32]) == (TEXT + ROUND)[-32:], "expected the last 32 tokens of the prompt"


def test_answers_by_lot_are_refused(open_cache: OpenCache) -> None:
    model, _ = answering(open_cache)
    with pytest.raises(ValueError, match="drawn by lot"):
        model.generate_until([asked(TEXT, {"do_sample": True, "temperature": 0.7})])


def tokenizer() -> Any:
    """A tokenizer of words, as transformers has them."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}))
    words.pre_tokenizer = WhitespaceSplit()
    words.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=words, **SPECIAL, chat_template=TEMPLATE, name_or_path="words")


def test_a_tokenizer_begins_a_text_once() -> None:
    words = TokenizerVocabulary(tokenizer())
    assert words.encode("one two") == [0, 3, 4], "expected the beginning before the words"
    assert words.encode("<s> one two") == [0, 3, 4], "expected the beginning once"
    assert words.decode([3, 4]) == "one two", "expected the words back"
    assert words.end_token == 1, "expected the end of a text"


def test_a_conversation_is_laid_out_by_the_template() -> None:
    words: Vocabulary = TokenizerVocabulary(tokenizer())
    turns = [{"role": "user", "content": "one two"}, {"role": "assistant", "content": "three"}]
    assert words.chat(turns[:1], asks=True) == "<s><turn> one two <turn>", "expected the turn of the model"
    assert words.chat(turns, asks=False) == "<s><turn> one two <turn> three", "expected a turn that goes on"
    assert words.template(True) == TEMPLATE, "expected the template by which it is laid out"
    assert words.template(False) is None, "no template was asked for"


def test_a_model_with_a_tokenizer_goes_through_lm_eval(open_cache: OpenCache) -> None:
    model = trained_model("window", torch.float32)
    asker = Asker(Stage(model, on_device(model, PAGE, CHUNK), open_cache).engine(CHUNK), kept_tokens=4)
    words = CachedModel(asker, TokenizerVocabulary(tokenizer()), most_tokens=MOST_TOKENS)
    chat = words.apply_chat_template([{"role": "user", "content": "one two three four " * 8}])
    words.loglikelihood([asked(chat, " one"), asked(chat, " two")])
    first, second = asker.asked
    assert first.tokens.tolist() == [0, 2, *[3, 4, 5, 6] * 8, 2], f"expected the template's tokens, got {first.tokens}"
    assert second.hits.device == 32, f"REQ-3: the context is cached, got {second.hits}"
    assert words.tokenizer_name == "words", "lm-eval tells templates apart by the name"
