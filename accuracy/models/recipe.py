"""Recipe: how a small model is built and trained, and its trained weights in the folder `weights`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import Cohere2Config, Cohere2ForCausalLM, PreTrainedConfig
from transformers.models.auto import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

from .guidance import Guide
from .hybrid import HybridConfig, HybridForCausalLM
from .task import CHARACTERS, COPYING, LATEST, RECALL, RUNNING, Task


@dataclass(frozen=True)
class Stage:
    """A number of steps, each with one batch of every task. `lengths`: the length of a task's lines."""

    steps: int
    lengths: Mapping[Task, int]


@dataclass(frozen=True)
class Recipe:
    """A model's class and configuration, and the stages of its training, which all start from `seed`.

    `tasks`: what it is asked; stages may have further lessons. `guide`: the layer whose attention is guided, None for
    labels alone. `indexing`: the last stage, which fits the indexers with one task a step, None without indexers.
    `stored`: the dtype of the weights in the file.
    """

    model: Callable[[Any], torch.nn.Module]
    configuration: Callable[..., Any]
    settings: Mapping[str, Any]
    tasks: tuple[Task, ...]
    stages: tuple[Stage, ...]
    learning_rate: float
    seed: int = 0
    guide: Guide | None = None
    indexing: Stage | None = None
    stored: torch.dtype = torch.float32

    def untrained(self) -> Any:
        """The model before its training, float32 on the CPU. Sets the seed of torch."""
        torch.manual_seed(self.seed)
        return self.model(self.configuration(**self.settings))


_SHARED = {
    "vocab_size": len(CHARACTERS),
    "hidden_size": 96,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": 16,
    "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    "initializer_range": 0.1,
    "logit_scale": 1.0,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


_OF_COHERE = ("sliding_window", "logit_scale", "rope_parameters")
_SHAPE = {name: value for name, value in _SHARED.items() if name not in _OF_COHERE} | {"tie_word_embeddings": True}
"""What the architectures of transformers share."""


def _configuration(model_type: str) -> Callable[..., PreTrainedConfig]:
    """The configuration of an architecture, which not every supported release of transformers has."""
    return lambda **settings: CONFIG_MAPPING[model_type](**settings)  # noqa: PLW0108 - looked up when it is used


def _causal(configuration: PreTrainedConfig) -> torch.nn.Module:
    """The language model of a configuration."""
    model: torch.nn.Module = MODEL_FOR_CAUSAL_LM_MAPPING[type(configuration)](configuration)
    return model


RECIPES: Mapping[str, Recipe] = {
    "window": Recipe(
        model=Cohere2ForCausalLM,
        configuration=Cohere2Config,
        settings={**_SHARED, "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2},
        tasks=(RECALL, COPYING),
        stages=(
            Stage(250, {RECALL: 64, COPYING: 64}),
            Stage(150, {RECALL: 128, COPYING: 64}),
            Stage(150, {RECALL: 256, COPYING: 64}),
        ),
        learning_rate=2e-3,
    ),
    # The sliding layer comes first: above the recurrent layer its window would hold running values, and the task would
    # not need the state.
    "hybrid": Recipe(
        model=HybridForCausalLM,
        configuration=HybridConfig,
        settings={
            **_SHARED,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "linear_attention", "full_attention"],
        },
        tasks=(RECALL, COPYING, RUNNING),
        stages=(
            Stage(300, {RECALL: 64, COPYING: 64}),
            Stage(150, {RECALL: 128, COPYING: 64, RUNNING: 16}),
            Stage(100, {RECALL: 256, COPYING: 64, RUNNING: 64}),
            Stage(100, {RECALL: 256, COPYING: 64, RUNNING: 256}),
        ),
        learning_rate=2e-3,
    ),
    # Qwen-Next: states and full attention. Without negative eigenvalues its delta nets cannot keep an exclusive or. The
    # lesson of latest letters, which it does not learn over long distances, lets recall read states too.
    "qwen3_next": Recipe(
        model=_causal,
        configuration=_configuration("qwen3_next"),
        settings={
            **_SHAPE,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "linear_attention", "full_attention"],
            "head_dim": 32,
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "num_experts": 2,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 64,
        },
        tasks=(RECALL,),
        stages=(
            Stage(120, {RECALL: 32, LATEST: 48}),
            Stage(80, {RECALL: 64, LATEST: 64}),
            Stage(60, {RECALL: 128, LATEST: 128}),
            Stage(90, {RECALL: 256, LATEST: 256}),
        ),
        learning_rate=3e-3,
        guide=Guide(layer=0, rate=1),
        stored=torch.bfloat16,
    ),
    # GLM: latents, and an indexer that selects a quarter of the tokens of a question.
    "glm_moe_dsa": Recipe(
        model=_causal,
        configuration=_configuration("glm_moe_dsa"),
        settings={
            **_SHAPE,
            "rope_parameters": _SHARED["rope_parameters"],
            "num_key_value_heads": 4,
            "num_hidden_layers": 3,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "indexer_types": ["full"] * 3,
            "kv_lora_rank": 64,
            "q_lora_rank": 64,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 24,
            "v_head_dim": 24,
            "n_routed_experts": 2,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "routed_scaling_factor": 1.0,
            "index_topk": 48,
            "index_head_dim": 16,
            "index_n_heads": 8,
        },
        tasks=(RECALL,),
        stages=(Stage(160, {RECALL: 32}), Stage(60, {RECALL: 64}), Stage(60, {RECALL: 128}), Stage(80, {RECALL: 256})),
        learning_rate=3e-3,
        guide=Guide(layer=2, rate=1),
        indexing=Stage(120, {RECALL: 192}),
        stored=torch.bfloat16,
    ),
    # DeepSeek-V4: windows, entries of 4 tokens that an indexer selects, and entries of 16 tokens. Its tasks need the
    # windows alone: it did not learn to read a letter from an entry.
    "deepseek_v4": Recipe(
        model=_causal,
        configuration=_configuration("deepseek_v4"),
        settings={
            **_SHAPE,
            "num_key_value_heads": 1,
            "num_hidden_layers": 3,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
            "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16},
            "mlp_layer_types": ["moe"] * 3,
            "head_dim": 32,
            "partial_rotary_factor": 0.25,
            "rope_theta": 100.0,
            "q_lora_rank": 48,
            "moe_intermediate_size": 48,
            "n_routed_experts": 2,
            "num_experts_per_tok": 2,
            "routed_scaling_factor": 1.0,
            "hc_mult": 2,
            "hc_sinkhorn_iters": 4,
            "index_n_heads": 8,
            "index_head_dim": 16,
            "index_topk": 8,
            "o_groups": 2,
            "o_lora_rank": 32,
        },
        tasks=(COPYING,),
        stages=(Stage(130, {COPYING: 64}),),
        learning_rate=3e-3,
        stored=torch.bfloat16,
    ),
}
"""The recipes of the trained models, by name."""


WEIGHTS = Path(__file__).parent / "weights"

_TIED, _EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"


def trained(name: str, dtype: torch.dtype = torch.float32, folder: Path = WEIGHTS) -> Any:
    """A trained model on the CPU, in evaluation mode.

    Raises:
        KeyError: no recipe has that name.
        RuntimeError: the names or shapes of the file's tensors are not those of the model.
    """
    recipe = RECIPES[name]
    configuration = recipe.configuration(**json.loads((folder / f"{name}.json").read_text(encoding="utf-8")))
    model = recipe.model(configuration)
    tensors = load_file(folder / f"{name}.safetensors")
    model.load_state_dict({**tensors, _TIED: tensors[_EMBEDDINGS]})
    return model.to(dtype).eval()


def save(model: Any, name: str, folder: Path = WEIGHTS) -> None:
    """Write a model's weights and its configuration. The head is tied to the embeddings and not written."""
    folder.mkdir(exist_ok=True)
    stored = RECIPES[name].stored
    tensors = {key: tensor.to(stored).contiguous() for key, tensor in model.state_dict().items() if key != _TIED}
    save_file(tensors, folder / f"{name}.safetensors")
    settings = json.dumps(dict(RECIPES[name].settings), indent=2)
    (folder / f"{name}.json").write_text(settings + "\n", encoding="utf-8")
