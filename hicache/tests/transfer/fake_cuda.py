"""FakeCuda: streams and events whose work runs when a test says so; QueuedCopier: queues copies on them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from hicache.pools.copy import PoolCopier
from hicache.transfer.job import CopyJob

OF_CACHE = torch.device("cuda", 1)
"""The device of the cache. The current device is another one."""


class FakeEvent:
    """Fires when its stream comes to it."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda
        self._has_fired = False

    def fire(self) -> None:
        """The stream has come to it."""
        self._has_fired = True

    def query(self) -> bool:
        """Whether it has fired."""
        return self._has_fired

    def synchronize(self) -> None:
        """Run all streams until it has fired."""
        while not self._has_fired:
            assert self._cuda.run(), "an event never fires: no stream can go on"


class FakeStream:
    """Work in order. An event in front of a piece of work holds it back until it has fired."""

    def __init__(self, cuda: FakeCuda, device: torch.device) -> None:
        self.device = device
        self._cuda = cuda
        self._work: deque[tuple[FakeEvent | None, Callable[[], None]]] = deque()

    def launch(self, work: Callable[[], None]) -> None:
        """Queue work."""
        self._work.append((None, work))

    def record_event(self) -> FakeEvent:
        """An event that fires after all work so far."""
        event = FakeEvent(self._cuda)
        self.launch(event.fire)
        return event

    def wait_event(self, event: FakeEvent) -> None:
        """Hold back what comes after until the event has fired."""
        self._work.append((event, lambda: None))

    def wait_stream(self, stream: FakeStream) -> None:
        """Hold back what comes after until the other stream has done what it has so far."""
        self.wait_event(stream.record_event())

    def synchronize(self) -> None:
        """Run all streams until this one is empty."""
        self.record_event().synchronize()

    def run(self) -> bool:
        """Do one piece of work, events and waits that are over included. False when there is none that may run."""
        if not self._work or (self._work[0][0] is not None and not self._work[0][0].query()):
            return False
        self._work.popleft()[1]()
        return True


class FakeCuda:
    """What torch.cuda has, as far as streams need it, with two devices.

    `streams`: in the order in which they were made. Each device has a current stream: the first of its streams, until
    another is. `cuda:0` is the current device, until a stream of the other one becomes the current stream.
    """

    def __init__(self) -> None:
        self.streams: list[FakeStream] = []
        self.device = torch.device("cuda", 0)
        self._current = {OF_CACHE: self.Stream(OF_CACHE)}

    def Stream(self, device: torch.device | None = None) -> FakeStream:  # noqa: N802
        """A stream of its own, on the current device if none is named."""
        self.streams.append(FakeStream(self, device or self.device))
        return self.streams[-1]

    def current_stream(self, device: torch.device | None = None) -> FakeStream:
        """The stream of a device that work is queued on, of the current device if none is named."""
        wanted = device or self.device
        if wanted not in self._current:
            self._current[wanted] = self.Stream(wanted)
        return self._current[wanted]

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        """Make a stream the current one of its device, and that the current device."""
        before = self.device, self.current_stream(stream.device)
        self.device, self._current[stream.device] = stream.device, stream
        try:
            yield
        finally:
            self.device, self._current[stream.device] = before

    def run(self) -> bool:
        """Do one piece of work of the first stream that may go on."""
        return any(stream.run() for stream in self.streams)


class QueuedCopier:
    """A copier that queues copies on the current stream. `broken`: a job, and the layer of it that cannot be queued."""

    def __init__(self, copier: PoolCopier, cuda: FakeCuda, broken: tuple[int, int] | None = None) -> None:
        self._copier = copier
        self._cuda = cuda
        self._broken = broken
        self.device = OF_CACHE
        self.layers = copier.layers

    def copy_layer(self, job: CopyJob, layer: int) -> None:
        """Copy now."""
        self._copier.copy_layer(job, layer)

    def copy(self, job: CopyJob) -> None:
        """Copy now."""
        self._copier.copy(job)

    def queue_layer(self, job: CopyJob, layer: int) -> None:
        """Copy when the stream comes to it."""
        if (job.number, layer) == self._broken:
            raise RuntimeError(f"no memory to queue layer {layer}")
        self._cuda.current_stream().launch(lambda: self._copier.copy_layer(job, layer))

    def queue(self, job: CopyJob) -> None:
        """Copy when the stream comes to it."""
        self._cuda.current_stream().launch(lambda: self._copier.copy(job))
