"""Storage jobs, and a worker that answers as it is told."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event

import numpy as np

from hicache.transfer.job import PageBatch, PrefixQuery, StorageJob
from hicache.types import Pool, StorageKind

PATIENCE_S = 30
"""Until a test that waits for another thread gives up."""


class ToldWorker:
    """Answers with the next of some numbers once its gate is open. `asked`: (job, batch) in order."""

    def __init__(self, answers: Sequence[int]) -> None:
        self.gate = Event()
        self.entered = Event()
        self.asked: list[tuple[int, int]] = []
        self._answers = list(answers)

    def work(self, job: StorageJob, batch: PageBatch | PrefixQuery) -> int:
        """Do one batch."""
        self.entered.set()
        assert self.gate.wait(PATIENCE_S), "the gate was never opened"
        self.asked.append((job.number, job.batches.index(batch)))
        return self._answers.pop(0)


def batch_of(pages: int) -> PageBatch:
    return PageBatch(Pool.KV, tuple(f"kv/{page}" for page in range(pages)), np.arange(1, pages + 1))


def job_of(number: int, kind: StorageKind, *pages: int) -> StorageJob:
    """A job with a batch of so many pages for each number."""
    return StorageJob(number, kind, tuple(batch_of(count) for count in pages), ())


def query_of(number: int) -> StorageJob:
    return StorageJob(number, StorageKind.QUERY, (PrefixQuery(("kv/0", "kv/1"), ()),), ())
