"""Streams and events of the model: queues of work that runs in any order that events allow."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Protocol

from hicache.optional_torch import torch
from hicache.testing.cuda.races import Clock, RaceLog, Shadow, SlotAccess, Where, join

HOST = 0
"""The host as an actor: all its threads."""

MODEL = str(Path(__file__).parent)
TORCH = str(Path(torch.__file__).parent)


class Touch(Protocol):
    """Some bytes of a piece of memory that work reads or writes. Which they are is known when it runs."""

    @property
    def shadow(self) -> Shadow:
        """Of the memory."""

    def where(self) -> Where:
        """The bytes."""


class StreamMark:
    """A place in a stream, which the stream has come to or not. `clock`: what happens before."""

    __slots__ = ("clock", "is_reached")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.is_reached = False

    def reach(self) -> None:
        """The stream has come to it."""
        self.is_reached = True


class ModelStream:
    """Work in order. A mark in front of a piece of work holds it back until it is reached."""

    def __init__(self, machine: Machine, device: torch.device, name: str, clock: Clock) -> None:
        self.device = device
        self.name = name
        self.cuda_stream = next(machine.actors)
        self.clock = clock
        self._machine = machine
        self._work: deque[tuple[StreamMark | None, Callable[[], object]]] = deque()

    def __repr__(self) -> str:
        return self.name

    # As torch's streams.

    def record_event(self, event: ModelEvent | None = None) -> ModelEvent:
        """An event that fires after all work so far."""
        event = event or ModelEvent(self._machine)
        event.record(self)
        return event

    def wait_event(self, event: ModelEvent) -> None:
        """Hold back what comes after until the event has fired. An event that was never recorded has."""
        if event.mark is not None:
            self.wait_mark(event.mark)
            self._machine.told("event_wait", event.number, self.cuda_stream)

    def wait_stream(self, stream: ModelStream) -> None:
        """Hold back what comes after until the other stream has done what it has so far."""
        self.wait_event(stream.record_event())

    def synchronize(self) -> None:
        """Return when all work so far is done."""
        self._machine.wait(self.mark(), f"{self}.synchronize")
        self._machine.told("stream_synchronization", self.cuda_stream)

    def query(self) -> bool:
        """Whether all work so far is done."""
        return self._machine.has_reached(
            self.mark() if self._work else StreamMark(self.clock), is_reached=not self._work
        )

    # As the model needs it.

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to be done."""
        return not self._work

    @property
    def may_run(self) -> bool:
        """Whether a piece of work may be done now."""
        return bool(self._work) and (self._work[0][0] is None or self._work[0][0].is_reached)

    def mark(self) -> StreamMark:
        """The end of the work so far."""
        mark = StreamMark(dict(self.clock))
        self._work.append((None, mark.reach))
        return mark

    def wait_mark(self, mark: StreamMark) -> None:
        """Hold back what comes after until the mark is reached."""
        join(self.clock, mark.clock)
        self._work.append((mark, lambda: None))

    def launch(
        self, operation: str, work: Callable[[], object], reads: Iterable[Touch], writes: Iterable[Touch]
    ) -> None:
        """Queue work that reads and writes some bytes."""
        machine, touches = self._machine, [(touch, False) for touch in reads] + [(touch, True) for touch in writes]
        access = machine.access(self, operation)
        machine.told_launch(self, access)

        def run() -> None:
            for touch, is_write in touches:
                try:
                    where = touch.where()
                except IndexError as error:
                    raise RuntimeError(f"CUDA error: device-side assert triggered in {access}: {error}") from error
                touch.shadow.touch(access, where, is_write=is_write)
                machine.told_touch(access, touch.shadow.address, where, is_write=is_write)
            work()

        self._work.append((None, run))
        machine.asked(self)

    def run(self) -> bool:
        """Do one piece of work, marks and waits that are over included. False when there is none that may run."""
        has_run = self.step()
        self._machine.reuse_freed()
        return has_run

    def step(self) -> bool:
        """As `run`, but memory that it makes free is not reused yet."""
        if not self.may_run:
            return False
        with RunningWork():
            self._work.popleft()[1]()
        return True


class ModelEvent:
    """Fires when the stream that it was recorded on comes to it."""

    def __init__(self, machine: Machine) -> None:
        self.number = next(machine.events)
        self.mark: StreamMark | None = None
        self._machine = machine
        self._device: torch.device | None = None
        machine.told("event_creation", self.number)

    def record(self, stream: ModelStream | None = None) -> None:
        """Let it fire after all work so far of a stream, the current one if none is named."""
        stream = stream or self._machine.current_stream()
        if self._device not in (None, stream.device):
            raise RuntimeError(f"event of {self._device} is recorded on {stream} of {stream.device}")
        self._device = stream.device
        self.mark = stream.mark()
        self._machine.told("event_record", self.number, stream.cuda_stream)

    def wait(self, stream: ModelStream | None = None) -> None:
        """Let a stream wait for it, the current one if none is named."""
        (stream or self._machine.current_stream()).wait_event(self)

    def query(self) -> bool:
        """Whether it has fired. An event that was never recorded has."""
        has_fired = self.mark is None or self._machine.has_reached(self.mark)
        if has_fired:
            self._machine.told("event_synchronization", self.number)
        return has_fired

    def synchronize(self) -> None:
        """Return when it has fired."""
        if self.mark is not None:
            self._machine.wait(self.mark, f"event {self.number}.synchronize")
        self._machine.told("event_synchronization", self.number)


class Observer(Protocol):
    """Observes what the host asks of the machine, as torch's sanitizer does."""

    def told(self, what: str, *numbers: int) -> None:
        """Something other than a launch."""

    def launched(self, access: SlotAccess) -> None:
        """A launch on a stream."""

    def touched(self, access: SlotAccess, address: int, where: Where, *, is_write: bool) -> None:
        """A launch runs, and reads or writes some bytes of the memory at an address."""


class Machine:
    """The streams of all devices, and the host that asks for their work.

    `order`: chooses which stream goes on, and how far, whenever the host asks something; without it work runs only when
    a test says so, or the host waits for it. `launch_blocking`: as CUDA_LAUNCH_BLOCKING=1, so that all runs in order
    as it is asked for. `waits`: where the host waited for a stream that had work to do.
    """

    def __init__(
        self, order: random.Random | None = None, observer: Observer | None = None, *, launch_blocking: bool = False
    ) -> None:
        self.actors = count(HOST + 1)
        self.events = count(1)
        self.log = RaceLog()
        self.streams: list[ModelStream] = []
        self._reuses: list[ModelStream] = []
        self.waits: list[str] = []
        self.clock: Clock = {}
        self._observer = observer
        self._launch_blocking = launch_blocking
        self._order = order
        self._pace = order.choice((1, 3, 12)) if order else 0
        self._numbers: dict[int, int] = {}

    def current_stream(self) -> ModelStream:
        """The stream that work is queued on."""
        raise NotImplementedError

    def open_stream(self, device: torch.device) -> ModelStream:
        """A stream of its own."""
        stream = ModelStream(self, device, f"stream {len(self.streams) + 1} of {device}", {})
        self.streams.append(stream)
        self.told("stream_creation", stream.cuda_stream)
        return stream

    def reuse(
        self, memory: Touch, device: torch.device, after: Iterable[StreamMark], poison: Callable[[], object]
    ) -> None:
        """Another owner writes freed memory as soon as some marks are reached."""
        stream = ModelStream(self, device, "the memory allocator", dict(self.clock))
        for mark in after:
            stream.wait_mark(mark)
        stream.launch("reuse of freed memory", poison, (), (memory,))
        self._reuses.append(stream)

    def reuse_freed(self) -> None:
        """Let another owner write freed memory that no pending work uses any more."""
        for stream in self._reuses:
            while stream.step():
                pass
        self._reuses = [stream for stream in self._reuses if not stream.is_idle]

    # Accesses.

    def access(self, stream: ModelStream | None, operation: str) -> SlotAccess:
        """Note an access by work that a stream is given now, or by the host."""
        actor = stream.cuda_stream if stream else HOST
        number = self._numbers[actor] = self._numbers.get(actor, 0) + 1
        clock = self.clock
        if stream is not None:
            join(stream.clock, self.clock)
            clock = stream.clock
        clock[actor] = number
        return self.log.access(actor, number, clock, operation, stream.name if stream else "the host", _place())

    def host_touches(self, operation: str, touch: Touch, *, is_write: bool) -> None:
        """The host reads or writes some bytes now."""
        access = self.access(None, operation)
        touch.shadow.touch(access, touch.where(), is_write=is_write)

    # Time.

    def run(self) -> bool:
        """Do one piece of work of a stream that may go on: the first, or any when there is an order."""
        ready = [stream for stream in self.streams if stream.may_run]
        if not ready:
            return False
        return (self._order.choice(ready) if self._order else ready[0]).run()

    def pass_time(self) -> None:
        """Let streams go on, as far as the order says."""
        if self._order is not None:
            for _ in range(self._order.randint(0, self._pace)):
                if not self.run():
                    return

    def has_reached(self, mark: StreamMark, *, is_reached: bool = False) -> bool:
        """Whether a stream has come to a mark. If so, the host knows that what was before it is done."""
        self.pass_time()
        if is_reached or mark.is_reached:
            join(self.clock, mark.clock)
        return is_reached or mark.is_reached

    def wait(self, mark: StreamMark, why: str) -> None:
        """Run streams until one has come to a mark."""
        if not mark.is_reached:
            self.waits.append(f"{why}, called by {_place()}")
        while not mark.is_reached:
            if not self.run():
                raise RuntimeError(f"{why} never returns: no stream can go on")
        join(self.clock, mark.clock)

    def asked(self, stream: ModelStream) -> None:
        """Work was given to a stream. With CUDA_LAUNCH_BLOCKING the host waits for it."""
        if self._launch_blocking and stream in self.streams:
            mark = stream.mark()
            while not mark.is_reached and self.run():
                pass
            join(self.clock, mark.clock)

    def drain(self) -> None:
        """Run all that may run."""
        while self.run():
            pass

    # The observer.

    def told(self, what: str, *numbers: int) -> None:
        """Tell the observer, if there is one."""
        if self._observer is not None:
            self._observer.told(what, *numbers)

    def told_launch(self, stream: ModelStream, access: SlotAccess) -> None:
        """Report a launch to the observer, which is not notified of the allocator."""
        if self._observer is not None and stream in self.streams:
            self._observer.launched(access)

    def told_touch(self, access: SlotAccess, address: int, where: Where, *, is_write: bool) -> None:
        """Tell the observer what a launch touches."""
        if self._observer is not None:
            self._observer.touched(access, address, where, is_write=is_write)


class RunningWork:
    """While work runs, what it does with tensors is what they are on the CPU."""

    def __init__(self) -> None:
        self._guards = (torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch())

    def __enter__(self) -> None:
        for guard in self._guards:
            guard.__enter__()

    def __exit__(self, *error: object) -> None:
        for guard in reversed(self._guards):
            guard.__exit__(None, None, None)


def _place() -> str:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((MODEL, TORCH)):
        frame = frame.f_back
    code = frame.f_code
    return f"{'/'.join(code.co_filename.rsplit('/', 2)[1:])}:{frame.f_lineno} in {code.co_name}"
