"""ManualExecutor: its jobs are as far as a test says."""

from __future__ import annotations

from typing import Generic

from hicache.transfer.job import NOT_STARTED, JobT, Progress


class ManualExecutor(Generic[JobT]):
    """Runs nothing. A wait or a stop ends a job as it is.

    `jobs`: by number, those that were submitted. `waited`, `forgotten`: the numbers that the queue passed, in order.
    """

    def __init__(self) -> None:
        self.jobs: dict[int, JobT] = {}
        self.waited: list[int] = []
        self.forgotten: list[int] = []
        self._progress: dict[int, Progress] = {}

    def report(self, number: int, *answers: int, has_ended: bool) -> None:
        """From now on a job has these answers, and as many steps."""
        self._progress[number] = Progress(len(answers), answers, has_ended)

    def submit(self, job: JobT) -> None:
        self.jobs[job.number] = job
        self._progress[job.number] = NOT_STARTED

    def progress(self, number: int) -> Progress:
        return self._progress[number]

    def stop(self, number: int) -> None:
        self.report(number, *self._progress[number].answers, has_ended=True)

    def wait(self, number: int) -> None:
        self.waited.append(number)
        self.stop(number)

    def wait_layer(self, number: int, layer: int) -> None:
        self.wait(number)

    def forget(self, number: int) -> None:
        self.forgotten.append(number)

    def close(self) -> None:
        """End every job."""
        for number in self._progress:
            self.stop(number)
