"""CopyJob and StorageJob: what an executor runs in one go; and Progress, how far it has come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, TypeVar

from hicache.storage.base import PoolQuery
from hicache.types import Slots, StorageKind, TransferKind


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """Pages of one component, int64 [pages] each, pairwise the same data on device and host; states for MAMBA."""

    device: Slots
    host: Slots


@dataclass(frozen=True, slots=True, eq=False)
class CopyJob:
    """Pages to copy between device and host in one go.

    `number`: unique, and higher than those of earlier jobs. `parts`: the transfers that were merged, in order, each by
    component. A job that fails may have copied some of its first parts.
    """

    number: int
    kind: TransferKind
    parts: tuple[Mapping[str, Move], ...]

    @property
    def bits(self) -> int:
        """The answers are numbers."""
        return 0

    def is_whole(self, part: int, answer: int) -> bool:
        """Whether all of a part was copied."""
        return bool(answer)

    def first(self, parts: int) -> CopyJob:
        """A job of its first parts only."""
        return replace(self, parts=self.parts[:parts])


@dataclass(frozen=True, slots=True, eq=False)
class PageBatch:
    """Pages of one pool: the key of each object, and the host page that it is read into or written from, int64.

    `objects`: which of the pages have an object: all, or with entries of several pages the last of each group.
    """

    pool: str
    keys: tuple[str, ...]
    pages: Slots
    objects: slice

    def pages_before(self, objects: int) -> int:
        """How many of the first pages are whole with so many objects: those before the first that is missing."""
        count = len(self.pages)
        return count if objects == len(self.keys) else range(count)[self.objects][objects]


@dataclass(frozen=True, slots=True, eq=False)
class StoreBatch:
    """What one `set` writes: pages of all pools of a node, in this order. Each pool has at most one batch."""

    pools: tuple[PageBatch, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of all pages, pool by pool."""
        return tuple([key for batch in self.pools for key in batch.keys])


@dataclass(frozen=True, slots=True, eq=False)
class PrefixQuery:
    """A question to storage, which prefixes it has: the keys of the pages, and what these need of other pools.

    `pools`: those that a prefix needs without a gap. `tails`: those of which it needs the last pages. Without tails the
    answer is the longest prefix. With tails it is a set of lengths, since the least of what each rank has at most may
    be a length that none of them has: bit n - 1 is set if a prefix of n pages can be used.
    """

    keys: tuple[str, ...]
    pools: tuple[PoolQuery, ...]
    tails: tuple[PoolQuery, ...]


@dataclass(frozen=True, slots=True, eq=False)
class StorageJob:
    """Calls of the storage backend, one for each part.

    `number`: unique, and higher than those of earlier jobs. `prefix_keys`: of the pages before, for the backend.
    """

    number: int
    kind: StorageKind
    parts: tuple[PageBatch | StoreBatch | PrefixQuery, ...]
    prefix_keys: tuple[str, ...]

    @property
    def bits(self) -> int:
        """The pages of a query whose answer is a set, or 0."""
        query = self.parts[0] if self.parts else None
        return len(query.keys) if isinstance(query, PrefixQuery) and query.tails else 0

    def is_whole(self, part: int, answer: int) -> bool:
        """Whether all pages of a batch were moved. A query is answered as a whole."""
        batch = self.parts[part]
        if isinstance(batch, PrefixQuery):
            return True
        return answer == len(batch.pages if isinstance(batch, PageBatch) else batch.keys)

    def first(self, parts: int) -> StorageJob:
        """A job of its first parts only."""
        return replace(self, parts=self.parts[:parts])


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job has come on this rank.

    `steps`: of a copy the layers of the stack that have arrived with all their pools, in the stack's order, so that a
    reader may read them; of a storage job its parts. `answers`: of each part that is done. A copy answers 1 for a whole
    part, and only at its end. A storage job answers how many of the first pages are whole, or what PrefixQuery says.
    `has_ended`: nothing of the job is running any more, nor will be. A job ends with its last part, with the
    first that is not whole, or, when it was stopped, with the step that ran.
    """

    steps: int
    answers: tuple[int, ...]
    has_ended: bool


NOT_STARTED = Progress(0, (), has_ended=False)


SelfT = TypeVar("SelfT")


class Job(Protocol):
    """What queues and executors know of a job."""

    @property
    def number(self) -> int:
        """Unique among the jobs of a queue, and higher than those of earlier jobs."""

    @property
    def kind(self) -> TransferKind | StorageKind:
        """What it does."""

    @property
    def parts(self) -> Sequence[object]:
        """What is answered one by one."""

    @property
    def bits(self) -> int:
        """Of a job whose one answer is a set, which ranks intersect: how many bits it has. Otherwise 0."""

    def is_whole(self, part: int, answer: int) -> bool:
        """Whether this answer means that the part is done to its end."""

    def first(self: SelfT, parts: int) -> SelfT:  # noqa: PYI019 - 3.10 has no Self
        """A job of its first parts only."""


JobT = TypeVar("JobT", bound=Job)
JobT_contra = TypeVar("JobT_contra", bound=Job, contravariant=True)


class Worker(Protocol[JobT_contra]):
    """Does the work of a job. It moves bytes, knows neither tree nor allocators, and may raise."""

    def step(self, job: JobT_contra, done: Progress) -> Progress:
        """Do the next layer or batch."""

    def rest(self, job: JobT_contra, done: Progress) -> Progress:
        """Do all that is left. A copy of which nothing is done is one call, which is faster."""


class Copier(Protocol):
    """Copies the bytes of a job, and those of sidecar pools with the pool that they follow. It knows pools only."""

    @property
    def device(self) -> Any:
        """The torch.device of the pools on the device."""

    @property
    def layers(self) -> int:
        """Layers of the whole stack, of every kind: what `copy_layer` counts."""

    def copy_layer(self, job: CopyJob, layer: int) -> None:
        """Copy one layer of the stack, in all pools that have it. Returns when the bytes are there."""

    def copy(self, job: CopyJob) -> None:
        """Copy all layers of all pools. Returns when the bytes are there."""

    def queue_layer(self, job: CopyJob, layer: int) -> None:
        """As `copy_layer`, but on a GPU the copies are only queued, on the current stream."""

    def queue(self, job: CopyJob) -> None:
        """As `copy`, but on a GPU the copies are only queued, on the current stream."""


class LayeredCopier(Copier, Protocol):
    """A Copier that knows what copies of single layers cost."""

    @property
    def layers_cost_little(self) -> bool:
        """Whether the copies of all layers, one by one, take hardly longer than one copy of all layers."""


class CopyWorker:
    """A Worker that copies layer by layer, or all at once."""

    def __init__(self, copier: Copier) -> None:
        self._copier = copier

    def step(self, job: CopyJob, done: Progress) -> Progress:
        """Copy the next layer."""
        self._copier.copy_layer(job, done.steps)
        return self._after(job, done.steps + 1)

    def rest(self, job: CopyJob, done: Progress) -> Progress:
        """Copy the layers that are left; all of them at once where none is done."""
        if not done.steps:
            self._copier.copy(job)
            return self._after(job, self._copier.layers)
        while not done.has_ended:
            done = self.step(job, done)
        return done

    def _after(self, job: CopyJob, layers: int) -> Progress:
        has_ended = layers >= self._copier.layers
        return Progress(layers, (1,) * len(job.parts) if has_ended else (), has_ended)


Answers: TypeAlias = tuple[int, ...]
"""The answers to the first parts of a job: all before the last are whole; the last one may be incomplete."""
