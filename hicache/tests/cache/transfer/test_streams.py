"""StreamExecutor: what waits for what on a GPU. Streams of the model run in any order that events allow."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache.pools.buffers import RawBytes
from hicache.testing.cuda.model import CudaModel
from hicache.testing.cuda.streams import ModelStream
from hicache.tests.cache.pools.two_tiers import BACKED_UP, FULL, LOADED, job_of, moved
from hicache.tests.cache.transfer.gpu import OF_CACHE, Gpu, contents
from hicache.tests.cache.transfer.stream_schedule import StreamSchedule
from hicache.transfer.job import NOT_STARTED, Progress
from hicache.types import Pool, TransferKind

LAYERS = 6
BACKUP = job_of(TransferKind.BACKUP, BACKED_UP, 1)
LOAD = job_of(TransferKind.LOAD, LOADED, 2)
BESIDE = job_of(TransferKind.LOAD, [{FULL: ([5], [9])}], 3)
"""A load of pages that BACKUP does not touch: only such a load may run beside it."""

FAILED = Progress(0, (), has_ended=True)


@pytest.fixture
def gpu(request: pytest.FixtureRequest) -> Iterator[Gpu]:
    """A GPU. `request.param`: a layer of LOAD that cannot be queued."""
    with CudaModel().installed() as cuda:
        opened = Gpu.on(cuda, broken=(LOAD.number, request.param) if hasattr(request, "param") else None)
        yield opened
        opened.close()
        cuda.require_no_races()


def whole(parts: int) -> Progress:
    """The progress of a copy that has ended with all its parts."""
    return Progress(LAYERS, (1,) * parts, has_ended=True)


def run_alone(stream: ModelStream) -> int:
    """Let one stream go as far as it can, and count its steps."""
    steps = 0
    while stream.run():
        steps += 1
    return steps


def test_streams_are_on_the_device_of_the_cache_whichever_is_the_current_one(gpu: Gpu) -> None:
    assert gpu.cuda.current_device() != OF_CACHE.index, "the current device is another one"
    gpu.backups.submit(BACKUP)
    gpu.loads.submit(BESIDE)
    gpu.loads.wait_layer(BESIDE.number, 0)
    devices = {stream.device for stream in gpu.cuda.streams}
    assert devices == {OF_CACHE}, f"expected streams of {OF_CACHE} alone, got {devices}"


def test_submitting_copies_nothing_and_does_not_wait(gpu: Gpu) -> None:
    before = contents(gpu.tiers.host, Pool.KV)
    gpu.backups.submit(BACKUP)
    assert gpu.backups.progress(1) == NOT_STARTED, "the GPU has not come to it"
    assert not gpu.cuda.waits, f"FLOW-1: the caller waited for the GPU: {gpu.cuda.waits}"
    assert np.array_equal(contents(gpu.tiers.host, Pool.KV), before), "no byte has moved"


def test_a_backup_copies_what_was_being_written_when_it_was_submitted(gpu: Gpu) -> None:
    gpu.compute(3, BACKUP)
    gpu.backups.submit(BACKUP)
    run_alone(gpu.backup_stream)
    assert not gpu.backups.progress(1).has_ended, "the pages are not written yet"
    run_alone(gpu.compute_stream)
    run_alone(gpu.backup_stream)
    assert gpu.backups.progress(1) == whole(len(BACKED_UP)), "once they are written they are copied"
    for pool, own in moved(BACKUP, gpu.tiers, len(BACKED_UP)).items():
        assert np.array_equal(contents(gpu.tiers.host, pool), own), f"FLOW-1: {pool} is what was written last"


def test_a_load_overwrites_nothing_that_is_still_read(gpu: Gpu) -> None:
    before, read = contents(gpu.tiers.device, Pool.KV), []
    raws = [(raw, None) for raw in gpu.tiers.device.buffers[Pool.KV].raw]
    gpu.cuda.kernel("read", lambda: read.append(contents(gpu.tiers.device, Pool.KV)), reads=raws)
    gpu.loads.submit(LOAD)
    run_alone(gpu.load_stream)
    run_alone(gpu.compute_stream)
    assert np.array_equal(read[0], before), (
        "FLOW-1: a kernel that was launched before the load-back reads the old bytes"
    )
    run_alone(gpu.load_stream)
    assert gpu.loads.progress(2) == whole(len(LOADED)), "then the load-back runs"


def test_a_load_arrives_layer_by_layer(gpu: Gpu) -> None:
    expected = moved(LOAD, gpu.tiers, len(LOADED))
    gpu.loads.submit(LOAD)
    run_alone(gpu.compute_stream)
    seen = [0]
    while not gpu.loads.progress(2).has_ended:
        assert gpu.load_stream.run(), "the load-back needs no other stream"
        layers = gpu.loads.progress(2).steps
        seen += [layers] * (layers != seen[-1])
        for place in range(layers):
            for pool, layer in gpu.tiers.order[place]:
                found = contents(gpu.tiers.device, pool)[:, layer]
                assert np.array_equal(found, expected[pool][:, layer]), f"HOST-6: layer {place} is not there yet"
    assert seen == list(range(LAYERS + 1)), f"HOST-6: one layer after the other, got {seen}"


@pytest.mark.parametrize("layer", range(LAYERS))
def test_who_waits_for_a_layer_goes_on_and_its_stream_waits(gpu: Gpu, layer: int) -> None:
    expected, read = moved(LOAD, gpu.tiers, len(LOADED)), dict[str, RawBytes]()

    def launch_read(pool: str, number: int) -> None:
        raws = [(raw[:, number], None) for raw in gpu.tiers.device.buffers[pool].raw]
        gpu.cuda.kernel("read", lambda: read.update({pool: contents(gpu.tiers.device, pool)[:, number]}), reads=raws)

    gpu.loads.submit(LOAD)
    gpu.loads.wait_layer(2, layer)
    for pool, number in gpu.tiers.order[layer]:
        launch_read(pool, number)
    run_alone(gpu.compute_stream)
    assert not read, "HOST-6: the reader's stream waits for the layer"
    while not read:
        assert gpu.cuda.run(), "some stream can go on until the layer is read"
    assert gpu.loads.progress(2).steps == layer + 1, "HOST-6: it waits for no later layer"
    run_alone(gpu.compute_stream)
    for pool, number in gpu.tiers.order[layer]:
        wanted = expected[pool][:, number]
        assert np.array_equal(read[pool], wanted), f"HOST-6: {pool} was read too early"


def test_directions_do_not_wait_for_each_other(gpu: Gpu) -> None:
    gpu.backups.submit(BACKUP)
    gpu.loads.submit(BESIDE)
    run_alone(gpu.compute_stream)
    run_alone(gpu.load_stream)
    assert gpu.loads.progress(3).has_ended, "the load-back has ended"
    assert not gpu.backups.progress(1).has_ended, "the backup has not begun"


@pytest.mark.parametrize("gpu", [0, 3], indirect=True)
def test_a_job_that_cannot_be_queued_fails_when_nothing_of_it_runs(gpu: Gpu, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        gpu.loads.submit(LOAD)
    logged = [record.getMessage() for record in caplog.records]
    assert logged == ["load job 2 of 2 parts was not queued"], f"it is logged once, got {logged}"
    assert gpu.loads.progress(2) == NOT_STARTED, "FLOW-1: what was queued of it may still run"
    gpu.loads.wait_layer(2, LAYERS - 1)
    gpu.loads.wait(2)
    assert gpu.loads.progress(2) == FAILED, "FLOW-3: then it has failed"
    gpu.loads.submit(job_of(TransferKind.LOAD, [{FULL: ([1], [1])}], 3))
    gpu.loads.wait(3)
    assert gpu.loads.progress(3) == whole(1), "FLOW-4: the next job is copied"


def test_a_stopped_job_runs_to_its_end(gpu: Gpu) -> None:
    gpu.backups.submit(BACKUP)
    gpu.backups.stop(1)
    assert gpu.backups.progress(1) == NOT_STARTED, "FLOW-1: what was queued on the GPU will still write to its pages"
    gpu.backups.wait(1)
    assert gpu.backups.progress(1) == whole(len(BACKED_UP)), "all of it runs"


def test_closing_waits_for_all_that_was_queued(gpu: Gpu) -> None:
    gpu.backups.submit(BACKUP)
    gpu.loads.submit(BESIDE)
    gpu.backups.close()
    assert gpu.backups.progress(1).has_ended, "the backup has ended"
    gpu.loads.close()
    assert gpu.loads.progress(3).has_ended, "the load-back has ended"


@given(order=st.integers(0, 999))
@settings(max_examples=20)
def test_backups_are_right_in_any_order_that_streams_allow(order: int) -> None:
    with CudaModel(random.Random(order)).installed() as cuda:
        gpu = Gpu.on(cuda)
        for number in range(10, 15):
            backup = job_of(TransferKind.BACKUP, BACKED_UP, number)
            gpu.compute(number, backup)
            gpu.backups.submit(backup)
            gpu.loads.submit(job_of(TransferKind.LOAD, [{FULL: ([5], [9])}], number + 10))
            while not gpu.backups.progress(number).has_ended:
                pass
            for pool, own in moved(backup, gpu.tiers, len(BACKED_UP), contents).items():
                assert np.array_equal(contents(gpu.tiers.host, pool), own), f"HOST-7: {pool} of backup {number}"
        gpu.loads.wait(24)
        gpu.close()
    cuda.require_no_races()


@given(order=st.integers(0, 999))
@settings(max_examples=10)
def test_a_schedule_of_a_cache_has_no_race_in_any_order(order: int) -> None:
    with CudaModel(random.Random(order)).installed() as cuda:
        gpu = Gpu.on(cuda)
        schedule = StreamSchedule(gpu)
        for by_layers in (True, False, True):
            schedule.round(by_layers=by_layers)
        schedule.interrupt()
    cuda.require_no_races()
    assert not schedule.wrong, f"HOST-7: {schedule.wrong}"
