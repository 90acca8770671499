"""RecordedCache: a cache of transformers that records what each forward adds to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicIndexedLayer, DynamicLayer


class RecordedCache:
    """`cache`: the cache that is passed to the model.

    A sliding layer keeps its last window only, but the pages of a chunk need all its tokens.
    """

    def __init__(self, cache: DynamicCache) -> None:
        self.cache = cache
        self._rows: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._index_rows: dict[int, list[torch.Tensor]] = {}
        for number, layer in enumerate(cache.layers):
            if isinstance(layer, DynamicLayer):
                layer.update = self._recording(number, layer.update)
            if isinstance(layer, DynamicIndexedLayer):
                layer.update_indexer = self._recording_index(number, layer.update_indexer)

    def take_rows(self) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values added since the last call, by layer: [tokens, heads, width]. Their widths may differ."""
        taken = {number: _joined(parts) for number, parts in self._rows.items()}
        self._rows.clear()
        return taken

    def take_index_rows(self) -> dict[int, torch.Tensor]:
        """The same of the indexers' keys: [tokens, width]."""
        taken = {number: torch.cat(parts, dim=1)[0] for number, parts in self._index_rows.items()}
        self._index_rows.clear()
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


def _joined(parts: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = (torch.cat(side, dim=2)[0].transpose(0, 1) for side in zip(*parts, strict=True))
    return keys, values
