"""A count of what is done that several loads share."""

from __future__ import annotations

from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.transfer.executors import Executor, StepExecutor
from hicache.transfer.job import Copier, CopyJob, CopyWorker, Progress
from hicache.types import TransferKind


class _OneCounter(StepExecutor[CopyJob]):
    """Once a load has counted up to the last layer, so has each that comes after it. It is copied with the next."""

    def __init__(self, copier: Copier) -> None:
        super().__init__(CopyWorker(copier))
        self._copier = copier
        self._has_counted = False
        self._owed: list[CopyJob] = []

    def submit(self, job: CopyJob) -> None:
        while self._owed:
            self._copier.copy(self._owed.pop())
        super().submit(job)

    def progress(self, number: int) -> Progress:
        job = self._jobs[number]
        if job.kind is TransferKind.LOAD and self._has_counted:
            return Progress(self._copier.layers, (1,) * len(job.parts), has_ended=True)
        return super().progress(number)

    def wait(self, number: int) -> None:
        if not self.progress(number).has_ended:
            super().wait(number)
            self._has_counted |= self._jobs[number].kind is TransferKind.LOAD

    def forget(self, number: int) -> None:
        job = self._jobs[number]
        if job in self.pending():
            self._owed.append(job)
        super().forget(number)


class OneCounter(ReferenceAdapter):
    """Whoever waits for a load looks at the count of the one before."""

    def _open_copies(self, kind: TransferKind, copier: Copier) -> Executor[CopyJob]:
        self._copies[kind] = _OneCounter(copier)
        return self._copies[kind]
