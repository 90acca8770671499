"""StepExecutor: a job moves when a test says so, and as far as it says."""

from __future__ import annotations

from dataclasses import replace

from hicache.transfer.executors.protocol import Copier, Progress
from hicache.transfer.job import Job


class StepExecutor:
    """Nothing moves by itself. What somebody waits for moves while they wait.

    `waits_to_fail`: how many of the next waits for a job that has not ended find that it fails, with nothing copied.
    """

    def __init__(self, copier: Copier) -> None:
        self.waits_to_fail = 0
        self._copier = copier
        self._jobs: dict[int, Job] = {}
        self._progress: dict[int, Progress] = {}

    def submit(self, job: Job) -> None:
        """Keep a job until it is moved."""
        self._jobs[job.number] = job
        self._progress[job.number] = Progress(layers=0, has_ended=False, parts_done=0)

    def pending(self) -> list[int]:
        """The jobs that have not ended, the oldest first."""
        return [number for number, progress in self._progress.items() if not progress.has_ended]

    def job(self, number: int) -> Job:
        """A job that was submitted and not forgotten. Raises KeyError for any other."""
        return self._jobs[number]

    def progress(self, number: int) -> Progress:
        return self._progress[number]

    def advance(self, number: int) -> None:
        """Copy the next layer of a pending job. Raises ValueError when it has ended."""
        job, layer = self._pending(number), self._progress[number].layers
        self._copier.copy_layer(job, layer)
        has_ended = layer + 1 == self._copier.layers
        self._progress[number] = Progress(layer + 1, has_ended, len(job.parts) if has_ended else 0)

    def complete(self, number: int) -> None:
        """Copy all that is left of a pending job. Raises ValueError when it has ended."""
        job = self._pending(number)
        if self._progress[number].layers:
            while not self._progress[number].has_ended:
                self.advance(number)
        else:
            self._copier.copy(job)
            self._progress[number] = Progress(self._copier.layers, has_ended=True, parts_done=len(job.parts))

    def fail(self, number: int, parts_done: int) -> None:
        """End a pending job with its first parts whole, and nothing more copied than that.

        Raises ValueError when the job has ended, or for as many parts as it has.
        """
        job = self._pending(number)
        if not 0 <= parts_done < len(job.parts):
            raise ValueError(f"job {number} has {len(job.parts)} parts: it cannot fail after {parts_done}")
        if parts_done:
            self._copier.copy(replace(job, parts=job.parts[:parts_done]))
        self._progress[number] = Progress(self._progress[number].layers, has_ended=True, parts_done=parts_done)

    def wait(self, number: int) -> None:
        if self._progress[number].has_ended:
            return
        if self.waits_to_fail:
            self.waits_to_fail -= 1
            self.fail(number, parts_done=0)
        else:
            self.complete(number)

    def wait_layer(self, number: int, layer: int) -> None:
        while self._progress[number].layers <= layer and not self._progress[number].has_ended:
            self.advance(number)

    def forget(self, number: int) -> None:
        del self._jobs[number], self._progress[number]

    def close(self) -> None:
        """Let what is pending fail, with nothing more copied."""
        for number in self.pending():
            self.fail(number, parts_done=0)

    def _pending(self, number: int) -> Job:
        if self._progress[number].has_ended:
            raise ValueError(f"job {number} has ended: {self._progress[number]}")
        return self._jobs[number]
