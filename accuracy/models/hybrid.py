"""A model with full, sliding and recurrent layers: Cohere2 with gated delta nets in place of some attention layers."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Cohere2Config, Cohere2ForCausalLM, Cohere2Model
from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.models.olmo_hybrid.modeling_olmo_hybrid import OlmoHybridGatedDeltaNet


class HybridConfig(Cohere2Config):
    """The configuration of Cohere2, and the shape of its recurrent layers, which are initialised for a long memory."""

    model_type = "hybrid"

    linear_num_key_heads: int = 4
    linear_num_value_heads: int = 4
    linear_key_head_dim: int = 8
    linear_value_head_dim: int = 8
    linear_conv_kernel_dim: int = 4
    linear_allow_neg_eigval: bool = True
    linear_a_log_min: float = 1.0
    linear_a_log_max: float = 4.0
    linear_dt_min: float = 1e-4
    linear_dt_max: float = 1e-3
    linear_dt_init_floor: float = 1e-5
    rms_norm_eps: float = 1e-5


class RecurrentLayer(OlmoHybridGatedDeltaNet):
    """A gated delta net with the call signature of attention."""

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None, past_key_values: Cache | None, **_: Any
    ) -> tuple[torch.Tensor, None]:
        return super().forward(hidden_states, cache_params=past_key_values, attention_mask=attention_mask), None


class HybridModel(Cohere2Model):
    """The layers of `HybridForCausalLM`."""

    config: HybridConfig

    def __init__(self, config: HybridConfig) -> None:
        super().__init__(config)
        for index, kind in enumerate(config.layer_types):
            if kind == "linear_attention":
                self.layers[index].self_attn = RecurrentLayer(config, index)

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, past_key_values: Cache | None = None, **kwargs: Any
    ) -> Any:
        embeddings = self.embed_tokens(input_ids)
        mask_options = {
            "config": self.config,
            "inputs_embeds": embeddings,
            "attention_mask": None,
            "past_key_values": past_key_values,
            "position_ids": position_ids,
        }
        # Without layer_idx, transformers before 5.23 takes the length of a recurrent layer, which has none.
        full = self.config.layer_types.index("full_attention")
        masks = {
            "full_attention": create_causal_mask(**mask_options, layer_idx=full),
            "sliding_attention": create_sliding_window_causal_mask(**mask_options),
            "linear_attention": None,
        }
        kwargs |= {"inputs_embeds": embeddings, "attention_mask": masks}
        return super().forward(position_ids=position_ids, past_key_values=past_key_values, **kwargs)


class HybridForCausalLM(Cohere2ForCausalLM):
    """Full layers without positions, sliding layers with positions, and recurrent layers, in `layer_types`' order."""

    config: HybridConfig

    def __init__(self, config: HybridConfig) -> None:
        super().__init__(config)
        self.model = HybridModel(config)
        self.post_init()
