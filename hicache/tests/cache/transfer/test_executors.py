"""Executors: the bytes arrive, and progress says when; what waits, stops, fails and ends, by steps and on threads."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from threading import Event, Thread

import numpy as np
import pytest
import torch

from hicache.config import ExecutorKind, Layout
from hicache.errors import ConfigurationError
from hicache.pools.host import HostPools, runtime_for
from hicache.runtime import open_copies, open_storage
from hicache.stacks import pool_specs
from hicache.storage.base import Pieces, PoolQuery
from hicache.storage.memory import MemoryStorage
from hicache.testing.cuda.model import CudaModel
from hicache.tests.cache.pools.two_tiers import (
    BACKED_UP,
    FULL,
    LOADED,
    TwoTiers,
    contents,
    job_of,
    moved,
    storage_job,
    stored_config,
    two_tier_config,
)
from hicache.tiers.storage_worker import StorageWorker
from hicache.transfer.executors import Executor, FailingWaits, StepExecutor, ThreadExecutor
from hicache.transfer.job import NOT_STARTED, CopyJob, CopyWorker, PrefixQuery, Progress, StorageJob
from hicache.transfer.streams import StreamExecutor
from hicache.types import Pool, StorageKind, TransferKind

# Every executor: the bytes of a copy arrive, in all layouts and dtypes.

Open = Callable[[TwoTiers], Executor[CopyJob]]

MAX_PAUSE_S = 0.001


def stepped(tiers: TwoTiers) -> Executor[CopyJob]:
    return StepExecutor(CopyWorker(tiers.copier()))


def threaded(tiers: TwoTiers) -> Executor[CopyJob]:
    chance = random.Random(0)
    rest = CopyWorker(tiers.copier()).rest
    return ThreadExecutor("copies", rest, lambda: time.sleep(chance.uniform(0, MAX_PAUSE_S)))


def streams(tiers: TwoTiers) -> Executor[CopyJob]:
    return StreamExecutor(tiers.copier())


NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine")
ON_MODEL = "on the model"


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The CPU; or, as the parameter says, a GPU, or a device of the model of CUDA, which finds no race."""
    where = getattr(request, "param", "cpu")
    if where != ON_MODEL:
        yield where
        return
    with CudaModel(random.Random(0)).installed() as cuda:
        yield "cuda:1"
        torch.cuda.synchronize("cuda:1")
        cuda.require_no_races()


@pytest.fixture
def open_one(request: pytest.FixtureRequest, device: str) -> Iterator[Open]:
    """Opens executors of one kind, and closes them when the test ends, before their `device` goes."""
    assert device, "there is one"
    opened: list[Executor[CopyJob]] = []

    def open_and_remember(tiers: TwoTiers) -> Executor[CopyJob]:
        opened.append(request.param(tiers))
        return opened[-1]

    yield open_and_remember
    for executor in opened:
        executor.close()


EVERY_KIND = pytest.mark.parametrize(
    ("device", "open_one"),
    [
        ("cpu", stepped),
        ("cpu", threaded),
        (ON_MODEL, streams),
        pytest.param("cuda", streams, marks=[pytest.mark.gpu, NO_GPU]),
    ],
    ids=["stepped", "threaded", "streams on the model", "streams"],
    indirect=True,
)


def two_tiers(
    device: str,
    device_layout: Layout = Layout.LAYER_FIRST,
    host_layout: Layout = Layout.PAGE_FIRST,
    dtype: str = "float32",
) -> TwoTiers:
    """The pools of a cache; those on the host are pinned where a device reads them."""
    tiers = TwoTiers(two_tier_config(device_layout, host_layout, dtype, device))
    tiers.host.pin(runtime_for(device))
    return tiers


def check(tiers: TwoTiers, executor: Executor[CopyJob], job: CopyJob) -> None:
    """Run a job to its end: it is whole, and the bytes have arrived."""
    expected = moved(job, tiers, len(job.parts))
    executor.submit(job)
    executor.wait(job.number)
    found, whole = executor.progress(job.number), Progress(len(tiers.order), (1,) * len(job.parts), has_ended=True)
    assert found == whole, f"FLOW-2: after a wait a job is whole, {whole}, got {found}"
    target = tiers.host if job.kind is TransferKind.BACKUP else tiers.device
    for pool, own in expected.items():
        assert np.array_equal(contents(target, pool), own), f"HOST-7: {pool} differs after a {job.kind.value}"


@pytest.mark.parametrize("open_one", [stepped, threaded], ids=["stepped", "threaded"], indirect=True)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "uint8"])
@pytest.mark.parametrize("device_layout", list(Layout))
@pytest.mark.parametrize("host_layout", list(Layout))
def test_what_left_comes_back(open_one: Open, dtype: str, device_layout: Layout, host_layout: Layout) -> None:
    tiers = TwoTiers(two_tier_config(device_layout, host_layout, dtype))
    check(tiers, open_one(tiers), job_of(TransferKind.BACKUP, BACKED_UP, 1))
    check(tiers, open_one(tiers), job_of(TransferKind.LOAD, LOADED, 2))


@pytest.mark.parametrize(
    "device", [ON_MODEL, pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])], ids=["model", "gpu"], indirect=True
)
@pytest.mark.parametrize("device_layout", list(Layout))
@pytest.mark.parametrize("host_layout", list(Layout))
def test_what_left_a_gpu_comes_back(device: str, device_layout: Layout, host_layout: Layout) -> None:
    tiers = two_tiers(device, device_layout, host_layout, "bfloat16")
    copier = tiers.copier()
    for job in (job_of(TransferKind.BACKUP, BACKED_UP, 1), job_of(TransferKind.LOAD, LOADED, 2)):
        executor = open_copies(ExecutorKind.STREAMS, job.kind, copier)
        check(tiers, executor, job)
        executor.close()
    tiers.host.close()


@EVERY_KIND
def test_what_ended_is_known_until_it_is_forgotten(open_one: Open, device: str) -> None:
    tiers = two_tiers(device)
    executor = open_one(tiers)
    for number in (1, 2):
        check(tiers, executor, job_of(TransferKind.BACKUP, BACKED_UP, number))
    executor.release(1)
    with pytest.raises(KeyError):
        executor.progress(1)
    assert executor.progress(2).has_ended, "the other job is still known"


@EVERY_KIND
def test_a_job_without_pages_ends(open_one: Open, device: str) -> None:
    tiers = two_tiers(device)
    check(tiers, open_one(tiers), job_of(TransferKind.LOAD, [{}]))


@EVERY_KIND
def test_an_executor_may_be_closed_twice(open_one: Open, device: str) -> None:
    tiers = two_tiers(device)
    executor = open_one(tiers)
    check(tiers, executor, job_of(TransferKind.BACKUP, BACKED_UP))
    executor.close()
    executor.close()
    assert executor.progress(1).has_ended, "a job that has ended stays known"


def test_each_kind_is_opened_by_its_name() -> None:
    copier = TwoTiers(two_tier_config()).copier()
    for kind in TransferKind:
        assert isinstance(open_copies(ExecutorKind.STEPPED, kind, copier), StepExecutor), "stepped"
        executor = open_copies(ExecutorKind.THREADED, kind, copier)
        assert isinstance(executor, ThreadExecutor), "threaded"
        executor.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device on this machine")
def test_streams_without_a_gpu_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="'streams' needs a CUDA device"):
        open_copies(ExecutorKind.STREAMS, TransferKind.LOAD, TwoTiers(two_tier_config()).copier())


# A storage backend whose answers a test writes down.

TIMEOUT_S = 30
"""How long a test waits for another thread before it fails."""


class ScriptedStorage(MemoryStorage):
    """Each call answers with the next of some numbers of pages, once the gate is open.

    `entered`: set when a call has begun. `calls`: the job and the part of each call that has ended, in order.
    """

    def __init__(self, answers: Sequence[int]) -> None:
        super().__init__("scope", {})
        self.gate = Event()
        self.entered = Event()
        self.calls: list[tuple[int, int]] = []
        self._script = list(answers)

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        whole = self._answer(keys)
        return [place < whole for place in range(len(keys))]

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        return self.get(keys, sources, prefix_keys)

    def exists(self, keys: Sequence[str], queries: Sequence[PoolQuery], prefix_keys: Sequence[str]) -> int:
        return self._answer(keys)

    def _answer(self, keys: Sequence[str]) -> int:
        self.entered.set()
        assert self.gate.wait(TIMEOUT_S), f"the gate was not opened within {TIMEOUT_S} s"
        _, job, part, _ = keys[0].split("/")
        self.calls.append((int(job), int(part)))
        return self._script.pop(0)


def worker_of(backend: ScriptedStorage) -> StorageWorker:
    """A worker that calls the backend for every pool."""
    config = stored_config()
    worker = StorageWorker(HostPools(config, pool_specs(config)), frozenset(Pool))
    worker.attach(backend)
    return worker


def query_of(number: int) -> StorageJob:
    """A job that asks about a prefix of two pages."""
    query = PrefixQuery((f"kv/{number}/0/0", f"kv/{number}/0/1"), (), ())
    return StorageJob(number, StorageKind.QUERY, (query,), ())


# StepExecutor: a job does the steps that a test asks for, fails where a test says, and moves on in a wait.

LAYERS = 6
BACKUP_JOB = job_of(TransferKind.BACKUP, BACKED_UP, 1)
LOAD_JOB = job_of(TransferKind.LOAD, LOADED, 2)
FAILED = Progress(0, (), has_ended=True)


def whole(parts: int) -> Progress:
    """The progress of a copy that has ended with all its parts."""
    return Progress(LAYERS, (1,) * parts, has_ended=True)


@pytest.fixture
def tiers() -> TwoTiers:
    """Pools whose stack has six layers."""
    return TwoTiers(two_tier_config())


@pytest.fixture
def failing() -> FailingWaits:
    """No wait fails until a test says so."""
    return FailingWaits()


@pytest.fixture
def executor(tiers: TwoTiers, failing: FailingWaits) -> StepExecutor[CopyJob]:
    """Two copies, neither of which has moved."""
    executor = StepExecutor(CopyWorker(tiers.copier()), failing)
    executor.submit(BACKUP_JOB)
    executor.submit(LOAD_JOB)
    return executor


def storage_of(*answers: int) -> tuple[ScriptedStorage, StepExecutor[StorageJob]]:
    """A backend that gives these answers, and an executor that calls it."""
    backend = ScriptedStorage(answers)
    backend.gate.set()
    return backend, StepExecutor(worker_of(backend))


# StepExecutor, copies.


def test_nothing_moves_by_itself(tiers: TwoTiers) -> None:
    before = {pool: contents(tiers.host, pool) for pool in Pool}
    executor = StepExecutor(CopyWorker(tiers.copier()))
    executor.submit(BACKUP_JOB)
    assert executor.progress(1) == NOT_STARTED, "a job that was submitted has not moved"
    for pool, own in before.items():
        assert np.array_equal(contents(tiers.host, pool), own), f"{pool} has changed"


def test_jobs_are_listed_until_they_end_the_oldest_first(executor: StepExecutor[CopyJob]) -> None:
    assert executor.pending() == [BACKUP_JOB, LOAD_JOB], "both are pending"
    executor.complete(1)
    assert executor.pending() == [LOAD_JOB], "a job that has ended is not pending"
    executor.fail(2, parts_done=1)
    assert executor.pending() == [], "a job that has failed is not pending"


def test_layers_arrive_one_by_one_in_the_order_of_the_stack(tiers: TwoTiers, executor: StepExecutor[CopyJob]) -> None:
    expected = moved(BACKUP_JOB, tiers, len(BACKED_UP))
    before = contents(tiers.host, Pool.SWA)
    for layer in range(LAYERS):
        assert executor.progress(1) == Progress(layer, (), has_ended=False), f"{layer} layers have arrived"
        executor.advance(1)
        own = before.copy()
        arrived = [place for place, order in enumerate((1, 4, 5)) if order <= layer]
        own[:, arrived] = expected[Pool.SWA][:, arrived]
        assert np.array_equal(contents(tiers.host, Pool.SWA), own), f"HOST-6: {arrived} of SWA after {layer + 1} layers"
    assert executor.progress(1) == whole(len(BACKED_UP)), "the job ends with the last layer"


def test_a_job_that_has_begun_is_completed_from_there(tiers: TwoTiers, executor: StepExecutor[CopyJob]) -> None:
    expected = moved(BACKUP_JOB, tiers, len(BACKED_UP))
    executor.advance(1)
    executor.complete(1)
    assert executor.progress(1) == whole(len(BACKED_UP)), "the job has ended"
    for pool, own in expected.items():
        assert np.array_equal(contents(tiers.host, pool), own), f"the bytes of {pool} differ"


@pytest.mark.parametrize("parts_done", range(len(BACKED_UP)))
def test_a_job_fails_with_its_first_parts_whole_and_nothing_else(
    tiers: TwoTiers, executor: StepExecutor[CopyJob], parts_done: int
) -> None:
    expected = moved(BACKUP_JOB, tiers, parts_done)
    executor.fail(1, parts_done)
    found = executor.progress(1)
    assert found == Progress(0, (1,) * parts_done, has_ended=True), f"FLOW-3: {parts_done} parts are whole, got {found}"
    for pool, own in expected.items():
        assert np.array_equal(contents(tiers.host, pool), own), f"FLOW-3: {pool} after {parts_done} parts"


@pytest.mark.parametrize("parts_done", [-1, len(BACKED_UP)])
def test_a_job_cannot_fail_after_all_its_parts(executor: StepExecutor[CopyJob], parts_done: int) -> None:
    with pytest.raises(ValueError, match="job 1 has 3 parts"):
        executor.fail(1, parts_done)
    assert executor.pending() == [BACKUP_JOB, LOAD_JOB], "the job goes on"


def test_an_ended_job_moves_no_more(executor: StepExecutor[CopyJob]) -> None:
    executor.complete(1)
    for move in (executor.advance, executor.complete, lambda number: executor.fail(number, 0)):
        with pytest.raises(ValueError, match="job 1 has ended"):
            move(1)


def test_who_waits_for_a_job_moves_it(executor: StepExecutor[CopyJob]) -> None:
    executor.wait(2)
    assert executor.progress(2) == whole(len(LOADED)), "a wait moves a job to its end"
    executor.wait(2)
    assert executor.pending() == [BACKUP_JOB], "the other job has not moved"


def test_who_waits_for_a_layer_moves_the_job_so_far(executor: StepExecutor[CopyJob]) -> None:
    assert executor.wait_layer(2, 3), "HOST-6: layer 3 may be read"
    assert executor.progress(2) == Progress(4, (), has_ended=False), "HOST-6: layers 0 to 3 have arrived"
    assert executor.wait_layer(2, 1), "HOST-6: layer 1 may be read"
    assert executor.progress(2).steps == 4, "an earlier layer has arrived already"
    executor.fail(2, parts_done=0)
    assert not executor.wait_layer(2, 5), "HOST-6: layer 5 never comes"
    assert executor.progress(2) == Progress(4, (), has_ended=True), "a wait for a job that has ended moves nothing"


def test_a_wait_for_a_layer_fails_when_told(executor: StepExecutor[CopyJob], failing: FailingWaits) -> None:
    executor.advance(2)
    failing.left = 1
    assert executor.wait_layer(2, 0), "who waits for what is there does not wait, and nothing fails"
    assert not executor.wait_layer(2, 3), "HOST-6: layer 3 never comes"
    assert executor.progress(2) == Progress(1, (), has_ended=True), "FLOW-3: the job has failed after one layer"
    assert not failing.left, "one wait was to fail, and one did"


def test_waits_fail_as_often_as_told(tiers: TwoTiers, executor: StepExecutor[CopyJob], failing: FailingWaits) -> None:
    before = contents(tiers.host, Pool.KV)
    executor.complete(2)
    failing.left = 1
    executor.wait(2)
    assert failing.left == 1, "a wait for a job that has ended does not count"
    executor.wait(1)
    assert executor.progress(1) == FAILED, "the wait for the other job makes it fail"
    assert np.array_equal(contents(tiers.host, Pool.KV), before), "FLOW-3: a failed job has copied nothing"
    executor.submit(job_of(TransferKind.BACKUP, [{FULL: ([1], [1])}], 3))
    executor.wait(3)
    assert executor.progress(3) == whole(1), "the wait after that succeeds"


def test_executors_share_the_waits_that_fail(
    tiers: TwoTiers, executor: StepExecutor[CopyJob], failing: FailingWaits
) -> None:
    other = StepExecutor(CopyWorker(tiers.copier()), failing)
    other.submit(LOAD_JOB)
    failing.left = 1
    other.wait(2)
    executor.wait(1)
    assert other.progress(2) == FAILED, "the first wait fails"
    assert executor.progress(1) == whole(len(BACKED_UP)), "the wait in the other executor is the second one"


def test_a_stopped_copy_still_does_the_layer_that_runs(executor: StepExecutor[CopyJob]) -> None:
    executor.stop(1)
    assert not executor.progress(1).has_ended, "FLOW-1: the running layer still writes to its pages"
    executor.wait(1)
    assert executor.progress(1) == Progress(1, (), has_ended=True), "the copy ends after that layer"
    assert executor.pending() == [LOAD_JOB], "the other copy goes on"


def test_what_is_pending_at_the_end_fails(executor: StepExecutor[CopyJob]) -> None:
    executor.complete(1)
    executor.close()
    assert executor.pending() == [], "nothing is pending in a closed executor"
    assert executor.progress(1) == whole(len(BACKED_UP)), "what had ended before is whole"
    assert executor.progress(2) == FAILED, "the other job has failed"


# StepExecutor, storage jobs.


def test_nothing_is_asked_by_itself_nor_after_the_end() -> None:
    backend, storage = storage_of(2)
    job = storage_job(1, StorageKind.PREFETCH, 2)
    storage.submit(job)
    assert storage.progress(1) == NOT_STARTED, "a job that was submitted has not moved"
    assert storage.pending() == [job], "it is pending"
    storage.close()
    assert storage.progress(1) == FAILED, "the job ended as it was"
    assert backend.calls == [], f"the backend is not called, got {backend.calls}"


def test_a_job_goes_batch_by_batch_to_its_end() -> None:
    backend, storage = storage_of(2, 3)
    storage.submit(storage_job(1, StorageKind.STORE, 2, 3))
    storage.advance(1)
    assert storage.progress(1) == Progress(1, (2,), has_ended=False), "one of two batches"
    storage.advance(1)
    assert storage.progress(1) == Progress(2, (2, 3), has_ended=True), "both batches"
    assert backend.calls == [(1, 0), (1, 1)], f"in order, got {backend.calls}"


def test_a_job_ends_with_the_first_batch_that_is_not_whole() -> None:
    backend, storage = storage_of(1)
    storage.submit(storage_job(1, StorageKind.PREFETCH, 2, 3))
    storage.wait(1)
    assert storage.progress(1) == Progress(1, (1,), has_ended=True), "FETCH-4: nothing is read past a gap"
    assert backend.calls == [(1, 0)], f"the second batch is not read, got {backend.calls}"


def test_any_answer_to_a_query_is_whole() -> None:
    _, storage = storage_of(0)
    query = query_of(1)
    storage.submit(query)
    storage.wait(1)
    assert storage.progress(1) == Progress(1, (0,), has_ended=True), "0 pages is an answer"
    assert query.is_whole(0, 0), "a query of 2 pages is done when the answer is 0"


def test_what_is_stopped_still_does_the_batch_that_runs() -> None:
    backend, storage = storage_of(2, 3)
    storage.submit(storage_job(1, StorageKind.PREFETCH, 2, 3))
    storage.stop(1)
    assert not storage.progress(1).has_ended, "FLOW-1: the running batch still writes to its pages"
    storage.advance(1)
    assert storage.progress(1) == Progress(1, (2,), has_ended=True), "the job ends after that batch"
    assert backend.calls == [(1, 0)], f"the second batch is not read, got {backend.calls}"


def test_a_storage_job_fails_after_its_first_batches() -> None:
    backend, storage = storage_of(2, 3)
    storage.submit(storage_job(1, StorageKind.STORE, 2, 3))
    storage.fail(1, parts_done=1)
    progress = storage.progress(1)
    assert progress.has_ended, f"FLOW-3: the job has ended, got {progress}"
    assert progress.answers == (2,), f"FLOW-3: the first batch is whole, got {progress}"
    assert backend.calls == [(1, 0)], f"the second batch is not written, got {backend.calls}"


# ThreadExecutor: progress follows the bytes, jobs run in order, a stopped job ends early, a failure ends one job.

GATED_LAYERS = 3
BACKUP, LOAD = TransferKind.BACKUP, TransferKind.LOAD
WHOLE = Progress(GATED_LAYERS, (1, 1), has_ended=True)


class GatedCopier:
    """Copies when the gate of the direction is open.

    `entered`: set when a copy has begun. `copied`: the jobs that were copied, in order. `broken`: the jobs that raise.
    """

    def __init__(self, *broken: int) -> None:
        self.layers = GATED_LAYERS
        self.gates = {kind: Event() for kind in TransferKind}
        self.entered = {kind: Event() for kind in TransferKind}
        self.copied: list[int] = []
        self._broken = broken

    def copy(self, job: CopyJob) -> None:
        """Copy a job once its gate is open."""
        self.entered[job.kind].set()
        assert self.gates[job.kind].wait(TIMEOUT_S), f"the gate was not opened within {TIMEOUT_S} s"
        if job.number in self._broken:
            raise OSError(f"memory of job {job.number} is broken")
        self.copied.append(job.number)

    def copy_layer(self, job: CopyJob, layer: int) -> None:
        """Not called: a thread copies all layers at once."""
        raise NotImplementedError

    queue_layer = copy_layer
    queue = copy
    device = torch.device("cpu")
    layers_cost_little = False


class GatedLayers(GatedCopier):
    """Copies layer by layer, each when its gate is open."""

    layers_cost_little = True

    def __init__(self) -> None:
        super().__init__()
        self.layer_gates = [Event() for _ in range(GATED_LAYERS)]

    def copy_layer(self, job: CopyJob, layer: int) -> None:
        """Copy a layer once its gate is open."""
        assert self.layer_gates[layer].wait(TIMEOUT_S), f"gate {layer} was not opened within {TIMEOUT_S} s"


def job(number: int, kind: TransferKind, parts: int = 2) -> CopyJob:
    return CopyJob(number, kind, tuple([{} for _ in range(parts)]))


@pytest.fixture
def copier() -> GatedCopier:
    """Its gates are closed, and its second job is broken."""
    return GatedCopier(2)


@pytest.fixture
def copies(copier: GatedCopier) -> Iterator[ThreadExecutor[CopyJob]]:
    """Copies on a thread. Closed at the end, with the gates open."""
    copies = ThreadExecutor("copies", CopyWorker(copier).rest)
    yield copies
    open_gates(copier)
    copies.close()


def open_gates(copier: GatedCopier) -> None:
    for gate in copier.gates.values():
        gate.set()


@pytest.fixture
def backend() -> ScriptedStorage:
    """Its gate is closed."""
    return ScriptedStorage([2, 2, 2, 2])


@pytest.fixture
def storage(backend: ScriptedStorage) -> Iterator[ThreadExecutor[StorageJob]]:
    """Calls the backend on a thread. Closed at the end, with the gate open."""
    storage = ThreadExecutor("storage", worker_of(backend).step)
    yield storage
    backend.gate.set()
    storage.close()


# ThreadExecutor, copies.


def test_progress_of_a_copy_follows_the_bytes(copier: GatedCopier, copies: ThreadExecutor[CopyJob]) -> None:
    copies.submit(job(1, BACKUP))
    assert copier.entered[BACKUP].wait(TIMEOUT_S), "the thread takes the job"
    assert copies.progress(1) == NOT_STARTED, "FLOW-2: nothing has arrived while the copy runs"
    copier.gates[BACKUP].set()
    copies.wait(1)
    assert copier.copied == [1], "FLOW-2: the bytes are there before the job has ended"
    assert copies.progress(1) == WHOLE, "all layers and parts have arrived"


@pytest.mark.parametrize("wait", ["wait", "wait_layer"])
def test_who_waits_is_woken_by_the_end(copier: GatedCopier, copies: ThreadExecutor[CopyJob], wait: str) -> None:
    seen: list[bool] = []

    def reader() -> None:
        is_there = copies.wait(1) if wait == "wait" else copies.wait_layer(1, GATED_LAYERS - 1)
        seen.append(is_there and 1 in copier.copied)

    copies.submit(job(1, LOAD))
    thread = Thread(target=reader)
    thread.start()
    assert copier.entered[LOAD].wait(TIMEOUT_S), "the thread takes the job"
    assert not seen, "HOST-6: the reader waits while the copy runs"
    copier.gates[LOAD].set()
    thread.join(TIMEOUT_S)
    assert seen == [True], f"HOST-6: the reader goes on once the bytes are there, got {seen}"


def test_a_thread_copies_a_load_layer_by_layer_where_that_costs_little() -> None:
    copier = GatedLayers()
    with closing(open_copies(ExecutorKind.THREADED, LOAD, copier)) as loads:
        loads.submit(job(1, LOAD))
        for layer, gate in enumerate(copier.layer_gates[:-1]):
            gate.set()
            assert loads.wait_layer(1, layer), f"HOST-6: layer {layer} may be read"
            assert loads.progress(1) == Progress(layer + 1, (), has_ended=False), f"layers after {layer} are to come"
        copier.layer_gates[-1].set()
        loads.wait(1)
        assert loads.progress(1) == WHOLE, "all layers have arrived"
    assert not copier.copied, "nothing was copied in another way"


def test_a_thread_copies_a_backup_at_once() -> None:
    copier = GatedLayers()
    open_gates(copier)
    with closing(open_copies(ExecutorKind.THREADED, BACKUP, copier)) as backups:
        backups.submit(job(1, BACKUP))
        backups.wait(1)
    assert copier.copied == [1], "a backup has no reader of single layers"


def test_jobs_of_a_direction_run_in_order(copier: GatedCopier, copies: ThreadExecutor[CopyJob]) -> None:
    open_gates(copier)
    for number in (1, 3, 4):
        copies.submit(job(number, BACKUP))
    copies.wait(4)
    assert copier.copied == [1, 3, 4], f"in the order of their submission, got {copier.copied}"
    assert copies.progress(1).has_ended, "the first ended before"


def test_directions_do_not_wait_for_each_other(copier: GatedCopier) -> None:
    backups, loads = (open_copies(ExecutorKind.THREADED, kind, copier) for kind in (BACKUP, LOAD))
    with closing(backups), closing(loads):
        backups.submit(job(1, BACKUP))
        loads.submit(job(3, LOAD))
        copier.gates[LOAD].set()
        loads.wait(3)
        assert not backups.progress(1).has_ended, "the backup is behind a closed gate"
        open_gates(copier)


def test_a_copy_that_raises_fails_its_job_alone_and_is_logged_once(
    copier: GatedCopier, copies: ThreadExecutor[CopyJob], caplog: pytest.LogCaptureFixture
) -> None:
    open_gates(copier)
    with caplog.at_level(logging.ERROR):
        for number in (1, 2, 3):
            copies.submit(job(number, LOAD))
        copies.wait(3)
    assert copies.progress(2) == FAILED, "FLOW-3: nothing of a failed job has arrived"
    assert copies.progress(3) == WHOLE, "FLOW-4: the thread goes on with the next job"
    assert not copies.wait_layer(2, 0), "HOST-6: no layer of a failed job may be read"
    logged = [(record.getMessage(), str(record.exc_info and record.exc_info[1])) for record in caplog.records]
    assert logged == [("load job 2 of 2 parts failed", "memory of job 2 is broken")], f"once, got {logged}"


def test_a_pause_comes_before_each_job() -> None:
    copier, pauses = GatedCopier(), list[int]()
    open_gates(copier)
    copies = ThreadExecutor("copies", CopyWorker(copier).rest, lambda: pauses.append(len(copier.copied)))
    for number in (1, 2, 3):
        copies.submit(job(number, LOAD))
    copies.wait(3)
    copies.close()
    assert pauses == [0, 1, 2], f"a pause before the first, the second and the third job, got {pauses}"


def test_the_end_finishes_what_runs_and_drops_what_waits(copier: GatedCopier, copies: ThreadExecutor[CopyJob]) -> None:
    copies.submit(job(1, BACKUP))
    copies.submit(job(3, BACKUP))
    assert copier.entered[BACKUP].wait(TIMEOUT_S), "the thread takes the first job"
    closer = Thread(target=copies.close)
    closer.start()
    while not copies._is_closing:
        assert closer.is_alive(), "the executor is already closed"
    copier.gates[BACKUP].set()
    closer.join(TIMEOUT_S)
    assert copier.copied == [1], "the copy that runs is finished, the next one is not begun"
    assert copies.progress(1) == WHOLE, "the first job is whole"
    assert copies.progress(3) == FAILED, "FLOW-4: the second job has ended too"
    with pytest.raises(RuntimeError, match="job 4 was submitted to a closed executor"):
        copies.submit(job(4, LOAD))


# ThreadExecutor, storage jobs.


def test_progress_of_a_storage_job_follows_the_bytes(
    backend: ScriptedStorage, storage: ThreadExecutor[StorageJob]
) -> None:
    storage.submit(storage_job(1, StorageKind.PREFETCH, 2, 2))
    assert backend.entered.wait(TIMEOUT_S), "the thread takes the job"
    assert storage.progress(1) == NOT_STARTED, "FLOW-2: nothing has arrived while the batch runs"
    backend.gate.set()
    storage.wait(1)
    assert storage.progress(1) == Progress(2, (2, 2), has_ended=True), "both batches are done"


def test_what_is_stopped_while_it_runs_ends_with_that_batch(
    backend: ScriptedStorage, storage: ThreadExecutor[StorageJob]
) -> None:
    storage.submit(storage_job(1, StorageKind.PREFETCH, 2, 2))
    assert backend.entered.wait(TIMEOUT_S), "the thread takes the job"
    storage.stop(1)
    backend.gate.set()
    storage.wait(1)
    assert storage.progress(1) == Progress(1, (2,), has_ended=True), "the running batch was finished, and no other"


def test_what_is_stopped_before_its_turn_asks_nothing(
    backend: ScriptedStorage, storage: ThreadExecutor[StorageJob]
) -> None:
    storage.submit(storage_job(1, StorageKind.PREFETCH, 2))
    storage.submit(storage_job(2, StorageKind.PREFETCH, 2))
    storage.stop(2)
    backend.gate.set()
    storage.wait(2)
    assert storage.progress(2) == FAILED, "the job ended with nothing done"
    assert backend.calls == [(1, 0)], f"the first job alone was done, got {backend.calls}"


def test_a_writer_does_not_wait_for_a_reader(backend: ScriptedStorage) -> None:
    worker = worker_of(backend)
    reads, writes = (open_storage(ExecutorKind.THREADED, name, worker) for name in ("read", "write"))
    with closing(reads), closing(writes):
        reads.submit(storage_job(1, StorageKind.PREFETCH, 2))
        assert backend.entered.wait(TIMEOUT_S), "the reader is at the gate"
        backend.entered.clear()
        writes.submit(storage_job(2, StorageKind.STORE, 2))
        assert backend.entered.wait(TIMEOUT_S), "the writer comes to the gate while the reader is there"
        backend.gate.set()
        reads.wait(1)
        writes.wait(2)
