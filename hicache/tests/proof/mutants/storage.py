"""Caches that trust their storage backend: what it answers, and that it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hicache import cache
from hicache.config import ExecutorKind
from hicache.storage.answers import Reading
from hicache.storage.base import StorageBackend
from hicache.storage.staged import StagedStorage
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.storage.misbehaving import ThreadKilledError
from hicache.tests.proof.mutants.accuracy.transfers import OtherParts
from hicache.tests.proof.mutants.rows import Row
from hicache.tiers.quarantine import HeldPages, Quarantine
from hicache.tiers.storage_io import StorageWorker
from hicache.tiers.storage_tier import StorageTier
from hicache.transfer.executors import Executor, ThreadExecutor
from hicache.transfer.job import JobT, Progress, Worker


class _NotFalse(StorageWorker):
    def _call(self, verb: str, ask: Callable[[], object], read: Callable[[object], Reading]) -> int:
        return super()._call(verb, ask, _pages_not_false if verb in {"get", "set"} else read)


def _pages_not_false(answer: Any) -> Reading:
    return Reading(answer.index(False) if False in answer else len(answer), "")


class ErrorsAreSuccess(OtherParts):
    """A page has come unless the answer equals False: None and -1 are pages too."""

    parts = ((cache, "StorageWorker", _NotFalse),)


class _AnyNumber(StorageWorker):
    def _call(self, verb: str, ask: Callable[[], object], read: Callable[[object], Reading]) -> int:
        return super()._call(verb, ask, _as_it_is if verb == "exists" else read)


def _as_it_is(answer: Any) -> Reading:
    return Reading(answer, "")


class AnyNumberIsPages(OtherParts):
    """Any answer of storage to the query for a prefix counts as its number of pages."""

    parts = ((cache, "StorageWorker", _AnyNumber),)


class _LendsToAll(StorageWorker):
    def prepared(self, backend: StorageBackend, page_bytes: Mapping[str, int]) -> StorageBackend:
        super().prepared(backend, page_bytes)
        return backend


class LendsToAll(OtherParts):
    """Each backend gets views of the host memory, whether it has accepted it or not."""

    parts = ((cache, "StorageWorker", _LendsToAll),)


class _StagesAll(StorageWorker):
    def prepared(self, backend: StorageBackend, page_bytes: Mapping[str, int]) -> StorageBackend:
        super().prepared(backend, page_bytes)
        return StagedStorage(backend, self._note_copied)


class StagesAll(OtherParts):
    """No backend gets views of the host memory, although it has accepted it."""

    parts = ((cache, "StorageWorker", _StagesAll),)


class WaitsForEver(ReferenceAdapter):
    """No call of storage takes too long."""

    def _opened(self, kind: ExecutorKind, name: str, worker: Worker[JobT], *, is_copy: bool) -> Executor[JobT]:
        opened = super()._opened(kind, name, worker, is_copy=is_copy)
        return ThreadExecutor(name, worker.step) if isinstance(opened, ThreadExecutor) and not is_copy else opened


class _WaitsToOpen(StorageTier):
    def open(self) -> None:
        self.worker.attach(self._opened())


class OpensWithoutADeadline(OtherParts):
    """A backend may take any time to open."""

    parts = ((cache, "StorageTier", _WaitsToOpen),)


class _Mortal(ThreadExecutor[JobT]):
    def _do(self, job: JobT, progress: Progress) -> Progress:
        try:
            return self._run_some(job, progress)
        except ThreadKilledError as error:
            raise SystemExit from error


class DeadWorkerUnnoticed(ReferenceAdapter):
    """The thread of storage ends with its backend, and the jobs after it are waited for like others."""

    def _opened(self, kind: ExecutorKind, name: str, worker: Worker[JobT], *, is_copy: bool) -> Executor[JobT]:
        opened = super()._opened(kind, name, worker, is_copy=is_copy)
        return _Mortal(name, worker.step, limit_s=1.0) if isinstance(opened, ThreadExecutor) and not is_copy else opened


class _FreesAtOnce(Quarantine):
    def hold(self, held: HeldPages) -> None:
        for name, pages in held.pages.items():
            self._free(name, pages)
        super().hold(replace(held, pages={}))


class AbandonedPagesReused(OtherParts):
    """Pages that an abandoned backend may still write to are free at once."""

    parts = ((cache, "Quarantine", _FreesAtOnce),)


class _ForgetsSources(Quarantine):
    def keep_dropped(self) -> None:
        for held in self._held:
            held.source, held.pin = {}, None


class AbandonedSourcesReused(OtherParts):
    """A reset frees pages that an abandoned backend may still read."""

    parts = ((cache, "Quarantine", _ForgetsSources),)


class _NeverFrees(Quarantine):
    def take_over(self) -> None:
        for held in self._held:
            held.pages = {}
        super().take_over()


class AbandonedPagesLost(OtherParts):
    """Pages that an abandoned backend has used are never free again."""

    parts = ((cache, "Quarantine", _NeverFrees),)


MISBEHAVING = "test_storage_misbehaving.py::"
FULL_ALONE = "[full/page16/lru/write_through-page_first-stepped/ScriptedStorage-wait_complete-stepped"

ROWS = (
    Row(
        slug="an-error-value-is-a-page",
        source="ours",
        clauses=("STORE-12",),
        adapter=ErrorsAreSuccess,
        test=f"{MISBEHAVING}test_pages_come_only_if_the_answer_is_true_itself",
        told="STORE-12|REQ-3",
    ),
    Row(
        slug="any-number-is-pages",
        source="ours",
        clauses=("STORE-12",),
        adapter=AnyNumberIsPages,
        test=f"{MISBEHAVING}test_a_prefix_is_in_storage_only_if_the_answer_is_a_number_of_its_pages",
        told="STORE-12|TypeError",
    ),
    Row(
        slug="late-writes-reach-pages",
        source="ours",
        clauses=("STORE-16",),
        adapter=LendsToAll,
        test=f"{MISBEHAVING}test_what_a_backend_writes_late_reaches_no_page_of_the_prompt",
        told="STORE-16|REQ-3",
    ),
    Row(
        slug="late-writes-reach-other-pages",
        source="ours",
        clauses=("STORE-16",),
        adapter=LendsToAll,
        test=f"{MISBEHAVING}test_what_a_backend_writes_late_reaches_nobody_elses_page",
        told="STORE-16|REQ-3",
    ),
    Row(
        slug="accepted-memory-is-not-used",
        source="ours",
        clauses=("STORE-9", "STORE-16"),
        adapter=StagesAll,
        test="test_flow_storage_operator.py::test_pages_are_read_and_written_in_the_memory_of_the_host_tier",
        told="STORE-9",
    ),
    Row(
        slug="a-backend-is-waited-for-without-end",
        source="ours",
        clauses=("FLOW-13",),
        adapter=WaitsForEver,
        test=f"{MISBEHAVING}test_a_drain_does_not_wait_for_a_backend_that_hangs{FULL_ALONE}]",
        told="FLOW-13",
    ),
    Row(
        slug="an-opening-is-waited-for-without-end",
        source="ours",
        clauses=("FLOW-13",),
        adapter=OpensWithoutADeadline,
        test=f"{MISBEHAVING}test_an_opening_does_not_wait_for_a_backend_that_hangs{FULL_ALONE}]",
        told="FLOW-13",
    ),
    Row(
        slug="a-dead-worker-is-waited-for",
        source="ours",
        clauses=("FLOW-13",),
        adapter=DeadWorkerUnnoticed,
        test=f"{MISBEHAVING}test_a_backend_that_ends_its_thread_has_failed_one_call{FULL_ALONE}]",
        told="FLOW-13",
    ),
    Row(
        slug="abandoned-targets-are-reused",
        source="ours",
        clauses=("FLOW-13",),
        adapter=AbandonedPagesReused,
        test=f"{MISBEHAVING}test_slots_that_a_backend_may_write_are_not_given_to_others{FULL_ALONE}]",
        told="FLOW-13",
    ),
    Row(
        slug="abandoned-sources-are-reused",
        source="ours",
        clauses=("FLOW-13",),
        adapter=AbandonedSourcesReused,
        test=f"{MISBEHAVING}test_slots_that_a_backend_may_read_are_not_overwritten{FULL_ALONE}]",
        told="FLOW-13|REQ-3",
    ),
    Row(
        slug="abandoned-targets-are-lost",
        source="ours",
        clauses=("FLOW-13",),
        adapter=AbandonedPagesLost,
        test=f"{MISBEHAVING}test_slots_that_a_backend_may_write_are_not_given_to_others{FULL_ALONE}]",
        told="FLOW-13|POOL-1",
    ),
)
