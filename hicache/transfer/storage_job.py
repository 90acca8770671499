"""StorageJob: what storage is asked in one go, in batches; and the protocols of who asks, and who does the work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hicache.storage.base import PoolQuery
from hicache.types import Pool, Slots, StorageKind


@dataclass(frozen=True, slots=True, eq=False)
class PageBatch:
    """Pages of one pool: the object of each, and the host page it comes to or from. int64 [len(keys)]."""

    pool: Pool
    keys: tuple[str, ...]
    pages: Slots


@dataclass(frozen=True, slots=True, eq=False)
class PrefixQuery:
    """A prefix that storage is asked about: its pages, and what other pools must have with them."""

    keys: tuple[str, ...]
    pools: tuple[PoolQuery, ...]


@dataclass(frozen=True, slots=True, eq=False)
class StorageJob:
    """What storage is asked in one go. `number`: unique. `prefix_keys`: of the pages before, for the backend."""

    number: int
    kind: StorageKind
    batches: tuple[PageBatch | PrefixQuery, ...]
    prefix_keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StorageProgress:
    """How far a job has come.

    `answers`: of each batch that is done, how many of its first pages are whole; of a query, how many can be used. A
    job ends with its last batch, with the first that is not whole, or, when it was told to stop, with the one that ran.
    """

    answers: tuple[int, ...]
    has_ended: bool


def is_whole(batch: PageBatch | PrefixQuery, answer: int) -> bool:
    """Whether a batch was done to its end."""
    return isinstance(batch, PrefixQuery) or answer == len(batch.keys)


class StorageWorker(Protocol):
    """Asks the backend. It moves bytes and knows neither tree nor allocators; it never raises."""

    def work(self, job: StorageJob, batch: PageBatch | PrefixQuery) -> int:
        """Do one batch of a job; how many of its first pages are whole, or can be used."""


class StorageExecutor(Protocol):
    """Runs storage jobs. Called by the scheduler thread only; nothing but `wait` and `close` may block."""

    def submit(self, job: StorageJob) -> None:
        """Start a job, after those of its kind that were submitted before. Returns at once."""

    def progress(self, number: int) -> StorageProgress:
        """How far a submitted job has come. Raises KeyError for one that is not known, or was forgotten."""

    def stop(self, number: int) -> None:
        """Let a job end with the batch that is running, if any."""

    def wait(self, number: int) -> None:
        """Return when the job has ended."""

    def forget(self, number: int) -> None:
        """The end of a job was seen."""

    def close(self) -> None:
        """End every job and stop. May be called twice."""
