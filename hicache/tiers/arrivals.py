"""Arrivals: how much of what a prefetch asked for has come, pool by pool."""

from __future__ import annotations

from hicache.parallel.agree import Agreement
from hicache.tiers.fetch import Fetch
from hicache.tiers.page_requests import PageRequests
from hicache.tiers.storage_queue import StorageQueue
from hicache.transfer.storage_job import PageBatch, StorageJob, StorageProgress, is_whole
from hicache.types import COMPONENT_POOL, Pool, StorageKind


class Arrivals:
    """Counts the pages of prefetches. Pools without gaps count from the front; of the others all is needed."""

    def __init__(self, requests: PageRequests, queue: StorageQueue, agreement: Agreement) -> None:
        self.requests = requests
        self._gapless = requests.prefix_pools
        self._tails = {COMPONENT_POOL[name]: name for name in requests.tail_pages}
        self._queue = queue
        self._agreement = agreement

    def count(self, fetch: Fetch, job: StorageJob, progress: StorageProgress) -> None:
        """Note how much of each pool without gaps has come."""
        for pool, pages in _pages(job, progress).items():
            if pool in self._gapless:
                fetch.whole[pool] = fetch.whole.get(pool, 0) + pages

    def left(self, fetch: Fetch, job: StorageJob, progress: StorageProgress) -> int:
        """The prefix that is left of the one that was tried: all of it, what came without a gap, or one page less."""
        if is_complete(job, progress):
            return fetch.length
        failed = job.batches[len(progress.answers) - 1]
        assert isinstance(failed, PageBatch), f"{job} moves no pages"
        return fetch.whole[failed.pool] if failed.pool in self._gapless else fetch.length - 1

    def unbroken(self, fetch: Fetch) -> int:
        """The pages from the front that have come of every pool without gaps."""
        return min(fetch.whole.get(pool, 0) for pool in self._gapless)

    def so_far(self, fetch: Fetch) -> int:
        """The prefix that could be used, on every rank, if nothing more came."""
        job = fetch.job
        if job is None or job.kind is not StorageKind.FETCH:
            return 0
        came = _pages(job, self._queue.progress(job))
        before = {pool: fetch.whole.get(pool, 0) for pool in self._gapless}
        mine = {pool: came.get(pool, 0) + before.get(pool, 0) for pool in (*self._gapless, *self._tails)}
        agreed = self._agreement.completed(mine)
        length = min(agreed[pool] for pool in self._gapless)
        if not self._tails:
            return length
        are_whole = all(agreed[pool] == len(fetch.pages[name]) for pool, name in self._tails.items())
        return length if are_whole and length == fetch.length else 0


def is_complete(job: StorageJob, progress: StorageProgress) -> bool:
    """Whether every batch was done to its end."""
    answers = progress.answers
    return len(answers) == len(job.batches) and is_whole(job.batches[-1], answers[-1])


def _pages(job: StorageJob, progress: StorageProgress) -> dict[Pool, int]:
    """How many pages of each pool a job has brought."""
    pages: dict[Pool, int] = {}
    for batch, answer in zip(job.batches, progress.answers, strict=False):
        if isinstance(batch, PageBatch):
            pages[batch.pool] = pages.get(batch.pool, 0) + answer
    return pages
