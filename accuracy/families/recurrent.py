"""Families with states of fixed size in some layers (delta nets, Mamba2, convolutions), and attention in the others."""

from __future__ import annotations

from collections.abc import Mapping

from .family import Family

LINEAR, FULL = "linear_attention", "full_attention"
LINEAR_TYPES = {"layer_types": [LINEAR, FULL, LINEAR, FULL]}
HEADS = {
    **LINEAR_TYPES,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_chunk_size": 16}
DENSE_FIRST = ["dense", "sparse", "sparse", "sparse"]
LATENT = {
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

DELTA_FAMILIES: Mapping[str, Family] = {
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
    "kimi_linear": Family("kimi_linear", "sdpa", LATENT),
    "bailing_hybrid": Family("bailing_hybrid", "sdpa", {**LATENT, "num_expert_group": 1, "topk_group": 1}),
}

MAMBA_FAMILIES: Mapping[str, Family] = {
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
}

CONVOLUTION_FAMILIES: Mapping[str, Family] = {
    "lfm2": Family("lfm2", "sdpa", {"layer_types": ["conv", FULL, "conv", FULL]}),
}
