"""Families that the engine refuses: transformers continues them wrongly, or no pool can hold what they cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .attention import WINDOW
from .family import Family

MAMBA = {"mamba_d_state": 8, "mamba_dt_rank": 8, "use_mamba_kernels": False}
BUG, UNSUPPORTED = "bug", "unsupported"


@dataclass(frozen=True, slots=True)
class Refusal:
    """`kind`: `bug` if transformers loses a state, `unsupported` if no pool can hold it. `reason`: what is lost."""

    family: Family
    kind: str
    reason: str


REFUSALS: Mapping[str, Refusal] = {
    "jamba": Refusal(
        Family("jamba", "sdpa", {**MAMBA, "num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1}),
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
    "deepseek_v4": Refusal(
        Family(
            "deepseek_v4",
            "eager",
            {
                "sliding_window": WINDOW,
                "layer_types": [
                    "sliding_attention",
                    "compressed_sparse_attention",
                    "heavily_compressed_attention",
                    "sliding_attention",
                ],
                "mlp_layer_types": ["moe"] * 4,
                "num_key_value_heads": 1,
                "q_lora_rank": 32,
                "qk_rope_head_dim": 8,
                "moe_intermediate_size": 32,
                "n_routed_experts": 4,
                "num_experts_per_tok": 2,
                "index_n_heads": 16,
                "index_head_dim": 16,
                "index_topk": 16,
                "o_groups": 2,
                "o_lora_rank": 16,
            },
        ),
        UNSUPPORTED,
        "for which there is no pool",
    ),
    "mamba2": Refusal(
        Family("mamba2", "eager", {"num_heads": 4, "head_dim": 32, "state_size": 16, "n_groups": 1, "chunk_size": 16}),
        UNSUPPORTED,
        "takes its cache under another name",
    ),
}
