"""FakeCudaRuntime: pins memory in a list, and refuses when a test says so."""

from __future__ import annotations


class FakeCudaRuntime:
    """`refused`: which registration fails, counted from 0. `pinned`: pointers and sizes, in order."""

    def __init__(self, refused: int | None = None) -> None:
        self.pinned: dict[int, int] = {}
        self._refused = refused
        self._calls = 0

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> int:  # noqa: N802
        """Pin memory that shares no memory page with what is pinned already."""
        self._calls += 1
        if self._calls - 1 == self._refused:
            return 2
        assert pointer not in self.pinned, f"{pointer} is pinned already"
        self.pinned[pointer] = size
        return 0

    def cudaHostUnregister(self, pointer: int) -> int:  # noqa: N802
        """Unpin memory, or 713 when it is not pinned."""
        return 0 if self.pinned.pop(pointer, None) else 713

    def cudaGetErrorString(self, error: int) -> str:  # noqa: N802
        """CUDA's own words."""
        return {2: "out of memory", 713: "part or all of the requested memory range is not mapped"}[error]
