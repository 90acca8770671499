"""The model of CUDA: what it lets run when, what it calls a race, and what torch's own engine says of the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations
from threading import Barrier, Thread
from typing import Any, TypeAlias

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache.testing.cuda.memory import POISON
from hicache.testing.cuda.model import CudaModel
from hicache.testing.cuda.sanitizer import Sanitizer


@pytest.fixture
def cuda() -> Iterator[CudaModel]:
    """A model that is installed. Its work runs when a test says so, or when the host waits."""
    with CudaModel().installed() as model:
        yield model


def on_device(size: int, device: str = "cuda:0") -> torch.Tensor:
    """A tensor of zeros whose kernel has run."""
    made = torch.zeros(size, dtype=torch.int64, device=device)
    torch.cuda.synchronize(device)
    return made


def raw(tensor: torch.Tensor) -> list[int]:
    """What is in memory now."""
    found: list[int] = getattr(tensor, "raw", tensor).tolist()
    return found


# What runs when.


def test_a_kernel_runs_when_its_stream_comes_to_it(cuda: CudaModel) -> None:
    tensor = on_device(4)
    tensor.fill_(7)
    assert raw(tensor) == [0] * 4, "nothing has run"
    cuda.synchronize()
    assert raw(tensor) == [7] * 4, "then it has"


def test_an_event_holds_a_stream_back(cuda: CudaModel) -> None:
    tensor, side = on_device(4), cuda.Stream()
    tensor.fill_(7)
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        copy = tensor.clone()
    while side.run():
        pass
    assert raw(copy) == [0] * 4, "the side stream waits"
    side.synchronize()
    assert raw(copy) == [7] * 4, "and goes on"
    cuda.require_no_races()


def test_an_event_that_was_never_recorded_holds_nothing_back(cuda: CudaModel) -> None:
    event = cuda.Event()
    assert event.query(), "it counts as over"
    cuda.current_stream().wait_event(event)
    event.synchronize()


def test_an_event_fires_for_its_latest_record_alone(cuda: CudaModel) -> None:
    tensor, event = on_device(1), cuda.Event()
    event.record()
    assert not event.query(), "the stream has not come to it"
    cuda.synchronize()
    tensor.fill_(1)
    event.record()
    assert not event.query(), "it was recorded anew"


def test_work_is_queued_on_the_device_of_its_tensors(cuda: CudaModel) -> None:
    tensor, elsewhere = on_device(1, "cuda:1"), cuda.Stream("cuda:0")
    with cuda.stream(elsewhere):
        tensor.fill_(1)
        event = elsewhere.record_event()
    assert event.query() or elsewhere.run(), "the stream of the other device has nothing to do"
    assert event.query(), "and its event fires at once"
    assert raw(tensor) == [0], "though the kernel has not run"


@pytest.mark.usefixtures("cuda")
def test_tensors_of_two_devices_are_refused() -> None:
    with pytest.raises(RuntimeError, match="tensors of one device"):
        torch.add(on_device(1, "cuda:0"), on_device(1, "cuda:1"))
    with pytest.raises(RuntimeError, match="got one of the host"):
        torch.add(on_device(1), torch.zeros(1, dtype=torch.int64))


@pytest.mark.usefixtures("cuda")
def test_bytes_are_not_in_reach_of_numpy() -> None:
    with pytest.raises((TypeError, RuntimeError)):
        on_device(1).numpy()


# Copies between host and device.


@pytest.mark.parametrize("non_blocking", [False, True])
def test_a_copy_from_pageable_memory_waits_for_the_stream(cuda: CudaModel, non_blocking: bool) -> None:
    tensor = on_device(4)
    tensor.fill_(7)
    cuda.waits.clear()
    torch.arange(4).to("cuda", non_blocking=non_blocking)
    assert len(cuda.waits) == 1, f"expected one wait, got {cuda.waits}"
    assert "pageable memory, called by kit/test_cuda_model.py" in cuda.waits[0], f"it says where, got {cuda.waits}"
    assert raw(tensor) == [7] * 4, "what came before has run"


def test_a_copy_from_pinned_memory_waits_for_nothing(cuda: CudaModel) -> None:
    tensor = on_device(4)
    tensor.fill_(7)
    cuda.waits.clear()
    sent = torch.tensor([1, 2], pin_memory=True).to("cuda", non_blocking=True)
    assert not cuda.waits, f"expected no wait, got {cuda.waits}"
    assert raw(sent) == [0, 0], "nothing has run"
    assert sent.cpu().tolist() == [1, 2], "the numbers arrive, though only the copy has the pinned memory"
    cuda.require_no_races()


def test_indices_of_the_host_are_uploaded_from_pageable_memory(cuda: CudaModel) -> None:
    tensor = on_device(4)
    cuda.waits.clear()
    tensor[torch.tensor([1, 2])] = 5
    assert any("pageable" in wait for wait in cuda.waits), f"torch uploads them and waits, got {cuda.waits}"
    assert tensor.tolist() == [0, 5, 5, 0], "the items are set"


def test_the_host_reads_a_copy_that_has_not_ended(cuda: CudaModel) -> None:
    fetched = on_device(4).to("cpu", non_blocking=True)
    fetched.sum()
    cuda.synchronize()
    assert len(cuda.races) == 1, f"expected one race, got {list(map(str, cuda.races))}"
    shown = str(cuda.races[0])
    assert "copy to pinned memory on stream 1 of cuda:0" in shown, f"it names the copy, got {shown}"
    assert "aten.sum.default on the host" in shown, f"and what the host does, got {shown}"


def test_the_host_overwrites_pinned_memory_that_is_still_read(cuda: CudaModel) -> None:
    staging = torch.zeros(4, dtype=torch.int64, pin_memory=True)
    sent = staging.to("cuda", non_blocking=True)
    staging.fill_(9)
    cuda.synchronize()
    assert raw(sent) == [9] * 4, "the copy reads what the host wrote too early"
    races = [str(race) for race in cuda.races]
    found = [race for race in races if "aten.fill_" in race and "copy from pinned" in race]
    assert found, f"expected a race of aten.fill_ with the copy from pinned memory, got {races}"


def test_the_host_may_reuse_it_after_an_event(cuda: CudaModel) -> None:
    staging = torch.zeros(4, dtype=torch.int64, pin_memory=True)
    staging.to("cuda", non_blocking=True)
    cuda.current_stream().record_event().synchronize()
    staging.fill_(9)
    cuda.require_no_races()


# Memory that is freed.


def test_memory_that_another_stream_reads_is_reused_when_it_is_freed(cuda: CudaModel) -> None:
    side, numbers = cuda.Stream(), on_device(4)
    with cuda.stream(side):
        seen = numbers.clone()
    del numbers
    cuda.current_stream().run()
    side.synchronize()
    assert raw(seen) == [int.from_bytes(bytes([POISON] * 8), "little", signed=True)] * 4, "another owner has it"
    assert any("reuse of freed memory" in str(race) for race in cuda.races), f"got {list(map(str, cuda.races))}"


def test_memory_whose_use_was_recorded_is_not_reused_before_it(cuda: CudaModel) -> None:
    side, numbers = cuda.Stream(), on_device(4)
    with cuda.stream(side):
        seen = numbers.clone()
    numbers.record_stream(side)  # type: ignore[arg-type]
    del numbers
    cuda.current_stream().run()
    side.synchronize()
    assert raw(seen) == [0] * 4, "the reader came first"
    cuda.require_no_races()


def test_memory_of_one_stream_is_reused_in_its_order(cuda: CudaModel) -> None:
    numbers = on_device(4)
    seen = numbers.clone()
    del numbers
    assert seen.tolist() == [0] * 4, "work of the same stream goes first"
    cuda.require_no_races()


def test_registered_memory_is_unregistered_while_a_stream_reads_it(cuda: CudaModel) -> None:
    runtime = cuda.cudart()
    memory = torch.zeros(4, dtype=torch.int64)
    assert runtime.cudaHostRegister(memory.data_ptr(), 32, 3) == 0, "it is registered"
    assert runtime.cudaHostRegister(memory.data_ptr(), 32, 3) == 712, "once"
    assert memory.is_pinned(), "streams reach it"
    memory.to("cuda", non_blocking=True)
    assert runtime.cudaHostUnregister(memory.data_ptr()) == 0, "it is unregistered"
    assert runtime.cudaHostUnregister(memory.data_ptr()) == 713, "once"
    assert any("cudaHostUnregister" in str(race) for race in cuda.races), f"got {list(map(str, cuda.races))}"


# Races, byte by byte.


def test_two_streams_may_write_different_items(cuda: CudaModel) -> None:
    side, tensor = cuda.Stream(), on_device(4)
    with cuda.stream(side):
        low = torch.tensor([0, 1], pin_memory=True).to("cuda", non_blocking=True)
        tensor[low] = 1
    high = torch.tensor([2, 3], pin_memory=True).to("cuda", non_blocking=True)
    tensor[high] = 2
    assert tensor[2:].tolist() == [2, 2], "they are set"
    side.synchronize()
    cuda.require_no_races()


def test_items_that_two_streams_write_are_named_to_the_byte(cuda: CudaModel) -> None:
    side, tensor = cuda.Stream(), on_device(4)
    with cuda.stream(side):
        low = torch.tensor([0, 1], pin_memory=True).to("cuda", non_blocking=True)
        tensor[low] = 1
    tensor[1:3].fill_(2)
    cuda.synchronize()
    found = [race for race in cuda.races if race.memory == "32 bytes on cuda:0"]
    assert [race.touched for race in found] == [(8, 16)], f"expected item 1, got {list(map(str, found))}"
    operations = {access.operation for _, access in (found[0].first, found[0].second)}
    assert operations == {"aten.index_put_.default", "aten.fill_.Scalar"}, f"both are named, got {operations}"


def test_what_the_host_saw_done_is_in_order_with_what_it_asks_for_next(cuda: CudaModel) -> None:
    side, tensor = cuda.Stream(), on_device(4)
    with cuda.stream(side):
        tensor.fill_(1)
        event = side.record_event()
    while not event.query():
        assert cuda.run(), "the event fires"
    tensor.fill_(2)
    assert tensor.tolist() == [2] * 4, "the host asked for it after it saw the event"
    cuda.require_no_races()


# Any program: the model, torch's engine, and an oracle that compares each pair of accesses.

STREAMS, PIECES, EVENTS = 3, 2, 3

Step: TypeAlias = tuple[str, int, int, int]

STEP = st.one_of(
    st.tuples(
        st.sampled_from(["read", "write"]), st.integers(0, STREAMS - 1), st.integers(0, PIECES - 1), st.integers(0, 2)
    ),
    st.tuples(st.sampled_from(["record", "wait"]), st.integers(0, STREAMS - 1), st.integers(0, EVENTS - 1), st.just(0)),
    st.tuples(st.sampled_from(["synchronize"]), st.integers(0, STREAMS - 1), st.just(0), st.just(0)),
    st.tuples(st.sampled_from(["await"]), st.integers(0, EVENTS - 1), st.just(0), st.just(0)),
)
"""What the host does: a stream reads or writes a piece of memory, its first half, its second or all of it; an event is
recorded on a stream, or a stream waits for it; the host waits for a stream, or for an event."""

HALVES = ((0, 2), (2, 4), (0, 4))
PROGRAMS = st.lists(STEP, max_size=14)


class Oracle:
    """Which accesses happen before which, as sets; and the pairs that are in no order."""

    def __init__(self) -> None:
        self.accesses: list[tuple[int, int, str, tuple[int, int], frozenset[int]]] = []
        self.before: list[frozenset[int]] = [frozenset()] * STREAMS
        self.events: list[frozenset[int]] = [frozenset()] * EVENTS
        self.host: frozenset[int] = frozenset()

    def step(self, what: str, one: int, other: int, half: int) -> None:
        """Do a step."""
        if what in ("read", "write"):
            self.before[one] |= self.host
            self.accesses.append((one, other, what, HALVES[half], self.before[one]))
            self.before[one] |= {len(self.accesses) - 1}
        elif what == "record":
            self.events[other] = self.before[one]
        elif what == "wait":
            self.before[one] |= self.events[other]
        else:
            self.host |= self.before[one] if what == "synchronize" else self.events[one]

    def races(self) -> set[tuple[int, int]]:
        """The pairs of accesses to the same bytes, one of them a write, of which none happens before the other."""
        return {
            (first, second)
            for (first, one), (second, other) in combinations(enumerate(self.accesses), 2)
            if (one[1], first in other[4]) == (other[1], False)
            and "write" in (one[2], other[2])
            and meet(one[3], other[3])
        }


def meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def play(program: list[Step], order: int) -> tuple[CudaModel, Sanitizer, list[torch.Tensor]]:
    """A program on the model, whose streams run in some order, with torch's engine as its observer; and its memory."""
    sanitizer = Sanitizer()
    with CudaModel(random.Random(order), observer=sanitizer).installed() as cuda:
        streams = [cuda.Stream() for _ in range(STREAMS)]
        pieces = [torch.empty(4, dtype=torch.uint8, device="cuda") for _ in range(PIECES)]
        cuda.synchronize()
        events = [cuda.Event() for _ in range(EVENTS)]
        for what, one, other, half in program:
            play_one(cuda, (streams, pieces, events), what, (one, other, half))
        cuda.machine.drain()
    return cuda, sanitizer, pieces


def play_one(cuda: CudaModel, things: tuple[Any, Any, Any], what: str, numbers: tuple[int, int, int]) -> None:
    (streams, pieces, events), (one, other, half) = things, numbers
    if what in ("read", "write"):
        start, end = HALVES[half]
        touched = [(pieces[other][start:end], None)]
        with cuda.stream(streams[one]):
            cuda.kernel(what, lambda: None, touched if what == "read" else (), touched if what == "write" else ())
    elif what == "record":
        events[other].record(streams[one])
    elif what == "wait":
        streams[one].wait_event(events[other])
    elif what == "synchronize":
        streams[one].synchronize()
    else:
        events[one].synchronize()


@given(program=PROGRAMS, order=st.integers(0, 99))
@settings(max_examples=150)
def test_the_model_finds_a_race_where_two_accesses_are_in_no_order(program: list[Step], order: int) -> None:
    oracle = Oracle()
    for step in program:
        oracle.step(*step)
    cuda, sanitizer, _ = play(program, order)
    expected = oracle.races()
    assert bool(cuda.races) == bool(expected), f"expected {expected}, got {list(map(str, cuda.races))}"
    assert sanitizer.agrees(cuda.races), f"torch's engine finds {sanitizer.found()}, the model {cuda.races}"


# Threads.


def test_each_thread_has_its_own_model() -> None:
    met, found = Barrier(2, timeout=5.0), dict[str, int]()

    def use(name: str, devices: int) -> None:
        with CudaModel(devices=devices).installed():
            met.wait()
            found[name] = torch.cuda.device_count()
            on_device(4).fill_(7)
            met.wait()

    threads = [Thread(target=use, args=one) for one in (("one", 1), ("other", 3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"one": 1, "other": 3}, f"expected each thread to see the devices of its model, got {found}"


def test_a_thread_without_a_model_has_torchs_own() -> None:
    before, found = torch.cuda.device_count(), list[int]()
    with CudaModel(devices=before + 1).installed():
        thread = Thread(target=lambda: found.append(torch.cuda.device_count()))
        thread.start()
        thread.join()
        found.append(torch.cuda.device_count())
    assert found == [before, before + 1], f"expected torch's own devices and then those of the model, got {found}"


def test_torch_is_itself_again_when_the_last_thread_has_left() -> None:
    before, inner = torch.cuda.device_count, CudaModel(devices=3)
    with CudaModel(devices=1).installed():
        with inner.installed(), inner.installed():
            assert torch.cuda.device_count() == 3, "the inner model"
        assert torch.cuda.device_count() == 1, "the outer one again"
    assert torch.cuda.device_count is before, "and then torch's own"
