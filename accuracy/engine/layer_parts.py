"""Layer parts: what one layer of a model keeps, in which pool, and how it goes back into a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hicache.testing.adapter import PageBytes
from hicache.types import Pool

from .slot_rows import Piece, from_rows


@dataclass(frozen=True, slots=True)
class AttentionPart:
    """Keys and values of each token. `layer`: its number in the pool. `reach`: tokens that are read, None for all."""

    pool: Pool
    layer: int
    keys: Piece
    values: Piece
    reach: int | None

    @property
    def size_bytes(self) -> int:
        """Bytes in one slot."""
        return self.keys.size_bytes + self.values.size_bytes

    def first_read(self, length: int) -> int:
        """The first position that a reader after `length` tokens needs."""
        return 0 if self.reach is None else max(0, length - self.reach)

    def restore(self, layer: Any, rows: PageBytes, length: int, device: torch.device) -> None:
        """Fill an empty layer of a cache with the rows from `first_read(length)` to `length`."""
        keys, values = from_rows(rows, (self.keys, self.values), device)
        # Side by side per head, as a cache that was never stored holds them: kernels differ by it in the last bit.
        layer.update(*(side.transpose(0, 1)[None].contiguous() for side in (keys, values)))
        if self.reach is not None:
            layer.cumulative_length = length


@dataclass(frozen=True, slots=True)
class IndexPart:
    """The key of each token by which an indexer chooses, beside the keys and values of the same layer."""

    layer: int
    keys: Piece

    def restore(self, layer: Any, rows: PageBytes, device: torch.device) -> None:
        """Fill the indexer of a layer with the rows of all tokens."""
        (keys,) = from_rows(rows, (self.keys,), device)
        layer.update_indexer(keys[None])


@dataclass(frozen=True, slots=True)
class StateField:
    """One state of a layer. `kind`: "conv" or "recurrent". `index`: which of the layer's states of that kind."""

    kind: str
    index: int
    piece: Piece

    def take(self, layer: Any) -> torch.Tensor:
        """The state as the layer holds it: [1, *shape]."""
        state: torch.Tensor = getattr(layer, f"{self.kind}_states")[self.index]
        return state

    def restore(self, layer: Any, state: torch.Tensor) -> None:
        """Put the state into an empty layer."""
        update: Callable[..., Any] = getattr(layer, f"update_{self.kind}_state")
        update(state, self.index)
        # Without this mark a state is there and is not looked at.
        layer.has_previous_state[self.index] = True


@dataclass(frozen=True, slots=True)
class StatePart:
    """All states of one layer, which are those after the last token that was computed."""

    layer: int
    fields: tuple[StateField, ...]

    def size_bytes(self, kind: str) -> int:
        """Bytes of the states of a kind."""
        return sum(field.piece.size_bytes for field in self.fields if field.kind == kind)

    def take(self, layer: Any) -> Sequence[torch.Tensor]:
        """The states, in the order in which they are kept: each [1, *shape]."""
        return [field.take(layer) for field in self.fields]

    def restore(self, layer: Any, rows: PageBytes, device: torch.device) -> None:
        """Put the states of one row into an empty layer."""
        states = from_rows(rows, [field.piece for field in self.fields], device)
        for field, state in zip(self.fields, states, strict=True):
            field.restore(layer, state)


@dataclass(frozen=True, slots=True)
class LayerParts:
    """What one layer keeps, each None where it keeps no such thing."""

    attention: AttentionPart | None
    index: IndexPart | None
    states: StatePart | None
