"""Memory of the model: pieces on the devices, pinned pieces and registered ones on the host, by address."""

from __future__ import annotations

import ctypes
import weakref
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hicache.optional_torch import torch
from hicache.testing.cuda.races import Shadow, Where
from hicache.testing.cuda.streams import Machine, ModelStream, StreamMark

POISON = 0xAB
"""What freed memory is overwritten with."""


class Memory:
    """A piece of memory. `raw`: its bytes. `device`: that it is on; None for the host.

    `users`: the streams that `record_stream` named, or that copied from it without blocking the host.
    """

    def __init__(self, machine: Machine, raw: torch.Tensor, device: torch.device | None, label: str) -> None:
        self.raw = raw
        self.device = device
        self.start = raw.data_ptr()
        self.size_bytes = raw.numel()
        self.shadow = Shadow(machine.log, self.size_bytes, label)
        self.users: dict[int, ModelStream] = {}
        self._elements: dict[int, torch.Tensor] = {}

    def elements(self, width: int) -> torch.Tensor:
        """The number of each element, if it is full of elements of so many bytes."""
        if width not in self._elements:
            self._elements[width] = torch.arange(self.size_bytes // width)
        return self._elements[width]

    def view(self, address: int, size: Iterable[int], stride: Iterable[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of it, from an address in it."""
        width, offset = dtype.itemsize, address - self.start
        assert not offset % width, f"address {address} is not aligned to {width} bytes in {self.shadow.label}"
        typed = self.raw[: self.size_bytes // width * width].view(dtype)
        return typed.as_strided(tuple(size), tuple(stride), offset // width)


@dataclass(frozen=True, slots=True, eq=False)
class Bytes:
    """The bytes of a tensor, or those of some of its items. `raw`: the tensor, in the memory."""

    memory: Memory
    raw: torch.Tensor
    items: tuple[Any, ...] | None = None
    shadow: Shadow = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shadow", self.memory.shadow)

    def where(self) -> Where:
        """The bytes. Which items they are is read from index tensors when the work runs."""
        raw, width = self.raw, self.raw.itemsize
        start = raw.data_ptr() - self.memory.start
        if self.items is None and raw.is_contiguous():
            return slice(start, start + raw.numel() * width)
        elements = self.memory.elements(width).as_strided(raw.size(), raw.stride(), start // width)
        touched = (elements if self.items is None else elements[self.items]).reshape(-1, 1) * width
        return (touched + torch.arange(width)).reshape(-1).numpy()


class MemoryMap:
    """All pieces of memory that streams may touch, by address."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._starts: list[int] = []
        self._pieces: list[Memory] = []

    def find(self, address: int) -> Memory | None:
        """The piece that an address is in."""
        place = bisect_right(self._starts, address) - 1
        piece = self._pieces[place] if place >= 0 else None
        return piece if piece is not None and address < piece.start + piece.size_bytes else None

    def add(self, piece: Memory) -> Memory:
        """Note a piece."""
        place = bisect_right(self._starts, piece.start)
        self._starts.insert(place, piece.start)
        self._pieces.insert(place, piece)
        return piece

    def remove(self, piece: Memory) -> None:
        """Forget a piece."""
        place = self._pieces.index(piece)
        del self._starts[place], self._pieces[place]

    # The allocator of a device, and that of pinned memory.

    def allocate(self, size_bytes: int, stream: ModelStream) -> tuple[Memory, object]:
        """Memory of a device, and what keeps it: when that is gone, later work of the stream may get the memory."""
        raw = torch.zeros(max(1, size_bytes), dtype=torch.uint8)
        piece = self.add(Memory(self._machine, raw, stream.device, f"{size_bytes} bytes on {stream.device}"))
        keeper = _Keeper()
        weakref.finalize(keeper, self._freed, piece, stream).atexit = False
        return piece, keeper

    def pin(self, size_bytes: int) -> tuple[Memory, torch.Tensor]:
        """Pinned memory, and its bytes for the host: when no tensor has them any more, the memory may be reused."""
        own = np.zeros(max(1, size_bytes), dtype=np.uint8)
        lent = own.view()
        piece = self.add(Memory(self._machine, torch.from_numpy(own), None, f"{size_bytes} bytes of pinned memory"))
        weakref.finalize(lent, self._freed, piece, None).atexit = False
        return piece, torch.from_numpy(lent)[:size_bytes]

    def _freed(self, piece: Memory, stream: ModelStream | None) -> None:
        # Torch records an event on each stream that it knows of, and reuses the memory when all have fired.
        self.remove(piece)
        after: list[StreamMark] = [user.mark() for user in piece.users.values()]
        after += [stream.mark()] if stream else []
        device = piece.device or torch.device("cpu")
        self._machine.reuse(Bytes(piece, piece.raw), device, after, lambda: piece.raw.fill_(POISON))

    # Memory that the host pins itself.

    def register(self, address: int, size_bytes: int) -> None:
        """Let streams reach memory of the host where it is."""
        buffer = (ctypes.c_uint8 * size_bytes).from_address(address)
        raw = torch.from_numpy(np.ctypeslib.as_array(buffer))
        self.add(Memory(self._machine, raw, None, f"{size_bytes} bytes of registered memory"))

    def unregister(self, address: int) -> bool:
        """End that. Whether it was registered. Who still reaches it races with what comes after."""
        piece = self.find(address)
        if piece is None or piece.start != address:
            return False
        self._machine.drain()
        self._machine.host_touches("cudaHostUnregister", Bytes(piece, piece.raw), is_write=True)
        self.remove(piece)
        return True


class _Keeper:
    """What all tensors of one piece of memory have: it is freed with the last of them."""
