"""Families that cache one latent for all heads (MLA), and families that select attended tokens by an indexer (DSA)."""

from __future__ import annotations

from collections.abc import Mapping

from .attention import SLIDING, WINDOW
from .family import Family

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
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
}

LATENT_FAMILIES: Mapping[str, Family] = {
    "deepseek_v2": Family("deepseek_v2", "sdpa", {**LATENT, "first_k_dense_replace": 1}),
    "deepseek_v3": Family("deepseek_v3", "sdpa", {**LATENT, "first_k_dense_replace": 1}),
}

INDEXED_FAMILIES: Mapping[str, Family] = {
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
}
