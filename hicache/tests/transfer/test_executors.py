"""Every executor: the bytes of a copy arrive, in all layouts and dtypes, and progress says when."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from hicache.config import ExecutorKind, Layout
from hicache.errors import ConfigurationError
from hicache.runtime import open_copies
from hicache.tests.pools.two_tiers import BACKED_UP, LOADED, TwoTiers, contents, job_of, moved, two_tier_config
from hicache.tests.transfer.fake_cuda import FakeCuda, QueuedCopier
from hicache.transfer.executors import Executor, StepExecutor, ThreadExecutor
from hicache.transfer.job import CopyJob, CopyWorker, Progress
from hicache.transfer.streams import StreamExecutor
from hicache.types import TransferKind

Open = Callable[[TwoTiers], Executor[CopyJob]]

MAX_PAUSE_S = 0.001


def stepped(tiers: TwoTiers) -> Executor[CopyJob]:
    return StepExecutor(CopyWorker(tiers.copier()))


def threaded(tiers: TwoTiers) -> Executor[CopyJob]:
    chance = random.Random(0)
    rest = CopyWorker(tiers.copier()).rest
    return ThreadExecutor("copies", rest, lambda: time.sleep(chance.uniform(0, MAX_PAUSE_S)))


def streams(tiers: TwoTiers) -> Executor[CopyJob]:
    cuda = FakeCuda()
    return StreamExecutor(QueuedCopier(tiers.copier(), cuda), cuda)


@pytest.fixture(params=[stepped, threaded, streams], ids=lambda kind: str(kind.__name__))
def open_one(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens executors of one kind, and closes them when the test ends."""
    opened: list[Executor[CopyJob]] = []

    def open_and_remember(tiers: TwoTiers) -> Executor[CopyJob]:
        opened.append(request.param(tiers))
        return opened[-1]

    yield open_and_remember
    for executor in opened:
        executor.close()


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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "uint8"])
@pytest.mark.parametrize("device_layout", list(Layout))
@pytest.mark.parametrize("host_layout", list(Layout))
def test_what_left_comes_back(open_one: Open, dtype: str, device_layout: Layout, host_layout: Layout) -> None:
    tiers = TwoTiers(two_tier_config(device_layout, host_layout, dtype))
    check(tiers, open_one(tiers), job_of(TransferKind.BACKUP, BACKED_UP, 1))
    check(tiers, open_one(tiers), job_of(TransferKind.LOAD, LOADED, 2))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine")
@pytest.mark.parametrize("kind", list(ExecutorKind))
@pytest.mark.parametrize("device_layout", list(Layout))
@pytest.mark.parametrize("host_layout", list(Layout))
def test_what_left_a_gpu_comes_back(kind: ExecutorKind, device_layout: Layout, host_layout: Layout) -> None:
    tiers = TwoTiers(two_tier_config(device_layout, host_layout, "bfloat16", "cuda"))
    copier = tiers.copier()
    for job in (job_of(TransferKind.BACKUP, BACKED_UP, 1), job_of(TransferKind.LOAD, LOADED, 2)):
        executor = open_copies(kind, job.kind, copier)
        check(tiers, executor, job)
        executor.close()
    tiers.host.close()


def test_what_ended_is_known_until_it_is_forgotten(open_one: Open) -> None:
    tiers = TwoTiers(two_tier_config())
    executor = open_one(tiers)
    for number in (1, 2):
        check(tiers, executor, job_of(TransferKind.BACKUP, BACKED_UP, number))
    executor.forget(1)
    with pytest.raises(KeyError):
        executor.progress(1)
    assert executor.progress(2).has_ended, "the other job is still known"


def test_a_job_without_pages_ends(open_one: Open) -> None:
    tiers = TwoTiers(two_tier_config())
    check(tiers, open_one(tiers), job_of(TransferKind.LOAD, [{}]))


def test_an_executor_may_be_closed_twice(open_one: Open) -> None:
    tiers = TwoTiers(two_tier_config())
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
