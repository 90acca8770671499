"""ModelLayout: what each layer of a model caches, in which pool, and how its bytes are written and restored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import count
from math import lcm, prod
from typing import Any, Protocol

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

from hicache.testing.adapter import PageBytes
from hicache.testing.violation import violation
from hicache.types import Pool, Slots

from .model_runner import ModelRunner, RecordedCache, compressors_of


@dataclass(frozen=True, slots=True)
class Piece:
    """One tensor of a slot: its shape without the axis of the slots."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        """Bytes in one slot."""
        return prod(self.shape) * self.dtype.itemsize


def to_rows(tensors: Sequence[torch.Tensor], width: int) -> PageBytes:
    """Pack tensors [slots, ...] one after the other: uint8 [slots, width], with zeros after them."""
    slots = len(tensors[0])
    packed = torch.cat([tensor.reshape(slots, -1).contiguous().view(torch.uint8) for tensor in tensors], dim=1)
    rows = np.zeros((slots, width), dtype=np.uint8)
    rows[:, : packed.shape[1]] = packed.cpu().numpy()
    return rows


def from_rows(rows: PageBytes, pieces: Sequence[Piece], device: torch.device) -> list[torch.Tensor]:
    """Unpack the tensors [slots, *shape] of rows that `to_rows` packed."""
    tensors, start = [], 0
    for piece in pieces:
        own = np.ascontiguousarray(rows[:, start : start + piece.size_bytes])
        # Flat first: without rows an array has strides of 0, with which no other dtype can view it.
        flat = torch.from_numpy(own).reshape(-1).view(piece.dtype)
        tensors.append(flat.reshape(len(rows), *piece.shape).to(device))
        start += piece.size_bytes
    return tensors


@dataclass(frozen=True, slots=True)
class AttentionPart:
    """Keys and values of each token.

    `layer`: the number of the layer in its pool. `reach`: how many tokens before the next one it reads, None for all.
    """

    pool: str
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


@dataclass(frozen=True, slots=True, eq=False)
class CompressorPart:
    """One entry for every `rate` tokens, and what is projected of each token: a value and a gate for its entry.

    `name`: as the layer of the cache calls it. `pool`: of the entries, such as `indexer_4`. `layer`: the number of the
    layer in it. `window_layer`: the number of the layer in SWA that has the projections. `bias`: what the gates of an
    entry have added, if each entry also reads the tokens of the entry before; otherwise None.
    """

    name: str
    rate: int
    pool: str
    layer: int
    entry: Piece
    window_layer: int
    projections: tuple[Piece, Piece]
    bias: torch.Tensor | None

    @property
    def projected_bytes(self) -> int:
        """Bytes in one slot of SWA."""
        return sum(piece.size_bytes for piece in self.projections)

    @property
    def reach(self) -> int:
        """The most tokens before the next one whose projections it reads: those without an entry, and those before."""
        return self.rate - 1 + (0 if self.bias is None else self.rate)

    def first_read(self, length: int) -> int:
        """The first position whose projections the token after `length` tokens reads."""
        in_entries = length - length % self.rate
        return in_entries if self.bias is None else max(0, in_entries - self.rate)

    def entries(self, slots: Slots) -> Slots:
        """The entries whose last token is in these slots: pages start at multiples of `rate` (POOL-4)."""
        entries: Slots = slots[slots % self.rate == self.rate - 1] // self.rate
        return entries

    def restore(self, layer: Any, entries: PageBytes, rows: PageBytes, length: int, device: torch.device) -> None:
        """Fill the compressor of an empty layer. `rows`: the projections from `first_read(length)` to `length`."""
        (compressed,) = from_rows(entries, (self.entry,), device)
        layer.update_compressor_states(self.name, compressed[None])
        values, gates = (side[None] for side in from_rows(rows, self.projections, device))
        if self.bias is not None and length >= self.rate:
            # A layer keeps the gates of the last entry with their bias, and those of later tokens without it.
            last_values, last_gates = (side[:, None, : self.rate] for side in (values, gates))
            layer.update_overlap_state(self.name, last_values, last_gates + self.bias.detach(), *self.entry.shape)
        start = values.shape[1] - length % self.rate
        layer.store_compression_weights(self.name, values[:, start:], gates[:, start:])


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
    compressors: tuple[CompressorPart, ...]

    def compressor(self, name: str) -> CompressorPart:
        """The compressor of this name."""
        found = next((part for part in self.compressors if part.name == name), None)
        assert found is not None, f"the layer has a {name} now, and had none when the model was inspected"
        return found


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

COMPRESSING_LAYERS = ("DeepseekV4HCACache", "DeepseekV4CSACache")
"""By name, since they are defined beside their model, which not every release of transformers has."""

PROBE_TOKENS = 2
DROPPED_STATE = "several tokens at once start from an empty state, even with a cached one"

REFUSED: Mapping[str, str] = {
    "jamba": DROPPED_STATE,
    "mamba": DROPPED_STATE,
    "falcon_mamba": DROPPED_STATE,
    "zamba": DROPPED_STATE,
    "recurrent_gemma": "its recurrent state is kept in the modules and not in the cache",
    "minimax": "its linear layers are kept in a cache of its own, which counts the tokens of the first layer alone",
}
"""Architectures that transformers does not continue correctly from a cache, by `model_type`, with the reason."""


class RefusedFamily(Exception):  # noqa: N818 - it is the family that is refused
    """An architecture whose layers cannot be written to, or restored from, the pools of a cache."""

    def __init__(self, model_type: str, reason: str) -> None:
        super().__init__(f"{model_type}: {reason}")
        self.model_type = model_type
        self.reason = reason


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
            if type(layer) not in KNOWN_LAYERS and type(layer).__name__ not in COMPRESSING_LAYERS:
                reason = f"layer {number} is kept in a {type(layer).__name__}, for which there is no pool"
                raise RefusedFamily(runner.model_type, reason)
        runner.forward(np.arange(PROBE_TOKENS, dtype=np.int32), 0, recorded.cache)
        return cls(tuple(_parts(runner, recorded)), runner.model.dtype)

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
    def compressors(self) -> list[CompressorPart]:
        """The compressors of all layers, in order."""
        return [compressor for parts in self.layers for compressor in parts.compressors]

    @property
    def window_tokens(self) -> int | None:
        """How many tokens before the next one the widest sliding layer reads, or None without such layers."""
        reaches = [part.reach for part in self.attention if part.reach is not None]
        return max(reaches + [compressor.reach for compressor in self.compressors], default=None)

    @property
    def tokens_per_entry(self) -> int:
        """How many tokens have whole entries in every pool: a page size is a multiple of it."""
        return lcm(*(compressor.rate for compressor in self.compressors))


def _parts(runner: ModelRunner, recorded: RecordedCache) -> Iterator[LayerParts]:
    rows, index_rows = recorded.take_rows(), recorded.take_index_rows()
    projections, entries = recorded.take_projections(), recorded.take_entries()
    numbers: dict[str, Iterator[int]] = defaultdict(count)
    for number, layer in enumerate(recorded.cache.layers):
        attention = _attention(layer, *rows[number], numbers) if number in rows else None
        index = None
        if number in index_rows:
            assert attention is not None, f"layer {number} has an indexer: expected attention, got none"
            index = IndexPart(attention.layer, _piece(index_rows[number]))
        fields = tuple(_fields(layer)) if isinstance(layer, LinearAttentionLayer) else ()
        states = StatePart(next(numbers[Pool.MAMBA]), fields) if fields else None
        compressors = []
        for name in compressors_of(layer):
            pool = f"{name}_{layer.compress_rate}"
            values, gates = projections[number, name]
            part = CompressorPart(
                name,
                rate=layer.compress_rate,
                pool=pool,
                layer=next(numbers[pool]),
                entry=_piece(entries[number, name]),
                window_layer=next(numbers[Pool.SWA]),
                projections=(_piece(values), _piece(gates)),
                bias=runner.position_bias(number, name) if hasattr(layer, "overlap_kv") else None,
            )
            compressors.append(part)
        yield LayerParts(attention, index, states, tuple(compressors))


def _attention(
    layer: Any, keys: torch.Tensor, values: torch.Tensor, numbers: Mapping[str, Iterator[int]]
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


class Pools(Protocol):
    """The verbs of an adapter that read and write its pools."""

    def partners(self, slots: Slots) -> Slots: ...

    def slot_bytes(self, pool: str) -> int: ...

    def write(self, pool: str, slots: Slots, layer: int, data: PageBytes) -> None: ...

    def read(self, pool: str, slots: Slots, layer: int) -> PageBytes: ...


WaitLayer = Callable[[str, int], None]
"""Returns when a layer of a pool may be read."""


def wait_for_nothing(pool: str, layer: int) -> None:
    """Everything may be read."""


class ModelPools:
    """Copies the bytes of one model to and from the pools of one cache. Writes only slots that the caller owns."""

    def __init__(self, runner: ModelRunner, layout: ModelLayout, pools: Pools) -> None:
        self._runner = runner
        self._layout = layout
        self._pools = pools
        self._has_window = layout.window_tokens is not None

    def write(self, recorded: RecordedCache, slots: Slots) -> None:
        """Write what the last forward computed, one token in each FULL slot and its SWA partner."""
        by_pool: dict[str, Slots] = {Pool.KV: slots}
        by_pool[Pool.SWA] = self._pools.partners(slots) if self._has_window else slots
        for number, rows in recorded.take_rows().items():
            part = self._layout.layers[number].attention
            assert part is not None, f"layer {number} has attention now, and had none when the model was inspected"
            self._write_rows(part.pool, by_pool[part.pool], part.layer, rows)
        for number, keys in recorded.take_index_rows().items():
            index = self._layout.layers[number].index
            assert index is not None, f"layer {number} has an indexer now, and had none when the model was inspected"
            self._write_rows(Pool.INDEXER, slots, index.layer, (keys,))
        self._write_compressed(recorded, slots, by_pool[Pool.SWA])

    def write_state(self, recorded: RecordedCache, slot: int) -> None:
        """Write the current states into one MAMBA slot."""
        slots = np.array([slot], dtype=np.int64)
        for parts, layer in zip(self._layout.layers, recorded.cache.layers, strict=True):
            if parts.states is not None:
                self._write_rows(Pool.MAMBA, slots, parts.states.layer, parts.states.take(layer))

    def can_read_early(self, slots: Slots) -> bool:
        """Whether all of these FULL slots can be read while some are being loaded: they have a window, and no state."""
        window = slots[max(0, len(slots) - (self._layout.window_tokens or 0)) :]
        return not self._layout.states and (not self._has_window or bool(self._pools.partners(window).all()))

    def restore(self, slots: Slots, state: int | None, wait: WaitLayer = wait_for_nothing) -> RecordedCache:
        """A cache with the tokens of these FULL slots and the state of that MAMBA slot.

        `wait`: called with each layer of each pool before it is read.
        """
        cache, length = self._runner.new_cache(), len(slots)
        for parts, layer in zip(self._layout.layers if length else (), cache.layers, strict=bool(length)):
            if parts.attention is not None:
                part = parts.attention
                own_slots = self._slots_in(part.pool, slots[part.first_read(length) :])
                wait(part.pool, part.layer)
                part.restore(layer, self._pools.read(part.pool, own_slots, part.layer), length, self._runner.device)
            if parts.index is not None:
                wait(Pool.INDEXER, parts.index.layer)
                parts.index.restore(
                    layer, self._pools.read(Pool.INDEXER, slots, parts.index.layer), self._runner.device
                )
            for compressor in parts.compressors:
                self._restore_compressor(compressor, layer, slots, wait)
            if parts.states is not None:
                assert state is not None, "expected the slot of a state for a model with states, got None"
                rows = self._pools.read(Pool.MAMBA, np.array([state], dtype=np.int64), parts.states.layer)
                parts.states.restore(layer, rows, self._runner.device)
        return RecordedCache(cache)

    def _write_compressed(self, recorded: RecordedCache, slots: Slots, partners: Slots) -> None:
        """Write what the compressors projected of each token, and each entry where its last token is."""
        for (number, name), projections in recorded.take_projections().items():
            part = self._layout.layers[number].compressor(name)
            self._write_rows(Pool.SWA, partners, part.window_layer, projections)
        for (number, name), entries in recorded.take_entries().items():
            part = self._layout.layers[number].compressor(name)
            if len(entries):
                self._write_rows(part.pool, part.entries(slots), part.layer, (entries,))

    def _restore_compressor(self, part: CompressorPart, layer: Any, slots: Slots, wait: WaitLayer) -> None:
        length = len(slots)
        partners = self._slots_in(Pool.SWA, slots[part.first_read(length) :])
        wait(part.pool, part.layer)
        entries = self._pools.read(part.pool, part.entries(slots), part.layer)
        wait(Pool.SWA, part.window_layer)
        rows = self._pools.read(Pool.SWA, partners, part.window_layer)
        part.restore(layer, entries, rows, length, self._runner.device)

    def _slots_in(self, pool: str, slots: Slots) -> Slots:
        if pool != Pool.SWA:
            return slots
        partners = self._pools.partners(slots)
        if not partners.all():
            missing = int((partners == 0).sum())
            raise violation("MATCH-3", "the window of a hit", f"{len(slots)} SWA slots", f"{missing} without one")
        return partners

    def _write_rows(self, pool: str, slots: Slots, layer: int, tensors: Sequence[torch.Tensor]) -> None:
        rows = to_rows(tensors, self._pools.slot_bytes(pool))
        self._pools.write(pool, slots, layer, rows)
