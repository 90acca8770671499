"""HostPools: the pools of one cache in host memory, which CUDA pins so that a GPU reaches it directly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ctypes import CDLL
from dataclasses import replace
from typing import Any, Protocol
from weakref import finalize

from hicache.config import CacheConfig
from hicache.errors import ConfigurationError, PinningError
from hicache.optional_torch import require_torch, torch
from hicache.pools.buffers import PoolSpec, RawBytes, TierPools
from hicache.types import Slots

MAPPED_FOR_EVERY_CONTEXT = 1 | 2
"""cudaHostRegisterPortable and cudaHostRegisterMapped: kernels of any device may read and write it."""


class CudaRuntime(Protocol):
    """What is needed of CUDA's runtime."""

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> Any:  # noqa: N802
        """Pin memory. Returns an error code, 0 for success."""

    def cudaHostUnregister(self, pointer: int) -> Any:  # noqa: N802
        """Unpin memory that was pinned. Returns an error code, 0 for success."""

    def cudaGetErrorString(self, error: Any) -> str:  # noqa: N802
        """What an error code means."""

    def cudaGetLastError(self) -> Any:  # noqa: N802
        """The last error of this thread, which is then forgotten."""


class TorchCudaRuntime:
    """The runtime that torch is linked with: what torch shows of it, and cudaGetLastError, which torch does not."""

    def __init__(self) -> None:
        self._shown = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        self._linked = CDLL(torch._C.__file__)  # noqa: SLF001 - the library that links the runtime

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> Any:  # noqa: N802
        return self._shown.cudaHostRegister(pointer, size, flags)

    def cudaHostUnregister(self, pointer: int) -> Any:  # noqa: N802
        return self._shown.cudaHostUnregister(pointer)

    def cudaGetErrorString(self, error: Any) -> str:  # noqa: N802
        text: str = self._shown.cudaGetErrorString(error)
        return text

    def cudaGetLastError(self) -> Any:  # noqa: N802
        # A library of CUDA that is loaded by its name could be another one, with errors of its own.
        # Where torch hides the runtime, the error stays, and the refusal is reported all the same.
        return getattr(self._linked, "cudaGetLastError", int)()


def require_device(device: str) -> None:
    """Raise ConfigurationError for a device that is not there, and for one that keeps no bytes."""
    if device == "cpu":
        return
    require_torch(f"device {device!r}")
    try:
        found = torch.device(device)
        if found.type not in ("cpu", "cuda", "meta"):
            # What is missing raises an error of its own for each type, some of them an AssertionError or ImportError.
            torch.empty(1, dtype=torch.uint8, device=found)
    except (RuntimeError, AssertionError, ImportError, AttributeError) as error:
        raise ConfigurationError(f"device {device!r} is not there: {str(error).splitlines()[0]}") from error
    if found.type == "meta":
        raise ConfigurationError(f"device {device!r} keeps no bytes")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ConfigurationError(
            f"device {device!r} is not there: torch finds {torch.cuda.device_count()} CUDA devices"
        )


def runtime_for(device: str) -> CudaRuntime | None:
    """The runtime that pins memory for a device, or None where nothing is to be pinned."""
    return TorchCudaRuntime() if device.partition(":")[0] == "cuda" else None


def seen_from(device: torch.device, tensor: torch.Tensor) -> torch.Tensor:
    """Pinned memory as a tensor of the device, without a copy. Raises PinningError when the device cannot reach it."""
    if device.type != "cuda":
        return tensor
    seen = torch.as_tensor(_CudaArray(tensor), device=device)
    if seen.data_ptr() != tensor.data_ptr():
        raise PinningError(f"host memory at {tensor.data_ptr()} was copied: {device} does not reach it where it is")
    return seen


class _CudaArray:
    """A pinned tensor as the CUDA array interface describes it: so that torch uses it without a copy."""

    def __init__(self, tensor: torch.Tensor) -> None:
        width = tensor.itemsize
        self._tensor = tensor
        self.__cuda_array_interface__ = {
            "version": 3,
            "data": (tensor.data_ptr(), False),
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * width for stride in tensor.stride()),
            "typestr": f"<{'u' if tensor.dtype is torch.uint8 else 'i'}{width}",
        }


class PinnedMemory:
    """Pins whole tensors, one registration each: no page of a pool is in two.

    The tensors stay in memory until they are unpinned: by `close`, or when this object is collected. CUDA keeps the
    addresses of pinned memory, and refuses to pin what is mapped there afterwards.
    """

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime
        self._pinned: list[torch.UntypedStorage] = []
        # At the end of the process the driver unpins what is left.
        finalize(self, _unpin, runtime, self._pinned).atexit = False

    def pin(self, tensors: Iterable[torch.Tensor]) -> None:
        """Pin all of them, or none. Raises PinningError with CUDA's code and text when a tensor cannot be pinned."""
        for tensor in tensors:
            try:
                self._pin(tensor.untyped_storage())
            except PinningError:
                self.close()
                raise

    def _pin(self, storage: torch.UntypedStorage) -> None:
        # CUDA refuses empty memory: a pool has none when its pipeline stage has no such layer.
        if not storage.nbytes():
            return
        code = self._runtime.cudaHostRegister(storage.data_ptr(), storage.nbytes(), MAPPED_FOR_EVERY_CONTEXT)
        self._check(f"cudaHostRegister of {storage.nbytes()} bytes", _clear_error(self._runtime, code))
        self._pinned.append(storage)

    def close(self) -> None:
        """Unpin everything. May be called twice. Raises PinningError when CUDA refuses, after trying all."""
        for code in _unpin(self._runtime, self._pinned):
            self._check("cudaHostUnregister", code)

    def _check(self, call: str, code: Any) -> None:
        if int(code):
            raise PinningError(f"{call} failed with CUDA error {int(code)}: {self._runtime.cudaGetErrorString(code)}")


def _unpin(runtime: CudaRuntime, pinned: list[torch.UntypedStorage]) -> list[Any]:
    """Unpin all of them, and empty the list. Returns the error codes of CUDA, 0 for success."""
    storages = pinned.copy()
    pinned.clear()
    return [_clear_error(runtime, runtime.cudaHostUnregister(storage.data_ptr())) for storage in storages]


def _clear_error(runtime: CudaRuntime, code: Any) -> Any:
    """Clear CUDA's last error, if a call returned one: the next kernel would fail with it. Returns the code."""
    if int(code):
        runtime.cudaGetLastError()
    return code


class HostPools(TierPools):
    """Allocators by component, buffers by pool. Unlike on the device, SWA pages are not partners of FULL pages.

    Raises ConfigurationError without a host tier.
    """

    def __init__(self, config: CacheConfig, specs: Mapping[str, PoolSpec]) -> None:
        if config.host is None:
            raise ConfigurationError("host pools need host=HostConfig(...), got None")
        on_host = {pool: replace(spec, layout=config.host.layout) for pool, spec in specs.items()}
        super().__init__(config, config.host.capacity_tokens, on_host, "cpu")
        self._pinned: PinnedMemory | None = None

    def pin(self, runtime: CudaRuntime | None) -> None:
        """Pin the memory until `close`; nothing without a runtime. Raises PinningError when it cannot be pinned."""
        if runtime is not None:
            self._pinned = PinnedMemory(runtime)
            self._pinned.pin(raw for buffers in self.buffers.values() for raw in buffers.raw)

    def free(self, component: str, pages: Slots) -> None:
        """Free pages of one component. Raises SlotError, changing nothing, when one is not allocated."""
        self.allocators[component].free(pages)

    def read(self, pool: str, slots: Slots, layer: int) -> RawBytes:
        """The raw bytes at the slots of one pool, uint8 [len(slots), slot_bytes]."""
        return self.buffers[pool].read(slots, layer)

    def page_bytes(self) -> dict[str, int]:
        """The bytes of one page by pool, over all its layers."""
        return {pool: sum(piece.nbytes for piece in buffers.pieces(1)) for pool, buffers in self.buffers.items()}

    def regions(self) -> list[memoryview]:
        """All memory of all pools: what pages come from and go to."""
        return [buffers.memory(number) for buffers in self.buffers.values() for number in range(len(buffers.raw))]

    def close(self) -> None:
        """Unpin the memory. May be called twice."""
        if self._pinned is not None:
            self._pinned.close()
