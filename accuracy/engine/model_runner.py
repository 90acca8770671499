"""ModelRunner: forwards of one model, each from an explicit position."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import DynamicCache, PreTrainedModel

from hicache.types import Tokens


class ModelRunner:
    """Computes one sequence at a time."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.device: torch.device = model.device
        self.model_type: str = model.config.get_text_config(decoder=True).model_type

    def new_cache(self) -> DynamicCache:
        """An empty cache with the layers of the model."""
        return DynamicCache(config=self.model.config)

    @contextmanager
    def off_device(self) -> Iterator[None]:
        """Move the model to the CPU during the context, so that another process can use the memory of the GPU."""
        self.model.to("cpu")
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        try:
            yield
        finally:
            self.model.to(self.device)

    @torch.inference_mode()
    def forward(self, tokens: Tokens, start: int, cache: DynamicCache | None) -> torch.Tensor:
        """The logits of tokens that begin at position `start`: float32 [tokens, vocabulary].

        The tokens are added to the cache. Without a cache they are the beginning of a text.
        """
        # Without positions some models count from zero, even if the cache has tokens.
        positions = torch.arange(start, start + len(tokens), device=self.device)[None]
        ids = torch.from_numpy(tokens).to(self.device, torch.int64)[None]
        answer = self.model(input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=cache is not None)
        logits: torch.Tensor = answer.logits[0].float()
        return logits
