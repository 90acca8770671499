"""CudaModel: what torch.cuda has, on the CPU; and torch itself, as long as a model is installed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

from hicache.optional_torch import torch
from hicache.testing.cuda.memory import Bytes, MemoryMap
from hicache.testing.cuda.races import Race
from hicache.testing.cuda.streams import Machine, ModelEvent, ModelStream, Observer
from hicache.testing.cuda.tensors import DeviceTensor, Operations

REPLACED = (
    *("Event", "Stream", "_lazy_init", "cudart", "current_device", "current_stream", "default_stream", "device"),
    *("device_count", "is_available", "set_device", "stream", "synchronize"),
)
"""What is replaced in torch.cuda while a model is installed."""

Items: TypeAlias = "tuple[Any, ...] | None"
"""Which items of a tensor, as it is indexed with tensors of the CPU; None: all of it."""

Touched: TypeAlias = tuple[torch.Tensor, Items]

MAX_SHOWN = 5

ALREADY_REGISTERED, NOT_REGISTERED = 712, 713
"""CUDA's codes."""


class CudaModel:
    """Devices whose streams do their work on the CPU, in any order that events allow.

    While it is installed, tensors may be on its devices, and what is done with them is queued on the current stream of
    their device. A pageable copy blocks the caller, as on a GPU. Memory that is freed is overwritten as soon as the
    allocator could give it to another owner. Each access is checked against all others, byte by byte: two of the same
    bytes, one of them a write, that nothing puts in order are a race. The host is one of those who access: by
    operations of torch on pinned memory, and by what a test declares with `host_touches`.

    `order`: chooses how far which stream goes, whenever the host asks something. Without it work runs when a test says
    so (`run`, `Stream.run`), or when the host waits for it. `launch_blocking`: as with CUDA_LAUNCH_BLOCKING=1.
    `observer`: a second opinion.
    """

    def __init__(
        self,
        order: random.Random | None = None,
        devices: int = 2,
        observer: Observer | None = None,
        *,
        launch_blocking: bool = False,
    ) -> None:
        self.machine = _Machine(self, order, observer, launch_blocking=launch_blocking)
        self.map = MemoryMap(self.machine)
        self._all = [torch.device("cuda", number) for number in range(devices)]
        self._device = 0
        self._default: dict[int, ModelStream] = {}
        self._current: dict[int, ModelStream] = {}
        self._operations = Operations(self)
        self._functions = _Functions(self._operations, self)
        self._dispatches = _Dispatches(self._operations)

    # As torch.cuda has it.

    def is_available(self) -> bool:
        """Yes."""
        return True

    def device_count(self) -> int:
        """The number of devices."""
        return len(self._all)

    def current_device(self) -> int:
        """The number of the current device."""
        return self._device

    def set_device(self, device: Any) -> None:
        """Make a device the current one."""
        self._device = self.indexed(device).index

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        """Make a device the current one for a while."""
        before = self._device
        self.set_device(device)
        try:
            yield
        finally:
            self._device = before

    def Stream(self, device: Any = None, priority: int = 0) -> ModelStream:  # noqa: N802
        """A stream of its own, on the current device if none is named."""
        return self.machine.open_stream(self.indexed(device))

    def Event(self, **settings: object) -> ModelEvent:  # noqa: N802
        """An event."""
        return ModelEvent(self.machine)

    def default_stream(self, device: Any = None) -> ModelStream:
        """The first stream of a device."""
        owner = self.indexed(device)
        if owner.index not in self._default:
            self._default[owner.index] = self.Stream(owner)
        return self._default[owner.index]

    def current_stream(self, device: Any = None) -> ModelStream:
        """The stream of a device that work is queued on."""
        owner = self.indexed(device)
        return self._current.get(owner.index) or self.default_stream(owner)

    @contextmanager
    def stream(self, stream: ModelStream | None) -> Iterator[None]:
        """Make a stream the current one of its device, and that the current device."""
        if stream is None:
            yield
            return
        place = stream.device.index
        before = self._device, self._current.get(place)
        self._device, self._current[place] = place, stream
        try:
            yield
        finally:
            self._device = before[0]
            if before[1] is None:
                del self._current[place]
            else:
                self._current[place] = before[1]

    def synchronize(self, device: Any = None) -> None:
        """Return when all streams of a device have done what they have."""
        for stream in [one for one in self.machine.streams if one.device == self.indexed(device)]:
            stream.synchronize()

    def cudart(self) -> _Runtime:
        """CUDA's runtime."""
        return _Runtime(self.map)

    def _lazy_init(self) -> None:
        """Torch calls it before the first tensor on a device."""

    # As a test needs it.

    def indexed(self, device: Any) -> torch.device:
        """A device with its number; the current one for None and for "cuda"."""
        index = device if isinstance(device, int) else None if device is None else torch.device(device).index
        index = self._device if index is None else index
        if not 0 <= index < len(self._all):
            raise RuntimeError(f"CUDA error: invalid device ordinal {index}, there are {len(self._all)}")
        return self._all[index]

    @contextmanager
    def installed(self) -> Iterator[CudaModel]:
        """Let torch.cuda be this model for this thread, and tensors be on its devices. May be nested.

        Ranks that are threads have a model each. One model is used by one thread at a time.
        """
        before = _INSTALLED.model
        if before is self:
            yield self
            return
        _INSTALLED.model = self
        try:
            with _REPLACEMENT, self._functions, self._dispatches:
                yield self
        finally:
            _INSTALLED.model = before

    @property
    def streams(self) -> list[ModelStream]:
        """In the order in which they were made."""
        return self.machine.streams

    @property
    def waits(self) -> list[str]:
        """Where the host waited for a stream that had work to do."""
        return self.machine.waits

    @property
    def races(self) -> list[Race]:
        """The races so far."""
        return self.machine.log.races

    def run(self) -> bool:
        """Do one piece of work of a stream that may go on. False when there is none."""
        return self.machine.run()

    def kernel(
        self, operation: str, work: Callable[[], object], reads: Iterable[Touched] = (), writes: Iterable[Touched] = ()
    ) -> None:
        """Queue work on the current stream of its tensors' device. It reads and writes `DeviceTensor.raw`."""
        read, written = ([_bytes(*one) for one in touched] for touched in (reads, writes))
        device = next(one.memory.device for one in (*read, *written) if one.memory.device)
        self.current_stream(device).launch(operation, work, read, written)

    def host_touches(
        self, tensor: torch.Tensor, items: Items = None, *, is_write: bool = False, operation: str = "numpy"
    ) -> None:
        """Declare that the host now reads or writes a tensor, or items of it, if streams reach its memory."""
        memory = self.map.find(tensor.data_ptr()) if tensor.numel() else None
        if memory is not None:
            raw = memory.view(tensor.data_ptr(), tensor.size(), tensor.stride(), tensor.dtype)
            self.machine.host_touches(operation, Bytes(memory, raw, items), is_write=is_write)

    def require_no_races(self) -> None:
        """Raise AssertionError with the accesses of the first races."""
        if self.races:
            shown = [f"{len(self.races)} pairs of accesses in no order:", *map(str, self.races[:MAX_SHOWN])]
            raise AssertionError("\n".join(shown))


class _Installed(threading.local):
    """What torch.cuda is for this thread: a model, or itself."""

    model: CudaModel | None = None


_INSTALLED = _Installed()


class _Replacement:
    """What stands in torch.cuda as long as any thread has a model: it asks the model of the thread that calls it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._own: dict[str, Any] = {}

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._own = {name: getattr(torch.cuda, name) for name in REPLACED}
                for name, own in self._own.items():
                    setattr(torch.cuda, name, partial(_asked, name, own))

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                for name, own in self._own.items():
                    setattr(torch.cuda, name, own)


_REPLACEMENT = _Replacement()


def _asked(name: str, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    model = _INSTALLED.model
    return (own if model is None else getattr(model, name))(*args, **kwargs)


def _bytes(tensor: torch.Tensor, items: Items) -> Bytes:
    assert isinstance(tensor, DeviceTensor), f"a kernel takes tensors of a device, got one of {tensor.device}"
    return Bytes(tensor.memory, tensor.raw, items)


class _Machine(Machine):
    """The streams of a model."""

    def __init__(
        self, model: CudaModel, order: random.Random | None, observer: Observer | None, *, launch_blocking: bool
    ) -> None:
        super().__init__(order, observer, launch_blocking=launch_blocking)
        self._model = model

    def current_stream(self) -> ModelStream:
        return self._model.current_stream()


class _Runtime:
    """CUDA's runtime, as far as it pins memory."""

    def __init__(self, pieces: MemoryMap) -> None:
        self._pieces = pieces

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> int:  # noqa: N802
        """Pin memory."""
        if self._pieces.find(pointer) is not None:
            return ALREADY_REGISTERED
        self._pieces.register(pointer, size)
        return 0

    def cudaHostUnregister(self, pointer: int) -> int:  # noqa: N802
        """Unpin memory."""
        return 0 if self._pieces.unregister(pointer) else NOT_REGISTERED

    def cudaGetErrorString(self, error: int) -> str:  # noqa: N802
        """What a code means."""
        return {ALREADY_REGISTERED: "already registered", NOT_REGISTERED: "not registered"}.get(error, "no error")


class _Functions(torch.overrides.TorchFunctionMode):
    """Functions of torch that make pinned memory, or look at it, before any operation is dispatched."""

    def __init__(self, operations: Operations, model: CudaModel) -> None:
        self._operations = operations
        self._model = model

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        # Torch asks its own build for the number of the current device, which has none.
        args = tuple([self._numbered(one) for one in args])
        kwargs = {name: self._numbered(one) for name, one in (kwargs or {}).items()}
        if func is torch.Tensor.__setitem__ and isinstance(args[0], DeviceTensor) and isinstance(args[2], int | float):
            # Torch would make the number a tensor of a real device, and it sees none.
            args = (*args[:2], torch.full((), args[2], dtype=args[0].dtype, device=args[0].device))
        if func is torch.tensor and (kwargs.get("pin_memory") or kwargs.get("device") is not None):
            own = dict(kwargs)
            is_pinned, device = own.pop("pin_memory", False), own.pop("device", None)
            made = func(*args, **own)
            made = self._operations.pinned(made) if is_pinned else made
            return made if device is None else made.to(device)
        if (
            func is torch.as_tensor
            and hasattr(args[0], "__cuda_array_interface__")
            and not isinstance(args[0], torch.Tensor)
        ):
            return self._operations.mapped(args[0], kwargs.get("device"))
        if func is torch.Tensor.pin_memory:
            return args[0] if self._operations.is_pinned(args[0]) else self._operations.pinned(args[0])
        if func is torch.Tensor.is_pinned:
            return self._operations.is_pinned(args[0])
        return func(*args, **kwargs)

    def _numbered(self, value: Any) -> Any:
        if isinstance(value, str | torch.device) and str(value) == "cuda":
            return self._model.indexed(value)
        return value


class _Dispatches(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """All operations of torch."""

    def __init__(self, operations: Operations) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operations = operations

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here, and torch's guard against that is slow.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._operations.dispatch(func, args, kwargs or {})
