"""OffloadCache: a cache of chunks beside an engine, the reference of the profile offload; ChunkCache: what moves bytes.

The design is that of LMCache and of vLLM's connectors. The engine owns the device: it allocates and frees slots, and
the cache copies between these slots and its own memory. What it keeps are chunks, each of a fixed number of tokens,
named by a chain of hashes over all tokens before it. A chunk is kept on the host, and in storage if there is one. Only
whole chunks are stored.

What differs from a cache of blocks: nothing is shared on the device. A look-up pins what it found, so that it stays
until it was retrieved. Both directions are asynchronous, and move layer by layer. Each chunk is evicted by itself, the
least recently used first, so that a chunk may outlive the one before it. A retrieval may bring less than was found.
Nothing here is shared with the tree, with its pools or with its managers.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hicache.types import Namespace, Slots, Tokens, TransferKind

Digest = Callable[[bytes], bytes]

Bytes = npt.NDArray[np.uint8]
"""The bytes of some slots in one layer: uint8, shape [slots, bytes of a slot]."""

Identity = tuple[bytes, Namespace, bytes]
"""The digest at the end of a chunk, the namespace, and all tokens up to its end. A digest alone may collide."""


def sha256(data: bytes) -> bytes:
    """Return the SHA-256 digest of the data."""
    return hashlib.sha256(data).digest()


class Device(Protocol):
    """The pool of the engine, read and written layer by layer."""

    def read(self, layer: int, slots: Slots) -> Bytes:
        """Return the bytes at these slots."""

    def write(self, layer: int, slots: Slots, data: Bytes) -> None:
        """Write bytes to these slots."""


class ChunkObjects(Protocol):
    """A storage tier: objects by name."""

    def get(self, name: str) -> bytes | None:
        """Return an object, which may be damaged, or None if there is none."""

    def set(self, name: str, content: bytes) -> bool:
        """Store an object unless there is one. False if the storage refuses it."""

    def remove(self, name: str) -> None:
        """Remove an object."""


@dataclass(frozen=True, slots=True)
class OffloadCacheConfig:
    """The sizes of an OffloadCache. Raises ValueError unless all are positive.

    `chunk_tokens`: tokens of a chunk. `host_tokens`: the capacity of the host. `layers`, `slot_bytes`: of one token.
    """

    chunk_tokens: int
    host_tokens: int
    layers: int
    slot_bytes: int

    def __post_init__(self) -> None:
        if min(self.chunk_tokens, self.host_tokens, self.layers, self.slot_bytes) < 1:
            raise ValueError(f"expected positive sizes, found {self}")


@dataclass(slots=True, eq=False)
class Chunk:
    """A chunk. `slots`: those of the host, or None. `is_stored`: storage has it. `pins`: look-ups that hold it."""

    identity: Identity
    slots: Slots | None
    is_stored: bool = False
    pins: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """The chunks at the start of a prompt that were found, in order."""

    chunks: tuple[Chunk, ...]
    tokens: int


@dataclass(slots=True, eq=False)
class ChunkPart:
    """One chunk in a transfer. `device`: the engine's slots. `has_failed`: it did not arrive."""

    chunk: Chunk
    device: Slots
    has_failed: bool = False


@dataclass(slots=True, eq=False)
class OffloadTransfer:
    """A store or a retrieval, from its start until `step` has applied it.

    `layers_done`: the layers that were copied. `lookup`: of a retrieval, what it holds. `arrived`: the tokens that a
    retrieval delivered, once it is applied: those before the first part that failed.
    """

    kind: TransferKind
    parts: list[ChunkPart]
    lookup: Lookup | None = None
    layers_done: int = 0
    has_ended: bool = False
    is_applied: bool = False
    arrived: int = 0


class ChunkCache(ABC):
    """The memory of a cache of chunks, and its transfers from their start until they are applied."""

    def __init__(self, config: OffloadCacheConfig, device: Device) -> None:
        self.config = config
        self._device = device
        # Slot 0 is padding, as in every pool.
        self.memory = np.zeros((config.layers, config.host_tokens + 1, config.slot_bytes), dtype=np.uint8)
        self._transfers: list[OffloadTransfer] = []

    @abstractmethod
    def chunks(self) -> tuple[Chunk, ...]:
        """All chunks that a look-up can find."""

    @abstractmethod
    def free(self) -> Slots:
        """The free slots of the host."""

    @abstractmethod
    def _apply(self, transfer: OffloadTransfer) -> None:
        """Take over the result of a transfer that has ended."""

    def pending(self) -> list[OffloadTransfer]:
        """The transfers that have not ended, oldest first."""
        return [one for one in self._transfers if not one.has_ended]

    def advance(self, transfer: OffloadTransfer) -> None:
        """Copy one more layer of a transfer."""
        self._check_pending(transfer)
        for part in transfer.parts:
            self._copy(transfer.kind, part, transfer.layers_done)
        transfer.layers_done += 1
        transfer.has_ended = transfer.layers_done == self.config.layers

    def complete(self, transfer: OffloadTransfer) -> None:
        """Copy all remaining layers of a transfer."""
        while not transfer.has_ended:
            self.advance(transfer)

    def fail(self, transfer: OffloadTransfer, parts_done: int) -> None:
        """End a transfer after its first parts; the others fail."""
        self._check_pending(transfer)
        for part in transfer.parts[parts_done:]:
            part.has_failed = True
        self.complete(transfer)

    def step(self) -> None:
        """Apply the transfers that have ended: only now what was stored is found, and what was retrieved is let go."""
        for transfer in [one for one in self._transfers if one.has_ended]:
            self._take_over(transfer)

    def transfers(self) -> tuple[OffloadTransfer, ...]:
        """All transfers that are not applied."""
        return tuple(self._transfers)

    def _take_over(self, transfer: OffloadTransfer) -> None:
        self._transfers.remove(transfer)
        transfer.is_applied = True
        self._apply(transfer)

    def _start(self, transfer: OffloadTransfer) -> OffloadTransfer:
        self._transfers.append(transfer)
        return transfer

    def _check_pending(self, transfer: OffloadTransfer) -> None:
        if transfer not in self._transfers or transfer.has_ended:
            raise ValueError(f"expected a pending transfer, found one that has ended: {transfer.kind.value}")

    def _copy(self, kind: TransferKind, part: ChunkPart, layer: int) -> None:
        if part.has_failed:
            return
        if kind is TransferKind.BACKUP:
            self.memory[layer, part.chunk.slots] = self._device.read(layer, part.device)
            return
        data = self._read(part.chunk, layer)
        if data is None:
            part.has_failed = True
        else:
            self._device.write(layer, part.device, data)

    def _read(self, chunk: Chunk, layer: int) -> Bytes | None:
        """Return one layer of a chunk; None if it is not there."""
        if chunk.slots is None:
            return None
        data: Bytes = self.memory[layer, chunk.slots]
        return data

    def _parts(self, chunks: Sequence[Chunk], device: Slots) -> list[ChunkPart]:
        """Return the parts of a transfer of chunks, which has slots of the engine for each token."""
        size = self.config.chunk_tokens
        return [ChunkPart(chunk, device[at * size : (at + 1) * size]) for at, chunk in enumerate(chunks)]

    def _slots(self, number: int) -> Slots:
        """Return the slots of the chunk that is so many chunks from the start of the memory."""
        first = 1 + number * self.config.chunk_tokens  # slot 0 is padding
        return np.arange(first, first + self.config.chunk_tokens, dtype=np.int64)

    def _arrived(self, transfer: OffloadTransfer) -> int:
        """Return how many chunks arrived without a gap."""
        return next((at for at, part in enumerate(transfer.parts) if part.has_failed), len(transfer.parts))


@dataclass(slots=True, eq=False)
class _State:
    """What the host has. `free`: slots. `chunks`: by identity, the least recently used first."""

    free: list[int]
    chunks: OrderedDict[Identity, Chunk] = field(default_factory=OrderedDict)


class OffloadCache(ChunkCache):
    """A cache of chunks in host memory and, with `objects`, in storage. `digest`: the hash of the chain."""

    def __init__(
        self, config: OffloadCacheConfig, device: Device, objects: ChunkObjects | None = None, digest: Digest = sha256
    ) -> None:
        super().__init__(config, device)
        self._objects = objects
        self._digest = digest
        self._state = _State(list(range(1, config.host_tokens + 1)))

    # What an engine calls.

    def lookup(self, tokens: Tokens, namespace: Namespace, limit: int | None = None) -> Lookup:
        """Find the chunks of a prompt that are there without a gap, of its first `limit` tokens. Changes nothing."""
        found: list[Chunk] = []
        for identity in self.identities(tokens[:limit], namespace):
            chunk = self._state.chunks.get(identity)
            if chunk is None:
                break
            found.append(chunk)
        return Lookup(tuple(found), len(found) * self.config.chunk_tokens)

    def pin(self, lookup: Lookup) -> None:
        """Hold what was found until `unpin`, or until it was retrieved. This is a use of it."""
        self._touch(lookup.chunks)
        for chunk in lookup.chunks:
            chunk.pins += 1

    def unpin(self, lookup: Lookup) -> None:
        """Give up what was found."""
        for chunk in lookup.chunks:
            chunk.pins -= 1

    def retrieve(self, lookup: Lookup, slots: Slots) -> OffloadTransfer:
        """Start to copy what was found and pinned to slots of the engine, which must stay until the transfer ends.

        Its pins are released when the transfer is applied.
        """
        return self._start(OffloadTransfer(TransferKind.LOAD, self._parts(lookup.chunks, slots), lookup))

    def store(self, tokens: Tokens, namespace: Namespace, slots: Slots) -> OffloadTransfer | None:
        """Start to copy the whole chunks of computed tokens that are not there yet; None if there is none.

        `slots`: of the engine, one for each token; they must stay until the transfer ends. Chunks after one for which
        there is no room are not stored.
        """
        wanted = self.identities(tokens, namespace)
        known = [self._state.chunks[identity] for identity in wanted if identity in self._state.chunks]
        self._touch(known)
        coming = {part.chunk.identity for one in self._transfers for part in _stores(one)}
        parts: list[ChunkPart] = []
        for at, identity in enumerate(wanted):
            if identity in self._state.chunks or identity in coming:
                continue
            own = self._take(kept=known)
            if own is None:
                break
            first = at * self.config.chunk_tokens
            parts.append(ChunkPart(Chunk(identity, own), slots[first : first + self.config.chunk_tokens]))
        return self._start(OffloadTransfer(TransferKind.BACKUP, parts)) if parts else None

    # Read-only.

    def chunks(self) -> tuple[Chunk, ...]:
        """All chunks that a look-up can find, the least recently used first."""
        return tuple(self._state.chunks.values())

    def free(self) -> Slots:
        """The free slots of the host."""
        return np.array(self._state.free, dtype=np.int64)

    def identities(self, tokens: Tokens, namespace: Namespace) -> list[Identity]:
        """Return the identity of each whole chunk of a prompt."""
        size, data = self.config.chunk_tokens * 4, tokens.astype("<i4").tobytes()
        digest = self._digest(json.dumps([namespace.lora, namespace.salt, namespace.tenant]).encode())
        found: list[Identity] = []
        for end in range(size, len(data) + 1, size):
            digest = self._digest(digest + data[end - size : end])
            found.append(self._identity(digest, namespace, data[:end]))
        return found

    def object_name(self, identity: Identity) -> str:
        """Return the name of a chunk's object, which says all that the chunk depends on."""
        return hashlib.sha256(repr(identity).encode()).hexdigest()

    # Internal.

    def _identity(self, digest: bytes, namespace: Namespace, prefix: bytes) -> Identity:
        return digest, namespace, prefix

    def _touch(self, chunks: Sequence[Chunk]) -> None:
        """Make chunks of one prompt the most recently used ones, the first of them most of all: its end goes first."""
        for chunk in reversed(chunks):
            if chunk.identity in self._state.chunks:
                self._state.chunks.move_to_end(chunk.identity)

    def _take(self, kept: Sequence[Chunk]) -> Slots | None:
        """Take host slots for a chunk, and evict for it what is not pinned and not `kept`; None without room."""
        size = self.config.chunk_tokens
        while len(self._state.free) < size:
            victim = next((one for one in self._state.chunks.values() if self._is_evictable(one, kept)), None)
            if victim is None:
                return None
            self._evict(victim)
        taken, self._state.free = self._state.free[:size], self._state.free[size:]
        return np.array(taken, dtype=np.int64)

    def _is_evictable(self, chunk: Chunk, kept: Sequence[Chunk]) -> bool:
        return chunk.slots is not None and not chunk.pins and chunk not in kept

    def _evict(self, chunk: Chunk) -> None:
        """Drop a chunk from the host. It is still found if storage has it."""
        if chunk.slots is not None:
            self._state.free.extend(chunk.slots.tolist())
        chunk.slots = None
        if not chunk.is_stored:
            del self._state.chunks[chunk.identity]

    def _read(self, chunk: Chunk, layer: int) -> Bytes | None:
        """Return one layer of a chunk, from the host or else from storage; None if the object is not whole."""
        if chunk.slots is not None:
            return super()._read(chunk, layer)
        content = None if self._objects is None else self._objects.get(self.object_name(chunk.identity))
        shape = (self.config.layers, self.config.chunk_tokens, self.config.slot_bytes)
        if content is None or len(content) != np.prod(shape):
            return None
        stored: Bytes = np.frombuffer(content, dtype=np.uint8).reshape(shape)[layer]
        return stored

    def _apply(self, transfer: OffloadTransfer) -> None:
        if transfer.kind is TransferKind.BACKUP:
            self._apply_store(transfer)
        else:
            self._apply_retrieval(transfer)

    def _apply_store(self, transfer: OffloadTransfer) -> None:
        """Let look-ups find what arrived. The first chunk comes last, as the most recently used one."""
        for part in reversed(transfer.parts):
            if part.has_failed:
                self._discard(part)
            else:
                self._keep(part.chunk)

    def _discard(self, part: ChunkPart) -> None:
        """Give back the slots of a chunk that did not arrive."""
        if part.chunk.slots is not None:
            self._state.free.extend(part.chunk.slots.tolist())

    def _keep(self, chunk: Chunk) -> None:
        self._state.chunks[chunk.identity] = chunk
        if self._objects is not None:
            content = self.memory[:, chunk.slots].tobytes()
            chunk.is_stored = self._objects.set(self.object_name(chunk.identity), content)

    def _apply_retrieval(self, transfer: OffloadTransfer) -> None:
        transfer.arrived = self._arrived(transfer) * self.config.chunk_tokens
        if transfer.lookup is not None:
            self.unpin(transfer.lookup)
        for part in transfer.parts:
            if part.has_failed and part.chunk.slots is None:
                self._forget(part.chunk)

    def _forget(self, chunk: Chunk) -> None:
        """Remove a chunk whose object could not be read, so that it can be stored again."""
        if self._objects is not None:
            self._objects.remove(self.object_name(chunk.identity))
        if self._state.chunks.get(chunk.identity) is chunk:
            del self._state.chunks[chunk.identity]


def _stores(transfer: OffloadTransfer) -> list[ChunkPart]:
    return transfer.parts if transfer.kind is TransferKind.BACKUP else []
