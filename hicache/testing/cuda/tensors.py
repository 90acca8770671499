"""Tensors of the model's devices: what is done with them is queued on the current stream of the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, Protocol

from hicache.optional_torch import torch
from hicache.testing.cuda.memory import Bytes, Memory, MemoryMap
from hicache.testing.cuda.streams import Machine, ModelStream

ATEN = torch.ops.aten
NOWHERE = torch.device("meta")


class DeviceTensor(torch.Tensor):
    """A tensor on a device of the model. `raw`: the bytes, on the CPU. To torch's own code it is on no device at all.

    `keeper`: what the memory is freed with, shared by all views.
    """

    raw: torch.Tensor
    memory: Memory
    keeper: object
    operations: Operations

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(  # noqa: PYI034 - 3.10 has no Self
        cls: type[DeviceTensor], raw: torch.Tensor, memory: Memory, keeper: object, operations: Operations
    ) -> DeviceTensor:
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls, raw.size(), strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype, device=NOWHERE
        )
        made.raw, made.memory, made.keeper, made.operations = raw, memory, keeper, operations
        return made

    def __init__(self, *made_of: object) -> None:
        pass

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = kwargs or {}
        first = next(one for one in _leaves((args, kwargs)) if isinstance(one, DeviceTensor))
        return first.operations.dispatch(func, args, kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype}, {self.device})"

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """As torch's."""
        return self.operations.device_of(self)

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """As torch's."""
        return True

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        """As torch's."""
        return False

    def data_ptr(self) -> int:
        """As torch's."""
        return self.raw.data_ptr()

    def tolist(self) -> Any:
        """As torch's."""
        return self.cpu().tolist()

    def record_stream(self, stream: ModelStream) -> None:  # type: ignore[override]
        """As torch's."""
        self.memory.users[stream.cuda_stream] = stream


class Devices(Protocol):
    """What operations know of the devices."""

    @property
    def machine(self) -> Machine:
        """Their streams."""

    @property
    def map(self) -> MemoryMap:
        """Their memory."""

    def current_stream(self, device: Any = None) -> ModelStream:
        """Of a device."""

    def indexed(self, device: Any) -> torch.device:
        """A device with its number."""


class Operations:
    """Turns the operations of torch into work of streams, and into accesses of the host."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._mapped: dict[int, torch.device] = {}

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do an operation of torch."""
        with torch._C.DisableTorchFunction():
            return self._dispatch(func, args, kwargs)

    def _dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors = [one for one in _leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        is_on_device = any(isinstance(one, DeviceTensor) for one in tensors)
        wanted = kwargs.get("device")
        if wanted is not None and torch.device(wanted).type == "cuda":
            is_on_device = True
        if not is_on_device:
            return self._on_host(func, args, kwargs)
        if func is ATEN._to_copy.default:
            return self._to(args[0], **kwargs)
        if func is ATEN.copy_.default:
            self._transfer(*args[:2], non_blocking=any((*args[2:], kwargs.get("non_blocking"))))
            return args[0]
        if func is ATEN._local_scalar_dense.default:
            return self._to(args[0], device="cpu").item()
        if _is_view(func):
            return self._view(func, args, kwargs)
        return self._kernel(func, args, kwargs)

    def device_of(self, tensor: DeviceTensor) -> torch.device:
        """The device of a tensor; for memory of the host, the one that reaches it."""
        return tensor.memory.device or tensor.keeper.device  # type: ignore[attr-defined]

    def empty(self, size: Iterable[int], stride: Iterable[int], dtype: torch.dtype, device: Any) -> DeviceTensor:
        """A tensor in memory that the current stream of a device may use."""
        size, stride = tuple(size), tuple(stride)
        items = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if all(size) else 0
        memory, keeper = self._devices.map.allocate(items * dtype.itemsize, self._devices.current_stream(device))
        raw = memory.view(memory.start, size, stride, dtype)
        return DeviceTensor(raw, memory, keeper, self)

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        """A copy of a host tensor in pinned memory."""
        whole = like.contiguous()
        _, lent = self._devices.map.pin(whole.numel() * whole.itemsize)
        made = lent.view(whole.dtype).view(whole.size()) if whole.numel() else torch.empty_like(whole)
        return made.copy_(whole)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor of the host is in memory that streams reach."""
        return self._host_memory(tensor) is not None

    def mapped(self, source: Any, device: Any) -> DeviceTensor:
        """Memory of the host as a tensor of a device, by the CUDA array interface."""
        shown = source.__cuda_array_interface__
        memory = self._devices.map.find(shown["data"][0])
        if memory is None:
            raise RuntimeError(f"address {shown['data'][0]} is not memory that a device reaches")
        kind, width = shown["typestr"][1], int(shown["typestr"][2:])
        dtype = {"u1": torch.uint8, "i1": torch.int8, "i2": torch.int16, "i4": torch.int32, "i8": torch.int64}[
            f"{kind}{width}"
        ]
        steps = [step // width for step in shown["strides"]]
        raw = memory.view(shown["data"][0], shown["shape"], steps, dtype)
        return DeviceTensor(raw, memory, _Mapped(source, self._devices.indexed(device)), self)

    # Copies.

    def _to(
        self,
        source: torch.Tensor,
        dtype: torch.dtype | None = None,
        layout: object = None,
        device: Any = None,
        pin_memory: bool | None = None,
        non_blocking: bool = False,
        memory_format: object = None,
    ) -> torch.Tensor:
        kind = dtype or source.dtype
        like = torch.empty_like(_raw(source), dtype=kind, device="meta")
        to_device = device is None or torch.device(device).type == "cuda"
        target: torch.Tensor
        if to_device:
            target = self.empty(like.size(), like.stride(), kind, device or source.device)
        else:
            plain = torch.empty_strided(like.size(), like.stride(), dtype=kind)
            target = self.pinned(plain) if non_blocking or pin_memory else plain
        self._transfer(target, source, non_blocking=non_blocking)
        return target

    def _transfer(self, target: torch.Tensor, source: torch.Tensor, *, non_blocking: bool) -> None:
        if isinstance(target, DeviceTensor) and isinstance(source, DeviceTensor):
            self._between_devices(target, source)
        elif isinstance(target, DeviceTensor):
            self._with_host(target, source, is_upload=True, non_blocking=non_blocking)
        elif isinstance(source, DeviceTensor):
            self._with_host(source, target, is_upload=False, non_blocking=non_blocking)

    def _with_host(self, own: DeviceTensor, other: torch.Tensor, *, is_upload: bool, non_blocking: bool) -> None:
        stream, memory = self._devices.current_stream(own.device), self._host_memory(other)
        what = f"copy {'from' if is_upload else 'to'} {'pinned' if memory else 'pageable'} memory"
        raw, touched, of_host = own.raw, [_bytes(own)], list[Bytes]()
        if memory is not None:
            other = memory.view(other.data_ptr(), other.size(), other.stride(), other.dtype)
            of_host = [Bytes(memory, other)]
            memory.users[stream.cuda_stream] = stream
        elif is_upload and non_blocking:
            # The driver waits for the stream, reads pageable memory, and copies from its own.
            self._wait(stream, what)
            other = other.clone()
        if is_upload:
            stream.launch(what, lambda: raw.copy_(other), of_host, touched)
        else:
            stream.launch(what, lambda: other.copy_(raw), touched, of_host)
        if not non_blocking or (memory is None and not is_upload):
            self._wait(stream, what)

    def _between_devices(self, target: DeviceTensor, source: DeviceTensor) -> None:
        # Between two devices torch lets the streams of both wait for each other.
        stream, other = (self._devices.current_stream(one.device) for one in (source, target))
        raw, own = target.raw, source.raw
        if stream is not other:
            stream.wait_stream(other)
        stream.launch("copy_", lambda: raw.copy_(own), [_bytes(source)], [_bytes(target)])
        if stream is not other:
            other.wait_stream(stream)

    def _wait(self, stream: ModelStream, what: str) -> None:
        machine = self._devices.machine
        machine.wait(stream.mark(), what)
        machine.told("stream_synchronization", stream.cuda_stream)

    # Kernels.

    def _view(self, func: Any, args: Any, kwargs: Any) -> Any:
        owner = next(one for one in _leaves(args) if isinstance(one, DeviceTensor))
        made = func(*_mapped(DeviceTensor, _raw, args), **_mapped(DeviceTensor, _raw, kwargs))
        return _mapped(torch.Tensor, lambda raw: DeviceTensor(raw, owner.memory, owner.keeper, self), made)

    def _kernel(self, func: Any, args: Any, kwargs: Any) -> Any:
        device = self._common_device(func, args, kwargs)
        args = self._with_indices(func, args, device)
        own = {name: value for name, value in kwargs.items() if name not in ("device", "pin_memory")}
        made: list[DeviceTensor] = []
        is_in_place = any(one.alias_info is not None for one in func._schema.returns)
        raw_args, raw_own = _mapped(DeviceTensor, _raw, args), _mapped(DeviceTensor, _raw, own)
        if not is_in_place:
            # The present contents of the memory, even if stale, show the shapes of the outputs.
            shapes = func(*(_first_items(args) if func in INDEXING else raw_args), **raw_own)
            made = [self.empty(one.size(), one.stride(), one.dtype, device) for one in _leaves(shapes)]
        outputs = [one.raw for one in made]

        def work() -> None:
            results = func(*raw_args, **raw_own)
            for raw, result in zip(outputs, _leaves(results) if outputs else (), strict=True):
                raw.copy_(result)

        reads, writes = self._touches(func, args, own)
        self._devices.current_stream(device).launch(str(func), work, reads, writes + [_bytes(one) for one in made])
        if is_in_place:
            return own.get("out", args[0] if args else None)
        return made[0] if len(made) == 1 else tuple(made)

    def _common_device(self, func: Any, args: Any, kwargs: Any) -> torch.device:
        leaves = [one for one in _leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        found = {one.device for one in leaves if isinstance(one, DeviceTensor)}
        if "device" in kwargs and kwargs["device"] is not None:
            found = {self._devices.indexed(kwargs["device"])}
        if len(found) != 1:
            raise RuntimeError(f"{func} takes tensors of one device, got {sorted(map(str, found))}")
        return found.pop()

    def _with_indices(self, func: Any, args: Any, device: torch.device) -> Any:
        """Index tensors of the host are uploaded first, as torch does it: from pageable memory."""
        if func not in INDEXING:
            if any(isinstance(one, torch.Tensor) and not isinstance(one, DeviceTensor) and one.dim() for one in args):
                raise RuntimeError(f"{func} takes tensors of {device}, got one of the host")
            return args
        return _mapped(
            torch.Tensor,
            lambda one: one if isinstance(one, DeviceTensor) or not one.dim() else self._to(one, device=device),
            args,
        )

    def _touches(self, func: Any, args: Any, kwargs: Any) -> tuple[list[Bytes], list[Bytes]]:
        touches: tuple[list[Bytes], list[Bytes]] = ([], [])
        for tensor, is_write in _arguments(func, args, kwargs):
            memory = tensor.memory if isinstance(tensor, DeviceTensor) else self._host_memory(tensor)
            if memory is None or not tensor.numel():
                continue
            raw = _raw(tensor)
            if not isinstance(tensor, DeviceTensor):
                raw = memory.view(tensor.data_ptr(), tensor.size(), tensor.stride(), tensor.dtype)
            items = INDEXING[func](args) if func in INDEXING and tensor is args[0] else None
            touches[is_write].append(Bytes(memory, raw, items))
        return touches

    # The host.

    def _on_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        if kwargs.get("pin_memory"):
            return self.pinned(func(*args, **(kwargs | {"pin_memory": False})))
        if not _is_view(func):
            machine = self._devices.machine
            reads, writes = self._touches(func, args, kwargs)
            for touches, is_write in ((reads, False), (writes, True)):
                for touch in touches:
                    machine.host_touches(str(func), touch, is_write=is_write)
        return func(*args, **kwargs)

    def _host_memory(self, tensor: torch.Tensor) -> Memory | None:
        if tensor.device.type != "cpu" or not tensor.numel():
            return None
        return self._devices.map.find(tensor.data_ptr())


def _bytes(tensor: DeviceTensor) -> Bytes:
    return Bytes(tensor.memory, tensor.raw)


class _Mapped:
    """Keeps memory of the host that a device reaches."""

    def __init__(self, source: object, device: torch.device) -> None:
        self.source = source
        self.device = device


def _items(indices: Iterable[torch.Tensor | None]) -> tuple[Any, ...]:
    return tuple(slice(None) if one is None else _raw(one) for one in indices)


def _along(args: Any) -> tuple[Any, ...]:
    return (*[slice(None)] * args[1], _raw(args[2]))


INDEXING: dict[Any, Callable[[Any], tuple[Any, ...]]] = {
    ATEN.index.Tensor: lambda args: _items(args[1]),
    ATEN.index_put_.default: lambda args: _items(args[1]),
    ATEN._index_put_impl_.default: lambda args: _items(args[1]),
    ATEN.index_select.default: _along,
    ATEN.index_select.out: _along,
    ATEN.index_copy_.default: _along,
}
"""Operations that touch some items of their first argument."""


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for one in value:
            yield from _leaves(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _leaves(one)
    else:
        yield value


def _mapped(kind: type, change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, dict):
        return {name: _mapped(kind, change, one) for name, one in value.items()}
    return type(value)([_mapped(kind, change, one) for one in value]) if isinstance(value, list | tuple) else value


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.raw if isinstance(tensor, DeviceTensor) else tensor


def _first_items(args: Any) -> Any:
    """The same arguments, with indices that are all 0."""
    first, *others = args
    return _raw(first), *_mapped(torch.Tensor, lambda one: torch.zeros_like(_raw(one)), others)


@cache
def _is_view(func: Any) -> bool:
    aliases = [one.alias_info for one in func._schema.returns]
    return any(one is not None and not one.is_write for one in aliases)


@cache
def _writes(func: Any) -> dict[str, bool]:
    return {one.name: one.alias_info is not None and one.alias_info.is_write for one in func._schema.arguments}


def _arguments(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[torch.Tensor, bool]]:
    """The tensors that an operation takes, and whether it writes to them."""
    writes = _writes(func)
    for name, value in (*zip(writes, args, strict=False), *kwargs.items()):
        for one in _leaves(value):
            if isinstance(one, torch.Tensor):
                yield one, writes[name]
