"""Sanitizer: the engine of torch's own sanitizer for CUDA, told what a model is asked for, as a second opinion."""

from __future__ import annotations

from collections import defaultdict

from torch.cuda._sanitizer import EventHandler, SynchronizationError

from hicache.testing.cuda_model.races import Access
from hicache.testing.cuda_model.streams import Touch


class Sanitizer:
    """What the engine finds, while it is the observer of a model.

    It knows whole pieces of memory, not bytes; streams, not the host; and no allocator. `found`: its errors, with the
    launch that each came with.
    """

    def __init__(self) -> None:
        self.found: list[tuple[Access, SynchronizationError]] = []
        self._engine = EventHandler()

    def told(self, what: str, *numbers: int) -> None:
        """Something other than a launch."""
        getattr(self._engine, f"_handle_{what}")(*numbers)

    def launched(self, access: Access, reads: list[Touch], writes: list[Touch]) -> None:
        """A launch on a stream."""
        written = {touch.address for touch in writes}
        read = {touch.address for touch in reads} - written
        names: defaultdict[int, list[str]] = defaultdict(list)
        errors = self._engine._handle_kernel_launch(access.actor, read, written, set(), access.operation, names)
        self.found += [(access, error) for error in errors]
