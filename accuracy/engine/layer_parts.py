"""Layer parts: the data that one layer of a model caches, its pool, and how it is restored into a cache."""

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
    """Keys and values of each token.

    `layer`: the number of the layer in its pool. `reach`: how many tokens before the next one it reads, None for all.
    """

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
        """The first position that the token after `length` tokens reads."""
        return 0 if self.reach is None else max(0, length - self.reach)

    def restore(self, layer: Any, rows: PageBytes, length: int, device: torch.device) -> None:
        """Fill an empty layer of a cache with the rows from `first_read(length)` to `length`."""
        keys, values = from_rows(rows, (self.keys, self.values), device)
        # Contiguous per head, as in a cache that was never stored: the strides change a kernel's last bit.
        layer.update(*(side.transpose(0, 1)[None].contiguous() for side in (keys, values)))
        if self.reach is not None:
            layer.cumulative_length = length


@dataclass(frozen=True, slots=True)
class IndexPart:
    """The indexer's key of each token, in a layer that also caches keys and values."""

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
        # Without this mark the layer ignores the state.
        layer.has_previous_state[self.index] = True


@dataclass(frozen=True, slots=True)
class StatePart:
    """All states of one layer, after the last computed token."""

    layer: int
    fields: tuple[StateField, ...]

    def size_bytes(self, kind: str) -> int:
        """Bytes of the states of a kind."""
        return sum(field.piece.size_bytes for field in self.fields if field.kind == kind)

    def take(self, layer: Any) -> Sequence[torch.Tensor]:
        """The states, in the order of `fields`: each [1, *shape]."""
        return [field.take(layer) for field in self.fields]

    def restore(self, layer: Any, rows: PageBytes, device: torch.device) -> None:
        """Put the states of one row into an empty layer."""
        states = from_rows(rows, [field.piece for field in self.fields], device)
        for field, state in zip(self.fields, states, strict=True):
            field.restore(layer, state)


@dataclass(frozen=True, slots=True)
class LayerParts:
    """What one layer caches. A part is None if the layer has none."""

    attention: AttentionPart | None
    index: IndexPart | None
    states: StatePart | None
