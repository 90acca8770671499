"""StepStorage: storage is asked when a test says so, one batch at a time."""

from __future__ import annotations

from hicache.transfer.storage_job import StorageJob, StorageProgress, StorageWorker, is_whole


class StepStorage:
    """Nothing is asked by itself. What somebody waits for is asked while they wait.

    The next batch of a job counts as running: a job that is told to stop still does that one, when it is advanced.
    """

    def __init__(self, worker: StorageWorker) -> None:
        self._worker = worker
        self._jobs: dict[int, StorageJob] = {}
        self._progress: dict[int, StorageProgress] = {}
        self._stopped: set[int] = set()

    def submit(self, job: StorageJob) -> None:
        """Keep a job until it is advanced."""
        self._jobs[job.number] = job
        self._progress[job.number] = StorageProgress((), has_ended=not job.batches)

    def pending(self) -> list[StorageJob]:
        """The jobs that have not ended, the oldest first."""
        return [job for number, job in self._jobs.items() if not self._progress[number].has_ended]

    def progress(self, number: int) -> StorageProgress:
        return self._progress[number]

    def advance(self, number: int) -> None:
        """Do the next batch of a pending job. Raises ValueError when it has ended."""
        job, progress = self._jobs[number], self._progress[number]
        if progress.has_ended:
            raise ValueError(f"storage job {number} has ended: {progress}")
        batch = job.batches[len(progress.answers)]
        answers = (*progress.answers, self._worker.work(job, batch))
        has_ended = len(answers) == len(job.batches) or number in self._stopped or not is_whole(batch, answers[-1])
        self._progress[number] = StorageProgress(answers, has_ended)

    def stop(self, number: int) -> None:
        self._stopped.add(number)

    def wait(self, number: int) -> None:
        while not self._progress[number].has_ended:
            self.advance(number)

    def forget(self, number: int) -> None:
        del self._jobs[number], self._progress[number]
        self._stopped.discard(number)

    def close(self) -> None:
        """Let what is pending end as it is: nothing more is asked."""
        for number, progress in self._progress.items():
            self._progress[number] = StorageProgress(progress.answers, has_ended=True)
