"""Negative controls: without the data of one component, answers exceed the gates and the scores of its tasks fall."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.pools import pools_of
from hicache.types import Component, Pool, Tier

from .answers import GATES, MORE_TOKENS, ask, prompt
from .cache_setup import CHUNK, CacheSetup, OpenCache, on_host, served
from .engine.model_runner import divergence
from .evaluation.comparison import differences, missing_hits, nats_between
from .evaluation.documents import DOCUMENTS, task
from .evaluation.evaluate import ScoredPass
from .evaluation.paired import MIN_DROP, PairedAnswers, is_loss
from .evaluation.passes import CacheSize, Passes, pass_without, pass_without_pools, zeroed_pools
from .evaluation.subject import opened
from .models.recipe import RECIPES
from .models.task import COPYING, RECALL, Task

LOSSES = (
    ("llama", Pool.KV),
    ("deepseek_v3", Pool.KV),
    ("gemma3", Pool.SWA),
    ("mistral", Pool.SWA),
    ("qwen3_next", Pool.MAMBA),
    ("bamba", Pool.MAMBA),
    ("lfm2", Pool.MAMBA),
    ("deepseek_v32", Pool.INDEXER),
    ("deepseek_v4", Pool.SWA),
    ("deepseek_v4", "compressor_4"),
    ("deepseek_v4", "indexer_4"),
    ("deepseek_v4", "compressor_16"),
    ("zaya", Pool.SWA),
    ("lfm3", Pool.MAMBA),
)
"""A family for each kind of layer (attention of each sort, states, an index), and the pool whose bytes are lost."""

CACHED = 96
QUESTIONS = 16

SHAPE_QUESTIONS = {"qwen3_next": 48, "glm_moe_dsa": 16, "deepseek_v4": 16}
"""By trained shape. Without its states Qwen-Next loses a quarter of its answers, which fewer questions do not show."""

SIZE = CacheSize(page_size=16, chunk_tokens=64, tokens=1 << 13, states=256)
CARRIED = [(name, carried) for name in ("window", "hybrid") for carried in RECIPES[name].tasks]

SHAPES: Mapping[str, Sequence[tuple[Task, str]]] = {
    "qwen3_next": ((RECALL, Component.FULL), (RECALL, Component.MAMBA)),
    "glm_moe_dsa": ((RECALL, Component.FULL), (RECALL, Pool.INDEXER)),
    "deepseek_v4": ((COPYING, Component.SWA),),
}
"""By trained model of an architecture: what is lost, a component or a pool, and the task that must notice it."""


@pytest.mark.parametrize("dtype", GATES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("family", "pool"), LOSSES)
@clause("REQ-3", needs=(Capability.HOST,))
def test_lost_bytes_exceed_the_gates(family: str, pool: str, dtype: torch.dtype, open_cache: OpenCache) -> None:
    model = served(family, dtype, "cpu")
    setup = CacheSetup(model, on_host(model), open_cache)
    tokens = prompt(1, CACHED + MORE_TOKENS)
    ask(setup.engine(CHUNK), tokens[:CACHED])
    setup.clear_device()
    with zeroed_pools(setup.adapter, pool):
        answer = ask(setup.engine(CHUNK), tokens)
    assert answer.hits.host == CACHED, f"FLOW-10: expected {CACHED} tokens from the host, got {answer.hits}"
    nats = divergence(model.runner.forward(tokens, 0, None)[CACHED:], answer.logits)
    mean, worst = float(nats.mean()), float(nats.max())
    gate = GATES[dtype]
    assert mean > gate.mean, f"without {pool}: expected more than {gate}, got {mean:.1e} nats a token"
    assert worst > gate.worst, f"without {pool}: expected more than {gate}, got {worst:.1e} nats at the worst token"


@clause("REQ-3", "HOST-7", "FLOW-9", "FLOW-10", needs=(Capability.STORAGE,))
@pytest.mark.parametrize("tier", Tier, ids=lambda tier: tier.value)
@pytest.mark.parametrize(("name", "carried"), CARRIED, ids=lambda value: getattr(value, "name", value))
def test_losing_a_component_lowers_the_score_of_its_task(
    name: str, carried: Task, tier: Tier, open_cache: OpenCache, tmp_path: Path
) -> None:
    model, vocabulary = opened(name, torch.float32, "cpu")
    passes = Passes(model, vocabulary, [task(carried.name, QUESTIONS)], SIZE, open_cache, tmp_path)
    first = passes.ask()
    lossy = pass_without(carried.component, tier, passes, passes.ask)
    place = f"{name} without {carried.component.value} from {tier.value}"
    missing = list(missing_hits(place, tier, SIZE.page_size, lossy))
    assert not missing, f"{place}: expected all hits on {tier.value}, got {missing}"
    measure = f"{carried.name} exact_match"
    loss = first.scores[measure] - lossy.scores[measure]
    assert loss >= MIN_DROP, f"{place}: {first.scores} fell to {lossy.scores}, expected {MIN_DROP} less"
    mean = float(nats_between(first, lossy).mean())
    gate = GATES[torch.float32]
    assert mean > gate.mean, f"{place}: expected more than {gate}, got {mean:.1e} nats a token"
    lines = list(differences(place, torch.float32, first, lossy, same_bytes=True))
    assert len(lines) >= 3, f"{place}: expected differences in score, answers and distributions, got {lines}"


def right(scored: ScoredPass, asked: Task) -> list[bool]:
    """For each question of a task, whether its answer is right."""
    given = scored.answers[asked.name]
    documents = DOCUMENTS[asked.name](len(given))["test"]
    return [answer == one["answer"] for answer, one in zip(given, documents, strict=True)]


@clause("REQ-3", "HOST-7", "FLOW-9", "FLOW-10", needs=(Capability.STORAGE, Capability.SIDECARS))
@pytest.mark.parametrize("name", SHAPES)
def test_a_trained_shape_answers_from_storage_and_loses_answers_with_each_part(
    name: str, open_cache: OpenCache, tmp_path: Path
) -> None:
    if name not in CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    model, vocabulary = opened(name, torch.float32, "cpu")
    asked = {task.name: task for task, _ in SHAPES[name]}
    passes = Passes(model, vocabulary, [task(one, SHAPE_QUESTIONS[name]) for one in asked], SIZE, open_cache, tmp_path)
    first = passes.ask()
    passes.drop_above(Tier.STORAGE)
    later = passes.ask()
    wrong = [*differences(name, torch.float32, first, later, same_bytes=True)]
    wrong += missing_hits(name, Tier.STORAGE, SIZE.page_size, later)
    assert not wrong, "REQ-3: expected the same answers to the same questions, got:\n" + "\n".join(wrong)
    for one, lost in SHAPES[name]:
        pools = (lost,) if lost not in passes.setup.config.components else pools_of(passes.setup.config, lost)
        lossy = pass_without_pools(pools, Tier.STORAGE, passes, passes.ask)
        paired = PairedAnswers.of(right(first, one), right(lossy, one))
        assert is_loss(paired), f"{name} without {lost}: expected a loss of right answers of {one.name}, got {paired}"
