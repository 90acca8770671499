"""ModelRunner: forwards of one model, each from a position that is said and not guessed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import DynamicCache, PreTrainedModel

from hicache.types import Tokens


class ModelRunner:
    """One sequence at a time: requests that run together take turns."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.device: torch.device = model.device
        self.model_type: str = model.config.get_text_config(decoder=True).model_type

    def new_cache(self) -> DynamicCache:
        """An empty cache with the layers of the model."""
        return DynamicCache(config=self.model.config)

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Leave the memory of a GPU to another process meanwhile."""
        self.model.to("cpu")
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        try:
            yield
        finally:
            self.model.to(self.device)

    @torch.inference_mode()
    def forward(self, tokens: Tokens, start: int, cache: DynamicCache | None) -> torch.Tensor:
        """The logits of tokens that begin at position `start`, which the cache grows by: float32 [tokens, vocabulary].

        Without a cache nothing comes before them.
        """
        # Some models count from zero when they are not told, however much the cache holds.
        positions = torch.arange(start, start + len(tokens), device=self.device)[None]
        ids = torch.from_numpy(tokens).to(self.device, torch.int64)[None]
        answer = self.model(input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=cache is not None)
        logits: torch.Tensor = answer.logits[0].float()
        return logits
