"""One cache for models with other weights or another dtype: none is answered with what another one computed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import Namespace, Tier

from .answer import Answer, ask, rest_of
from .engine.engine import Engine
from .engine.served_model import ServedModel
from .families.table import FAMILIES
from .gates import close
from .prompts import prompt
from .stage import CHUNK, OpenCache, Stage, in_storage, served

FAMILY, CACHED = "qwen3", 2 * CHUNK
TUNED = 1.25
"""On the weights of attention, as a LoRA changes them."""


def tuned() -> ServedModel:
    """The model with other weights."""
    model = FAMILIES[FAMILY].open(torch.float32, "cpu")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "self_attn" in name:
                parameter.mul_(TUNED)
    return ServedModel.of(model)


def ask_as(lora: str, model: ServedModel, stage: Stage) -> Answer:
    """One prompt in a namespace, held against the model's own answer."""
    tokens, adapter = prompt(1, CACHED + 1), stage.adapter
    engine = Engine(model, adapter, stage.config, chunk_tokens=CHUNK, rereads=False)
    generation = engine.begin(tokens, namespace=Namespace(lora=lora, salt=None, tenant=None))
    assert generation is not None, "one request fits"
    answer = rest_of(engine, generation)
    engine.finish(generation)
    whole = model.runner.forward(tokens, 0, None)[answer.hits.total :]
    close(f"the LoRA {lora!r}, {answer.hits}", torch.float32, whole, answer.logits)
    return answer


@clause("KEY-2", "REQ-3", needs=(Capability.STORAGE,))
@pytest.mark.parametrize("tier", [Tier.DEVICE, Tier.STORAGE], ids=lambda tier: tier.value)
def test_no_lora_is_answered_with_what_another_computed(tier: Tier, open_cache: OpenCache, tmp_path: Path) -> None:
    models = {"plain": served(FAMILY, torch.float32, "cpu"), "tuned": tuned()}
    stage = Stage(models["plain"], in_storage(models["plain"], tmp_path), open_cache)
    for lora, model in models.items():
        first = ask_as(lora, model, stage)
        assert not first.hits.total, f"KEY-2: nothing was computed for the LoRA {lora!r}, got {first.hits}"
        if tier is Tier.STORAGE:
            stage.restart()
    for lora, model in models.items():
        came = getattr(ask_as(lora, model, stage).hits, tier.value)
        assert came == CACHED, f"KEY-2: {CACHED} tokens of the LoRA {lora!r} are in {tier.value}, got {came}"


@clause("STORE-1", "REQ-3", needs=(Capability.STORAGE,))
def test_no_model_is_answered_from_what_storage_has_of_another_dtype(open_cache: OpenCache, tmp_path: Path) -> None:
    tokens = prompt(1, CACHED + 1)
    other, model = (served(FAMILY, dtype, "cpu") for dtype in (torch.float16, torch.bfloat16))
    before = Stage(other, in_storage(other, tmp_path), open_cache)
    ask(before.engine(CHUNK), tokens)
    before.restart()
    stage = Stage(model, in_storage(model, tmp_path), open_cache)
    answer = ask(stage.engine(CHUNK), tokens)
    whole = model.runner.forward(tokens, 0, None)[answer.hits.total :]
    close(f"bfloat16 after float16, {answer.hits}", torch.bfloat16, whole, answer.logits)
    assert not answer.hits.total, f"STORE-1: nothing was computed in bfloat16, got {answer.hits}"
