"""ModelLayout: what each layer of a model caches, found by running a few tokens through the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from itertools import count
from typing import Any

import numpy as np
import torch
from transformers import cache_utils
from transformers.cache_utils import (
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from hicache.types import Pool

from .layer_parts import AttentionPart, IndexPart, LayerParts, StateField, StatePart
from .model_runner import ModelRunner
from .recorded_cache import RecordedCache
from .refusal import REFUSED, RefusedFamily
from .slot_rows import Piece

KNOWN_LAYERS = (
    # The class of a layer without a cache; transformers before 5.23 has none.
    *([cache_utils.DummyLayer] if hasattr(cache_utils, "DummyLayer") else []),
    DynamicLayer,
    DynamicIndexedLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
)

PROBE_TOKENS = 2


@dataclass(frozen=True, slots=True)
class ModelLayout:
    """`layers`: in the order of the model. `dtype`: of its weights."""

    layers: tuple[LayerParts, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, runner: ModelRunner) -> ModelLayout:
        """Inspect what a model caches. Raises RefusedFamily when no pool can hold what a layer caches."""
        if runner.model_type in REFUSED:
            raise RefusedFamily(runner.model_type, REFUSED[runner.model_type])
        if "past_key_values" not in signature(runner.model.forward).parameters:
            raise RefusedFamily(runner.model_type, "it takes its cache under another name than past_key_values")
        recorded = RecordedCache(runner.new_cache())
        for number, layer in enumerate(recorded.cache.layers):
            if type(layer) not in KNOWN_LAYERS:
                reason = f"layer {number} is kept in a {type(layer).__name__}, for which there is no pool"
                raise RefusedFamily(runner.model_type, reason)
        runner.forward(np.arange(PROBE_TOKENS, dtype=np.int32), 0, recorded.cache)
        return cls(tuple(_parts(recorded)), runner.model.dtype)

    @property
    def attention(self) -> list[AttentionPart]:
        """The parts of the layers with attention, in order."""
        return [parts.attention for parts in self.layers if parts.attention is not None]

    @property
    def states(self) -> list[StatePart]:
        """The parts of the layers with states, in order."""
        return [parts.states for parts in self.layers if parts.states is not None]

    @property
    def index(self) -> list[IndexPart]:
        """The parts of the layers with an indexer, in order."""
        return [parts.index for parts in self.layers if parts.index is not None]

    @property
    def window_tokens(self) -> int | None:
        """How many tokens before the next one the widest sliding layer reads, or None without such layers."""
        return max((part.reach for part in self.attention if part.reach is not None), default=None)


def _parts(recorded: RecordedCache) -> Iterator[LayerParts]:
    rows, index_rows = recorded.take_rows(), recorded.take_index_rows()
    numbers = {pool: count() for pool in Pool}
    for number, layer in enumerate(recorded.cache.layers):
        attention = _attention(layer, *rows[number], numbers) if number in rows else None
        index = None
        if number in index_rows:
            assert attention is not None, f"layer {number} has an indexer: expected attention, got none"
            index = IndexPart(attention.layer, _piece(index_rows[number]))
        fields = tuple(_fields(layer)) if isinstance(layer, LinearAttentionLayer) else ()
        yield LayerParts(attention, index, StatePart(next(numbers[Pool.MAMBA]), fields) if fields else None)


def _attention(
    layer: Any, keys: torch.Tensor, values: torch.Tensor, numbers: Mapping[Pool, Iterator[int]]
) -> AttentionPart:
    is_sliding = isinstance(layer, DynamicSlidingWindowLayer)
    pool = Pool.SWA if is_sliding else Pool.KV
    # The window includes the token that reads, which is not cached yet.
    reach = layer.sliding_window - 1 if is_sliding else None
    return AttentionPart(pool, next(numbers[pool]), _piece(keys), _piece(values), reach)


def _fields(layer: LinearAttentionLayer) -> Iterator[StateField]:
    for kind, states in (("conv", layer.conv_states), ("recurrent", layer.recurrent_states)):
        for index, state in states.items():
            if state is not None:
                yield StateField(kind, index, _piece(state))


def _piece(tensor: torch.Tensor) -> Piece:
    return Piece(tuple(tensor.shape[1:]), tensor.dtype)
