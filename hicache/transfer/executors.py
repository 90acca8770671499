"""StepExecutor and ThreadExecutor: who runs the jobs of one queue, a test step by step or a thread."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from threading import TIMEOUT_MAX, Condition, Thread
from typing import Generic, Protocol

from hicache.clock import Clock, WallClock
from hicache.transfer.job import NOT_STARTED, JobT, JobT_contra, Progress, Worker

LOG = logging.getLogger(__name__)

Run = Callable[[JobT, Progress], Progress]
"""Does some of a job: a Worker's `step` or `rest`."""


class Executor(Protocol[JobT_contra]):
    """Runs the jobs of one queue. Only the scheduler thread calls it; nothing but the waits and `close` may block."""

    def submit(self, job: JobT_contra) -> None:
        """Start a job, after those that were submitted before. Returns at once."""

    def progress(self, number: int) -> Progress:
        """How far a submitted job has come. Raises KeyError for one that is not known, or was released."""

    def stop(self, number: int) -> None:
        """Let a job end with the step that is running, if any."""

    def wait(self, number: int) -> bool:
        """Return when the job has ended, or when what runs is late. Whether the job has ended."""

    def is_late(self) -> bool:
        """Whether what runs now takes longer than it may."""

    def wait_layer(self, number: int, layer: int) -> bool:
        """Return when the layer may be read, or the job has ended without it. Whether it may be read.

        On a GPU the reader's stream waits instead of the caller.
        """

    def release(self, number: int) -> None:
        """The queue has seen the end of a job."""

    def close(self) -> bool:
        """End every job and stop. Whether it has stopped; False when what runs is late. May be called twice."""

    def join(self) -> None:
        """Return when a closed executor has stopped, however long that takes."""


@dataclass(slots=True)
class FailingWaits:
    """How many of the next waits for a job that has not ended make it fail. The executors of a cache share it."""

    left: int = 0


class StepExecutor(Generic[JobT]):
    """A job moves when a test says so, and as far as it says. A wait for a job moves it to its end, or makes it fail.

    The next step of a job counts as running: a stopped job does that one, when it is moved.
    """

    def __init__(self, worker: Worker[JobT], failing: FailingWaits | None = None) -> None:
        self._worker = worker
        self._failing = failing or FailingWaits()
        self._jobs: dict[int, JobT] = {}
        self._progress: dict[int, Progress] = {}
        self._stopped: set[int] = set()

    def submit(self, job: JobT) -> None:
        """Keep a job until it is moved."""
        self._jobs[job.number] = job
        self._progress[job.number] = Progress(0, (), has_ended=not job.parts)

    def pending(self) -> list[JobT]:
        """The jobs that have not ended, the oldest first."""
        return [job for number, job in self._jobs.items() if not self._progress[number].has_ended]

    def progress(self, number: int) -> Progress:
        return self._progress[number]

    def advance(self, number: int) -> None:
        """Do the next step of a pending job: one layer or one batch. Raises ValueError when it has ended."""
        progress = self._worker.step(self._pending(number), self._progress[number])
        has_ended = progress.has_ended or number in self._stopped
        self._progress[number] = Progress(progress.steps, progress.answers, has_ended)

    def complete(self, number: int) -> None:
        """Do all that is left of a pending job. Raises ValueError when it has ended."""
        if number in self._stopped:
            self.advance(number)
        else:
            self._progress[number] = self._worker.rest(self._pending(number), self._progress[number])

    def fail(self, number: int, parts_done: int) -> None:
        """Make a pending copy fail: its first parts are whole, and nothing more is done than that.

        Raises ValueError when the job has ended, or has no more parts than that.
        """
        job, steps = self._pending(number), self._progress[number].steps
        if not 0 <= parts_done < len(job.parts):
            raise ValueError(f"job {number} has {len(job.parts)} parts: it cannot fail after {parts_done}")
        answers = self._worker.rest(job.first(parts_done), NOT_STARTED).answers if parts_done else ()
        self._progress[number] = Progress(steps, answers, has_ended=True)

    def stop(self, number: int) -> None:
        self._stopped.add(number)

    def wait(self, number: int) -> bool:
        if self._progress[number].has_ended:
            return True
        if not self._fails_now(number):
            self.complete(number)
        return True

    def is_late(self) -> bool:
        """Never: it moves when the test says so."""
        return False

    def wait_layer(self, number: int, layer: int) -> bool:
        while self._progress[number].steps <= layer and not self._progress[number].has_ended:
            if not self._fails_now(number):
                self.advance(number)
        return self._progress[number].steps > layer

    def release(self, number: int) -> None:
        del self._jobs[number], self._progress[number]
        self._stopped.discard(number)

    def close(self) -> bool:
        """End pending jobs with the parts that are done."""
        for number, progress in self._progress.items():
            self._progress[number] = Progress(progress.steps, progress.answers, has_ended=True)
        return True

    def join(self) -> None:
        """Nothing runs by itself."""

    def _fails_now(self, number: int) -> bool:
        """Make a pending job fail if the next wait is to; whether it was."""
        if not self._failing.left:
            return False
        self._failing.left -= 1
        self.fail(number, parts_done=0)
        return True

    def _pending(self, number: int) -> JobT:
        if self._progress[number].has_ended:
            raise ValueError(f"job {number} has ended: {self._progress[number]}")
        return self._jobs[number]


class ThreadExecutor(Generic[JobT]):
    """One thread that runs one job after the other. Only bytes move here.

    The thread starts with the first job. `name`: of the thread. `run`: does some of a job: of a copy one layer, or all
    at once, which is faster for scattered small pages. The backend is called batch by batch, so that a prefetch which
    is stopped keeps what has come. `pause`: called before each run; a test
    delays the thread with it. A job whose run raises anything has ended with the parts that were done
    before; the exception is logged. `limit_s`: a run that takes longer is late, by `clock`. A wait is given up after as
    much real time in which no run has ended; what runs then is late, until it has ended.
    """

    def __init__(
        self,
        name: str,
        run: Run[JobT],
        pause: Callable[[], None] | None = None,
        limit_s: float = math.inf,
        clock: Clock | None = None,
    ) -> None:
        self._run_some = run
        self._pause = pause
        self._limit_s = limit_s
        self._timeout_s = min(limit_s, TIMEOUT_MAX)
        self._clock = clock or WallClock()
        self._begun_s: float | None = None
        self._runs_ended = 0
        self._given_up = -1
        self._progress: dict[int, Progress] = {}
        self._stopped: set[int] = set()
        self._is_closing = False
        self._changed = Condition()
        self._submitted: SimpleQueue[JobT | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name=name, daemon=True)

    def submit(self, job: JobT) -> None:
        """Start a job after those before. Raises RuntimeError when the executor is closed."""
        with self._changed:
            if self._is_closing:
                raise RuntimeError(f"job {job.number} was submitted to a closed executor")
            self._progress[job.number] = Progress(0, (), has_ended=not job.parts)
            if self._thread.ident is None:
                self._thread.start()
        self._submitted.put(job)

    def progress(self, number: int) -> Progress:
        with self._changed:
            return self._progress[number]

    def stop(self, number: int) -> None:
        with self._changed:
            self._stopped.add(number)

    def wait(self, number: int) -> bool:
        with self._changed:
            while not self._progress[number].has_ended and not self._is_late():
                self._wait_for_run(self._runs_ended)
            return self._progress[number].has_ended

    def is_late(self) -> bool:
        with self._changed:
            return self._is_late()

    def wait_layer(self, number: int, layer: int) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._progress[number].steps > layer or self._progress[number].has_ended)
            return self._progress[number].steps > layer

    def release(self, number: int) -> None:
        with self._changed:
            del self._progress[number]
            self._stopped.discard(number)

    def close(self) -> bool:
        """Finish the run that is going on, end all jobs with the parts that are done, and end the thread."""
        with self._changed:
            self._is_closing = True
            timeout_s = 0.0 if self._is_late() else self._timeout_s
        self._submitted.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    def _wait_for_run(self, ended: int) -> None:
        """Return when more runs than these have ended. After the time limit what runs is late."""
        if not self._changed.wait_for(lambda: self._runs_ended > ended, self._timeout_s):
            self._given_up = ended

    def _work(self) -> None:
        while (job := self._submitted.get()) is not None:
            progress = Progress(0, (), has_ended=not job.parts)
            while not progress.has_ended:
                progress = self._do(job, progress)
                self._publish(job, progress)

    def _do(self, job: JobT, progress: Progress) -> Progress:
        with self._changed:
            if self._is_closing or job.number in self._stopped:
                return Progress(progress.steps, progress.answers, has_ended=True)
            self._begun_s = self._clock.now()
        try:
            if self._pause is not None:
                self._pause()
            return self._run_some(job, progress)
        except BaseException:
            # Also exceptions that are meant to end a thread: the jobs after it would never run.
            LOG.exception("%s job %d of %d parts failed", job.kind.value, job.number, len(job.parts))
            return Progress(progress.steps, progress.answers, has_ended=True)

    def _publish(self, job: JobT, progress: Progress) -> None:
        # The bytes are there: the change may be visible only now.
        with self._changed:
            self._progress[job.number] = progress
            self._begun_s = None
            self._runs_ended += 1
            self._changed.notify_all()

    def _is_late(self) -> bool:
        is_slow = self._begun_s is not None and self._clock.now() - self._begun_s >= self._limit_s
        return is_slow or self._given_up == self._runs_ended
