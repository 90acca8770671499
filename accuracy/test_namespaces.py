"""One cache for models with different weights or dtypes: none is answered from the KV of another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import Namespace, Tier

from .answers import Answer, ask, check_close, compute_rest, prompt
from .cache_setup import CHUNK, CacheSetup, OpenCache, in_storage, served
from .engine.engine import Engine
from .engine.served_model import ServedModel
from .families import FAMILIES

FAMILY, CACHED = "qwen3", 2 * CHUNK
TUNED = 1.25
"""The factor by which the tuned model's attention weights differ, as with a LoRA."""


def tuned() -> ServedModel:
    """The model with other weights."""
    model = FAMILIES[FAMILY].open(torch.float32, "cpu")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "self_attn" in name:
                parameter.mul_(TUNED)
    return ServedModel.of(model)


def with_other_rope() -> ServedModel:
    """A model with the same weights and other angles of its positions."""
    rope = {"rope_type": "default", "rope_theta": 37.0}
    family = replace(FAMILIES[FAMILY], options={**FAMILIES[FAMILY].options, "rope_parameters": rope})
    return ServedModel.of(family.open(torch.float32, "cpu"))


def ask_as(lora: str, model: ServedModel, setup: CacheSetup) -> Answer:
    """Ask one prompt in a namespace, and compare with the model's answer without a cache."""
    tokens, adapter = prompt(1, CACHED + 1), setup.adapter
    engine = Engine(model, adapter, setup.config, chunk_tokens=CHUNK, rereads=False)
    generation = engine.begin(tokens, namespace=Namespace(lora=lora, salt=None, tenant=None))
    assert generation is not None, "expected room for one request"
    answer = compute_rest(engine, generation)
    engine.finish(generation)
    whole = model.runner.forward(tokens, 0, None)[answer.hits.total :]
    check_close(f"the LoRA {lora!r}, {answer.hits}", torch.float32, whole, answer.logits)
    return answer


@clause("KEY-2", "REQ-3", needs=(Capability.STORAGE,))
@pytest.mark.parametrize("tier", [Tier.DEVICE, Tier.STORAGE], ids=lambda tier: tier.value)
def test_no_lora_is_answered_from_the_kv_of_another(tier: Tier, open_cache: OpenCache, tmp_path: Path) -> None:
    models = {"plain": served(FAMILY, torch.float32, "cpu"), "tuned": tuned()}
    setup = CacheSetup(models["plain"], in_storage(models["plain"], tmp_path), open_cache)
    for lora, model in models.items():
        first = ask_as(lora, model, setup)
        assert not first.hits.total, f"KEY-2: expected no hits for the LoRA {lora!r} at first, got {first.hits}"
        if tier is Tier.STORAGE:
            setup.restart()
    for lora, model in models.items():
        hits = getattr(ask_as(lora, model, setup).hits, tier.value)
        assert hits == CACHED, f"KEY-2: expected {CACHED} tokens of the LoRA {lora!r} from {tier.value}, got {hits}"


@clause("STORE-1", "REQ-3", needs=(Capability.STORAGE,))
def test_no_model_is_answered_from_stored_kv_of_another_dtype(open_cache: OpenCache, tmp_path: Path) -> None:
    tokens = prompt(1, CACHED + 1)
    other, model = (served(FAMILY, dtype, "cpu") for dtype in (torch.float16, torch.bfloat16))
    before = CacheSetup(other, in_storage(other, tmp_path), open_cache)
    ask(before.engine(CHUNK), tokens)
    before.restart()
    setup = CacheSetup(model, in_storage(model, tmp_path), open_cache)
    answer = ask(setup.engine(CHUNK), tokens)
    whole = model.runner.forward(tokens, 0, None)[answer.hits.total :]
    check_close(f"bfloat16 after float16, {answer.hits}", torch.bfloat16, whole, answer.logits)
    assert not answer.hits.total, f"STORE-1: expected no hits, as nothing was stored in bfloat16, got {answer.hits}"


@clause("STORE-1", "REQ-3", needs=(Capability.STORAGE,))
def test_no_model_is_answered_from_stored_kv_of_another_rope(open_cache: OpenCache, tmp_path: Path) -> None:
    tokens = prompt(1, CACHED + 1)
    other, model = served(FAMILY, torch.float32, "cpu"), with_other_rope()
    before = CacheSetup(other, in_storage(other, tmp_path), open_cache)
    ask(before.engine(CHUNK), tokens)
    before.restart()
    setup = CacheSetup(model, in_storage(model, tmp_path), open_cache)
    answer = ask(setup.engine(CHUNK), tokens)
    whole = model.runner.forward(tokens, 0, None)[answer.hits.total :]
    check_close(f"another RoPE, {answer.hits}", torch.float32, whole, answer.logits)
    assert not answer.hits.total, f"STORE-1: expected no hits, as the stored KV has another RoPE, got {answer.hits}"
