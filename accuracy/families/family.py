"""Family: one architecture as a tiny model with random weights, the same on every machine."""

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
        """The model, its weights drawn from SEED in float32 and then rounded."""
        config = AutoConfig.for_model(self.model_type, **{**SIZES, **self.options})
        torch.manual_seed(SEED)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=self.attention, dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(WEIGHT_FACTOR)
        opened: PreTrainedModel = model.to(device=device, dtype=dtype).eval()
        return opened
