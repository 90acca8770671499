"""Through HTTP: lm-eval's own client of completions gets from the engine what lm-eval in the process gets."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import Pool, Tier

from .cache_setup import OpenCache
from .evaluation.comparison import missing_hits
from .evaluation.completions import CompletionsServer
from .evaluation.documents import task
from .evaluation.evaluate import KEPT_TOKENS, CachedModel, ScoredPass, evaluate_model
from .evaluation.passes import CacheSize, Passes, zeroed_pools
from .evaluation.recorder import RequestRecorder
from .evaluation.subject import opened
from .models.task import CHARACTERS

TASKS = ("choice", "copying")
QUESTIONS = 2
SIZE = CacheSize(page_size=16, chunk_tokens=64, tokens=1 << 12, states=64)


def write_tokenizer(folder: Path) -> None:
    """Save the alphabet of the trained models as a tokenizer of transformers: one token a character."""
    words = Tokenizer(models.WordLevel({character: number for number, character in enumerate(CHARACTERS)}))
    words.pre_tokenizer, words.decoder = pre_tokenizers.Split(Regex("."), "isolated"), decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token=CHARACTERS[0]).save_pretrained(folder)


def ask_through_http(passes: Passes, tokenizer: Path) -> ScoredPass:
    """A pass that lm-eval asks as a client of a server: as `--model local-completions` does."""
    completions = pytest.importorskip("lm_eval.models.openai_completions")
    recorder = RequestRecorder(passes.setup.engine(SIZE.chunk_tokens), kept_tokens=KEPT_TOKENS)
    model = CachedModel(recorder, passes.vocabulary, max_tokens=1024)
    with closing(CompletionsServer(model, recorder, scored_tokens=1)) as server:
        client = completions.LocalCompletionsAPI(
            model="hybrid",
            base_url=server.url,
            tokenizer=str(tokenizer),
            tokenizer_backend="huggingface",
            max_retries=1,
        )
        return evaluate_model(client, recorder, [task(name, QUESTIONS) for name in TASKS], limit=None, chats=False)


@clause("REQ-3", "HOST-7", "FLOW-9", needs=(Capability.STORAGE,))
def test_a_client_of_completions_gets_the_scores_of_the_process(
    open_cache: OpenCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tenacity", reason="lm-eval's client of completions needs tenacity: pip install 'lm-eval[api]'")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    write_tokenizer(tmp_path / "tokenizer")
    model, vocabulary = opened("hybrid", torch.float32, "cpu")
    tasks = [task(name, QUESTIONS) for name in TASKS]
    passes = Passes(model, vocabulary, tasks, SIZE, open_cache, tmp_path / "pages")
    cold = ask_through_http(passes, tmp_path / "tokenizer")
    passes.drop_above(Tier.HOST)
    warm = ask_through_http(passes, tmp_path / "tokenizer")
    inside = passes.ask()
    assert inside.scores == {"choice acc": 1.0, "copying exact_match": 1.0}, f"expected right answers, got {inside}"
    for name, one in {"cold": cold, "from the host": warm}.items():
        assert one.scores == inside.scores, f"REQ-3: {name}: expected {inside.scores}, got {one.scores}"
        assert one.answers == inside.answers, f"REQ-3: {name}: expected {inside.answers}, got {one.answers}"
    passes.drop_above(Tier.HOST)
    with zeroed_pools(passes.setup.adapter, Pool.SWA):
        lossy = ask_through_http(passes, tmp_path / "tokenizer")
    assert lossy.scores["copying exact_match"] == 0, f"expected no right copy without the window, got {lossy.scores}"
    assert not cold.hits.host, f"expected no hits on the host of a cold cache, got {cold.hits}"
    wrong = list(missing_hits("from the host", Tier.HOST, SIZE.page_size, warm))
    assert not wrong, "HOST-7: expected hits on the host of every prompt, got:\n" + "\n".join(wrong)
