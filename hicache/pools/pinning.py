"""PinnedMemory: host memory that CUDA has registered, so that copies to and from it need no staging and no waiting."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch

from hicache.errors import PinningError

MAPPED_FOR_EVERY_CONTEXT = 1 | 2
"""cudaHostRegisterPortable and cudaHostRegisterMapped: kernels of any device may read and write it."""


class CudaRuntime(Protocol):
    """What is needed of CUDA's runtime. Torch has it as `torch.cuda.cudart()`."""

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> Any:  # noqa: N802
        """Pin memory. Returns an error code, 0 for success."""

    def cudaHostUnregister(self, pointer: int) -> Any:  # noqa: N802
        """Unpin memory that was pinned. Returns an error code, 0 for success."""

    def cudaGetErrorString(self, error: Any) -> str:  # noqa: N802
        """What an error code means."""


def runtime_for(device: str) -> CudaRuntime | None:
    """The runtime that pins memory for a device, or None where nothing is to be pinned."""
    if torch.device(device).type != "cuda":
        return None
    runtime: CudaRuntime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    return runtime


def seen_from(device: torch.device, tensor: torch.Tensor) -> torch.Tensor:
    """Pinned memory as a tensor of the device, without a copy. Raises PinningError when the device cannot reach it."""
    if device.type != "cuda":
        return tensor
    seen = torch.as_tensor(_CudaArray(tensor), device=device)
    if seen.data_ptr() != tensor.data_ptr():
        raise PinningError(f"host memory at {tensor.data_ptr()} was copied: {device} does not reach it where it is")
    return seen


class _CudaArray:
    """A pinned tensor as the CUDA array interface describes it: torch takes its word for where it lies."""

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
    """Pins whole tensors, one registration each: no page of a pool straddles two. Pins all of them, or none.

    Raises PinningError with CUDA's code and text when a tensor cannot be pinned.
    """

    def __init__(self, tensors: Iterable[torch.Tensor], runtime: CudaRuntime) -> None:
        self._runtime = runtime
        self._pointers: list[int] = []
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
        error = self._runtime.cudaHostRegister(storage.data_ptr(), storage.nbytes(), MAPPED_FOR_EVERY_CONTEXT)
        self._check(f"cudaHostRegister of {storage.nbytes()} bytes", error)
        self._pointers.append(storage.data_ptr())

    def close(self) -> None:
        """Unpin everything. May be called twice. Raises PinningError when CUDA refuses, after trying all."""
        pointers, self._pointers = self._pointers, []
        errors = [self._runtime.cudaHostUnregister(pointer) for pointer in pointers]
        for error in errors:
            self._check("cudaHostUnregister", error)

    def _check(self, call: str, error: Any) -> None:
        if int(error):
            raise PinningError(f"{call} failed with CUDA error {int(error)}: {self._runtime.cudaGetErrorString(error)}")
