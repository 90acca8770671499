"""Batch: the next tokens of several requests in one padded forward, each row over its own cache.

A row is its cache, padded at the left, and its new tokens, padded at the right. The tokens of a row are contiguous, so
that causal masks and windows count the same distances as in a forward of this row alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from hicache.types import Tokens

from .model_layout import ModelLayout
from .model_runner import ModelRunner, RecordedCache


@dataclass(frozen=True, slots=True, eq=False)
class BatchRow:
    """`tokens`: to compute. `start`: the position of the first one, which is the number of tokens in `recorded`."""

    tokens: Tokens
    start: int
    recorded: RecordedCache


def can_batch(layout: ModelLayout) -> bool:
    """Whether every layer caches tokens, which a mask can hide. States, indexers and compressors take in padding."""
    return not layout.states and not layout.index and not layout.compressors


def forward_rows(runner: ModelRunner, rows: Sequence[BatchRow]) -> list[torch.Tensor]:
    """The logits of each row, float32 [tokens, vocabulary]. What was computed is added to the cache of each row.

    A single row is computed without padding, as `ModelRunner.forward` does.
    """
    if len(rows) == 1:
        row = rows[0]
        return [runner.forward(row.tokens, row.start, row.recorded.cache)]
    cached, width = max(row.start for row in rows), max(len(row.tokens) for row in rows)
    batched = RecordedCache(_padded_cache(runner, rows, cached))
    ids = np.zeros((len(rows), width), dtype=np.int32)
    positions = np.zeros((len(rows), width), dtype=np.int64)
    # Padding at the right is after every token that is read. It stays visible to itself: a token that sees none is NaN.
    mask = np.ones((len(rows), cached + width), dtype=np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row.tokens)] = row.tokens
        positions[number] = row.start + np.minimum(np.arange(width), len(row.tokens) - 1)
        mask[number, : cached - row.start] = 0
    logits = runner.forward_padded(ids, positions, mask, batched.cache)
    for layer, (keys, values) in batched.take_batches().items():
        for number, row in enumerate(rows):
            own = slice(number, number + 1)
            length = len(row.tokens)
            row.recorded.cache.layers[layer].update(keys[own, :, :length], values[own, :, :length])
    return [logits[number, : len(row.tokens)] for number, row in enumerate(rows)]


def _padded_cache(runner: ModelRunner, rows: Sequence[BatchRow], cached: int) -> DynamicCache:
    """A cache of all rows, each with zeros before its own tokens, `cached` tokens long."""
    cache = runner.new_cache()
    for number, layer in enumerate(cache.layers if cached else ()):
        if isinstance(layer, DynamicLayer):
            own = [row.recorded.cache.layers[number] for row in rows]
            layer.update(_padded([one.keys for one in own]), _padded([one.values for one in own]))
            if isinstance(layer, DynamicSlidingWindowLayer):
                layer.cumulative_length = cached
    return cache


def _padded(rows: Sequence[Any]) -> torch.Tensor:
    """Stack [1, heads, tokens, width] with zeros at the left; a row without tokens may be None."""
    longest = max((one for one in rows if one is not None), key=lambda one: one.shape[2])
    filled = [longest[:, :, :0] if one is None else one for one in rows]
    missing = [longest.shape[2] - one.shape[2] for one in filled]
    pad = torch.nn.functional.pad
    return torch.cat([pad(one, (0, 0, count, 0)) for one, count in zip(filled, missing, strict=True)])
