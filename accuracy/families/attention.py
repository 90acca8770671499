"""Families with full attention in every layer, and families with sliding windows in some layers."""

from __future__ import annotations

from collections.abc import Mapping

from .family import Family

WINDOW = 24
SLIDING, FULL = "sliding_attention", "full_attention"
WINDOWED = {"sliding_window": WINDOW, "layer_types": [SLIDING, FULL, SLIDING, FULL]}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}

FULL_FAMILIES: Mapping[str, Family] = {
    "llama": Family("llama", "sdpa", {}),
    "qwen3": Family("qwen3", "sdpa", {}),
}

WINDOW_FAMILIES: Mapping[str, Family] = {
    "gemma3": Family("gemma3_text", "sdpa", WINDOWED),
    "gpt_oss": Family("gpt_oss", "eager", {**WINDOWED, "num_local_experts": 2, "num_experts_per_tok": 2}),
    "mistral": Family("mistral", "sdpa", {"sliding_window": WINDOW}),
    "cohere2": Family("cohere2", "sdpa", {**WINDOWED, "logit_scale": 1.0}),
    "olmo3": Family("olmo3", "sdpa", WINDOWED),
    "mimo_v2_flash": Family(
        "mimo_v2_flash",
        "eager",
        {**WINDOWED, **EXPERTS, "v_head_dim": 8, "n_routed_experts": 2, "mlp_layer_types": ["dense", *["sparse"] * 3]},
    ),
}
