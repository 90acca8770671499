"""Families with full attention, sliding windows and states."""

from __future__ import annotations

from collections.abc import Mapping

from .attention import FULL, SLIDING, WINDOW
from .family import Family

PAIRED = {"layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid"]}

THREE_WAY_FAMILIES: Mapping[str, Family] = {
    "lfm3": Family("lfm3", "sdpa", {"layer_types": ["conv", SLIDING, "conv", FULL], "sliding_window": WINDOW}),
    "zaya": Family(
        "zaya",
        "sdpa",
        {
            **PAIRED,
            "sliding_window": WINDOW,
            "num_experts": 1,
            "moe_intermediate_size": 32,
            "router_hidden_size": 16,
        },
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
