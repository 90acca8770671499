"""Families: every architecture as a tiny model with random weights, by kind, and those that the engine refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCABULARY = 96
SEED = 7

WEIGHT_FACTOR = 4.0
"""A factor for every matrix: with the drawn weights, the logits of different prompts hardly differ."""

SIZES: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
"""The configuration of every family, unless its options override it.

Families with experts use all of them: which few are chosen would depend on the last bit of bfloat16.
"""


@dataclass(frozen=True, slots=True)
class Family:
    """`model_type`: its name in transformers. `attention`: the attention implementation. `options`: override SIZES."""

    model_type: str
    attention: str
    options: Mapping[str, Any]

    @property
    def is_known(self) -> bool:
        """Whether the installed version of transformers has it."""
        return self.model_type in CONFIG_MAPPING

    def open(self, dtype: torch.dtype, device: str) -> PreTrainedModel:
        """The model, its weights drawn from SEED in float32 and then rounded. Matrices of zeros are drawn too."""
        config = AutoConfig.for_model(self.model_type, **{**SIZES, **self.options})
        torch.manual_seed(SEED)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=self.attention, dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    # Without an effect, it would not be noticed that a bias is lost.
                    (parameter if parameter.any() else parameter.normal_()).mul_(WEIGHT_FACTOR)
        opened: PreTrainedModel = model.to(device=device, dtype=dtype).eval()
        return opened


WINDOW = 24
SLIDING, LINEAR, FULL = "sliding_attention", "linear_attention", "full_attention"
COMPRESSED, HEAVILY_COMPRESSED = "compressed_sparse_attention", "heavily_compressed_attention"
WINDOWED = {"sliding_window": WINDOW, "layer_types": [SLIDING, FULL, SLIDING, FULL]}
DENSE_FIRST = ["dense", "sparse", "sparse", "sparse"]
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}

LINEAR_TYPES = {"layer_types": [LINEAR, FULL, LINEAR, FULL]}
HEADS = {
    **LINEAR_TYPES,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_chunk_size": 16}
LINEAR_LATENT = {
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "moe_intermediate_size": 32,
    "num_shared_experts": 1,
    "num_experts": 2,
    "num_experts_per_token": 2,
    "mlp_layer_types": DENSE_FIRST,
    "linear_head_dim": 16,
    "linear_num_heads": 4,
    "num_key_value_heads": 4,
    **LINEAR_TYPES,
}

LATENT = {
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
    "n_routed_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
}
INDEXED = {
    **LATENT,
    "index_topk": 48,
    "index_head_dim": 16,
    # With few heads scores tie at zero, and then the selection depends on the length of the tensor.
    "index_n_heads": 16,
    "mlp_layer_types": DENSE_FIRST,
}

PAIRED = {"layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid"]}

FAMILIES: Mapping[str, Family] = {
    # Full attention in every layer.
    "llama": Family("llama", "sdpa", {}),
    "qwen3": Family("qwen3", "sdpa", {}),
    # Sliding windows in some layers, or in all.
    "gemma3": Family("gemma3_text", "sdpa", WINDOWED),
    "gpt_oss": Family("gpt_oss", "eager", {**WINDOWED, "num_local_experts": 2, "num_experts_per_tok": 2}),
    "mistral": Family("mistral", "sdpa", {"sliding_window": WINDOW}),
    "cohere2": Family("cohere2", "sdpa", {**WINDOWED, "logit_scale": 1.0}),
    "olmo3": Family("olmo3", "sdpa", WINDOWED),
    "mimo_v2_flash": Family(
        "mimo_v2_flash",
        "eager",
        {**WINDOWED, **EXPERTS, "v_head_dim": 8, "n_routed_experts": 2, "mlp_layer_types": DENSE_FIRST},
    ),
    # States of fixed size in some layers, attention in the others: delta nets.
    "qwen3_next": Family(
        "qwen3_next",
        "sdpa",
        {
            **HEADS,
            "num_experts": 2,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
        },
    ),
    "qwen3_5": Family("qwen3_5_text", "sdpa", HEADS),
    "olmo_hybrid": Family("olmo_hybrid", "sdpa", {**HEADS, "linear_num_key_heads": 4}),
    "kimi_linear": Family("kimi_linear", "sdpa", LINEAR_LATENT),
    "bailing_hybrid": Family("bailing_hybrid", "sdpa", {**LINEAR_LATENT, "num_expert_group": 1, "topk_group": 1}),
    # States of fixed size: Mamba2.
    "bamba": Family("bamba", "sdpa", {**MAMBA, "attn_layer_indices": [1, 3]}),
    "nemotron_h": Family(
        "nemotron_h",
        "sdpa",
        {
            "layers_block_type": [LINEAR, "moe", FULL, "mlp", LINEAR, FULL],
            "num_hidden_layers": 6,
            "ssm_state_size": 16,
            "mamba_num_heads": 4,
            "mamba_head_dim": 32,
            "n_groups": 1,
            "chunk_size": 16,
            "n_routed_experts": 2,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 32,
        },
    ),
    "falcon_h1": Family("falcon_h1", "sdpa", {**MAMBA, "mamba_d_ssm": 128}),
    "granitemoehybrid": Family(
        "granitemoehybrid", "sdpa", {**MAMBA, **LINEAR_TYPES, "shared_intermediate_size": 64, "num_local_experts": 2}
    ),
    "zamba2": Family(
        "zamba2",
        "sdpa",
        {
            "layers_block_type": [LINEAR, "hybrid", LINEAR, "hybrid"],
            "mamba_d_state": 16,
            "n_mamba_heads": 4,
            "mamba_ngroups": 1,
            "chunk_size": 16,
            "num_key_value_heads": 4,
            "adapter_rank": 8,
        },
    ),
    # States of fixed size: convolutions.
    "lfm2": Family("lfm2", "sdpa", {"layer_types": ["conv", FULL, "conv", FULL]}),
    # One latent for all heads (MLA).
    "deepseek_v2": Family("deepseek_v2", "sdpa", {**LATENT, "first_k_dense_replace": 1}),
    "deepseek_v3": Family("deepseek_v3", "sdpa", {**LATENT, "first_k_dense_replace": 1}),
    # An indexer selects the attended tokens (DSA).
    "deepseek_v32": Family("deepseek_v32", "sdpa", INDEXED),
    "glm_moe_dsa": Family("glm_moe_dsa", "sdpa", INDEXED),
    "dots3_note": Family(
        "dots3_note_text",
        "sdpa",
        {
            **INDEXED,
            "layer_types": ["indexed_attention", SLIDING, "indexed_attention", SLIDING],
            "sliding_window": WINDOW,
            "head_dim": 32,
            "shared_experts_intermediate_size": 32,
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 4,
            "swa_q_lora_rank": 32,
            "swa_kv_lora_rank": 48,
            "swa_head_dim": 32,
            "swa_qk_nope_head_dim": 16,
            "swa_v_head_dim": 16,
        },
    ),
    # Sliding windows, and entries that several tokens have together: with an indexer that selects them, and without.
    "deepseek_v4": Family(
        "deepseek_v4",
        "eager",
        {
            "sliding_window": WINDOW,
            "layer_types": [SLIDING, COMPRESSED, HEAVILY_COMPRESSED, COMPRESSED],
            "compress_rates": {COMPRESSED: 4, HEAVILY_COMPRESSED: 16},
            "mlp_layer_types": ["moe"] * 4,
            "num_key_value_heads": 1,
            "q_lora_rank": 32,
            "qk_rope_head_dim": 8,
            "moe_intermediate_size": 32,
            "n_routed_experts": 2,
            "num_experts_per_tok": 2,
            "index_n_heads": 16,
            "index_head_dim": 16,
            "index_topk": 16,
            "o_groups": 2,
            "o_lora_rank": 16,
        },
    ),
    # Full attention, sliding windows and states.
    "lfm3": Family("lfm3", "sdpa", {"layer_types": ["conv", SLIDING, "conv", FULL], "sliding_window": WINDOW}),
    "zaya": Family(
        "zaya",
        "sdpa",
        {**PAIRED, "sliding_window": WINDOW, "num_experts": 1, "moe_intermediate_size": 32, "router_hidden_size": 16},
    ),
    "inkling": Family(
        "inkling_text",
        "sdpa",
        {
            **PAIRED,
            "sliding_window_size": WINDOW,
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 2,
            "swa_head_dim": 16,
            "d_rel": 4,
            "rel_extent": 64,
            "n_routed_experts": 2,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "n_shared_experts": 1,
            "logits_mup_width_multiplier": 1.0,
        },
    ),
}
"""Every family that the engine serves, by its name."""

REPRESENTATIVES = ("qwen3", "gemma3", "qwen3_next", "bamba", "deepseek_v32", "deepseek_v4", "lfm3", "zaya")
"""One family of each kind, for tests that do not run on every family."""


JAMBA_STATES = {"mamba_d_state": 8, "mamba_dt_rank": 8, "use_mamba_kernels": False}
BUG, UNSUPPORTED = "bug", "unsupported"


@dataclass(frozen=True, slots=True)
class Refusal:
    """`kind`: `bug` if transformers loses a state, `unsupported` if no pool can hold it. `reason`: what is lost."""

    family: Family
    kind: str
    reason: str


REFUSALS: Mapping[str, Refusal] = {
    "jamba": Refusal(
        Family("jamba", "sdpa", {**JAMBA_STATES, "num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1}),
        BUG,
        "several tokens at once start from an empty state",
    ),
    "recurrent_gemma": Refusal(
        Family(
            "recurrent_gemma",
            "sdpa",
            {"lru_width": 64, "attention_window_size": WINDOW, "block_types": ["recurrent", "attention"]},
        ),
        BUG,
        "its recurrent state is kept in the modules",
    ),
    "minimax": Refusal(
        Family("minimax", "sdpa", {"num_local_experts": 2, "block_size": 16}), UNSUPPORTED, "kept in a cache of its own"
    ),
    "mamba2": Refusal(
        Family("mamba2", "eager", {"num_heads": 4, "head_dim": 32, "state_size": 16, "n_groups": 1, "chunk_size": 16}),
        UNSUPPORTED,
        "takes its cache under another name",
    ),
}
"""The families that the engine refuses: transformers continues them wrongly, or no pool can hold what they cache."""
