"""ModelRunner: the forwards of one model, what each adds to a cache, and the divergence between two answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicIndexedLayer, DynamicLayer

from hicache.fingerprint import fingerprint_of_model
from hicache.types import Tokens


class ModelRunner:
    """Computes one sequence, or several that are padded to one width."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.device: torch.device = model.device
        self.model_type: str = model.config.get_text_config(decoder=True).model_type

    def new_cache(self) -> DynamicCache:
        """An empty cache with the layers of the model."""
        return DynamicCache(config=self.model.config)

    @cached_property
    def fingerprint(self) -> str:
        """What identifies the model in storage: its configuration, and the commit or the name of its weights."""
        config = self.model.config
        revision = getattr(config, "_commit_hash", None) or config.name_or_path or "drawn from a seed"
        table = json.loads(config.to_json_string(use_diff=False))
        return fingerprint_of_model(table, revision=revision, dtype=str(self.model.dtype))

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

    def position_bias(self, layer: int, compressor: str) -> torch.Tensor:
        """What the compressor of that name adds to the gates of each entry: [tokens, width]."""
        main = self.model.get_decoder().layers[layer].self_attn.compressor
        # The main one is called "compressor", and has the indexer's as a part.
        bias: torch.Tensor = getattr(main, compressor, main).position_bias
        return bias

    @torch.inference_mode()
    def forward_padded(
        self,
        ids: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int64],
        mask: npt.NDArray[np.int64],
        cache: DynamicCache,
    ) -> torch.Tensor:
        """The logits of several rows, float32 [rows, tokens, vocabulary], padding included.

        `ids`, `positions`: [rows, tokens]. `mask`: [rows, cached tokens and tokens], 0 where no token of its row is.
        """
        whole, where, visible = (torch.from_numpy(one).to(self.device, torch.int64) for one in (ids, positions, mask))
        answer = self.model(
            input_ids=whole, position_ids=where, attention_mask=visible, past_key_values=cache, use_cache=True
        )
        logits: torch.Tensor = answer.logits.float()
        return logits


class RecordedCache:
    """`cache`: the cache that is passed to the model.

    A sliding layer keeps its last window only, but the pages of a chunk need all its tokens. A compressor keeps less of
    what it projects: only that of the tokens without an entry yet.
    """

    def __init__(self, cache: DynamicCache) -> None:
        self.cache = cache
        self._rows: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._index_rows: dict[int, list[torch.Tensor]] = {}
        self._projections: dict[tuple[int, str], list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._entries: dict[tuple[int, str], list[torch.Tensor]] = {}
        for number, layer in enumerate(cache.layers):
            if isinstance(layer, DynamicLayer):
                layer.update = self._recording(number, layer.update)
            if isinstance(layer, DynamicIndexedLayer):
                layer.update_indexer = self._recording_index(number, layer.update_indexer)
            if compressors_of(layer):
                layer.store_compression_weights = self._recording_projections(number, layer.store_compression_weights)
                layer.update_compressor_states = self._recording_entries(number, layer.update_compressor_states)

    def take_rows(self) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values added since the last call, by layer: [tokens, heads, width]. Their widths may differ."""
        return {
            number: (keys[0].transpose(0, 1), values[0].transpose(0, 1))
            for number, (keys, values) in self.take_batches().items()
        }

    def take_batches(self) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        """The same of several rows: [rows, heads, tokens, width]."""
        taken = {number: _joined(parts) for number, parts in self._rows.items()}
        self._rows.clear()
        return taken

    def take_index_rows(self) -> dict[int, torch.Tensor]:
        """The same of the indexers' keys: [tokens, width]."""
        taken = {number: torch.cat(parts, dim=1)[0] for number, parts in self._index_rows.items()}
        self._index_rows.clear()
        return taken

    def take_projections(self) -> dict[tuple[int, str], tuple[torch.Tensor, torch.Tensor]]:
        """What each compressor projected since the last call, values and gates: [tokens, width].

        By layer and by the name of the compressor, here and in `take_entries`.
        """
        taken = {
            one: (torch.cat(values, dim=1)[0], torch.cat(gates, dim=1)[0])
            for one, parts in self._projections.items()
            for values, gates in [zip(*parts, strict=True)]
        }
        self._projections.clear()
        return taken

    def take_entries(self) -> dict[tuple[int, str], torch.Tensor]:
        """The entries that each compressor added since the last call: [entries, width], often none."""
        taken = {one: torch.cat(parts, dim=1)[0] for one, parts in self._entries.items()}
        self._entries.clear()
        return taken

    def _recording(self, number: int, update: Callable[..., Any]) -> Callable[..., Any]:
        def record(keys: torch.Tensor, values: torch.Tensor, *args: Any, **options: Any) -> Any:
            self._rows.setdefault(number, []).append((keys, values))
            return update(keys, values, *args, **options)

        return record

    def _recording_index(self, number: int, update: Callable[..., Any]) -> Callable[..., Any]:
        def record(keys: torch.Tensor, *args: Any, **options: Any) -> Any:
            self._index_rows.setdefault(number, []).append(keys)
            return update(keys, *args, **options)

        return record

    def _recording_projections(self, number: int, store: Callable[..., Any]) -> Callable[..., Any]:
        def record(compressor: str, values: torch.Tensor, gates: torch.Tensor) -> Any:
            self._projections.setdefault((number, compressor), []).append((values, gates))
            return store(compressor, values, gates)

        return record

    def _recording_entries(self, number: int, update: Callable[..., Any]) -> Callable[..., Any]:
        def record(compressor: str, entries: torch.Tensor) -> Any:
            self._entries.setdefault((number, compressor), []).append(entries)
            return update(compressor, entries)

        return record


def compressors_of(layer: Any) -> tuple[str, ...]:
    """The names of the compressors of a layer of a cache: none but in the layers of DeepSeek-V4 that compress."""
    return tuple(getattr(layer, "compressed_kv", ()))


def _joined(parts: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = (torch.cat(side, dim=2) for side in zip(*parts, strict=True))
    return keys, values


def divergence(expected: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
    """Kullback-Leibler divergence per token, in nats: float64 [tokens], from two logits [tokens, vocabulary]."""
    expected, answer = (logits.double().log_softmax(-1) for logits in (expected, answer))
    nats: torch.Tensor = (expected.exp() * (expected - answer)).sum(-1)
    return nats
