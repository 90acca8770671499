"""Stream mutants: each is right in the order in which work is queued; the model of CUDA finds the order it lacks."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from hicache.pools.copy import KernelCopies
from hicache.testing.cuda.model import CudaModel
from hicache.testing.cuda.races import Race
from hicache.testing.cuda.races import SlotAccess as Found
from hicache.testing.cuda.sanitizer import Sanitizer
from hicache.tests.cache.transfer.gpu import Gpu
from hicache.tests.cache.transfer.stream_schedule import StreamSchedule
from hicache.tests.proof.mutants.streams import MUTANTS, Access, Actor, Does, Memory, StreamMutant
from hicache.transfer.streams import StreamExecutor

ORDERS = (0, 1)
"""Seeds of the orders in which streams go on."""

EACH = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.slug)


def test_there_are_ten_and_each_is_one_class() -> None:
    assert len({one.slug for one in MUTANTS}) == 10, f"expected ten names, got {[one.slug for one in MUTANTS]}"
    assert len({one.mutant for one in MUTANTS}) == 10, "each is another class"


@EACH
def test_a_mutant_takes_the_arguments_of_what_it_replaces(mutant: StreamMutant) -> None:
    assert issubclass(mutant.mutant, mutant.replaces), f"{mutant.mutant} stands in the place of {mutant.replaces}"
    found, expected = inspect.signature(mutant.mutant), inspect.signature(mutant.replaces)
    assert found == expected, f"expected {expected}, got {found}"


@EACH
def test_the_accesses_of_a_race_are_to_one_memory_and_one_changes_it(mutant: StreamMutant) -> None:
    assert mutant.races, "a mutant without a race lacks no order"
    for first, second in mutant.races:
        assert first.memory == second.memory, f"{first} and {second} do not meet"
        assert {first.does, second.does} != {"reads"}, f"{first} and {second} may come in either order"


def opened(mutant: StreamMutant, cuda: CudaModel) -> Gpu:
    """The pools and copies of a cache with the defect, on a model that is installed."""
    kinds: dict[type, type] = {StreamExecutor: StreamExecutor, KernelCopies: KernelCopies}
    kinds[mutant.replaces] = mutant.mutant
    return Gpu.on(cuda, kinds[StreamExecutor], kinds[KernelCopies])


def play(schedule: StreamSchedule) -> None:
    """Rounds of both kinds, and a close in the midst of copies. What a defect breaks ends the schedule."""
    # What a GPU says of an index that is none.
    with ignored(RuntimeError, "device-side assert"):
        for by_layers in (False, True):
            schedule.round(by_layers=by_layers)
        schedule.interrupt()


@contextmanager
def ignored(kind: type[Exception], words: str) -> Iterator[None]:
    """Go on behind the block after an error with these words."""
    try:
        yield
    except kind as error:
        if words not in str(error):
            raise


@dataclass(frozen=True, slots=True)
class Naming:
    """Names the accesses of races as mutants do: by who they are of, and by what memory is for."""

    gpu: Gpu
    pools: frozenset[int]

    @classmethod
    def of(cls, gpu: Gpu) -> Naming:
        """By the memory of the device's pools."""
        raws = [raw for buffers in gpu.tiers.device.buffers.values() for raw in buffers.raw]
        return cls(gpu, frozenset(raw.memory.shadow.address for raw in raws))  # type: ignore[attr-defined]

    def named(self, race: Race) -> frozenset[str]:
        """The two accesses."""
        memory: Memory = "scratch"
        if "registered" in race.memory:
            memory = "host page"
        elif "pinned" in race.memory:
            memory = "page numbers"
        elif race.address in self.pools:
            memory = "device page"
        return frozenset(str(self._access(did == "written", found, memory)) for did, found in (race.first, race.second))

    def _access(self, is_write: bool, found: Found, memory: Memory) -> Access:
        does: Does = "frees" if "Unregister" in found.operation else "writes" if is_write else "reads"
        return Access(self._actor(is_write, found, memory), does, memory)

    def _actor(self, is_write: bool, found: Found, memory: Memory) -> Actor:
        if found.operation in ("compute", "attention"):
            return "model"
        if found.on == "the host":
            return "host"
        if memory == "device page":
            return "load" if is_write else "backup"
        if memory == "host page":
            return "backup" if is_write else "load"
        return "backup" if found.on == self.gpu.backup_stream.name else "load"


@EACH
def test_a_mutant_is_right_in_the_order_in_which_work_is_queued(mutant: StreamMutant) -> None:
    with CudaModel(launch_blocking=True).installed() as cuda:
        schedule = StreamSchedule(opened(mutant, cuda))
        play(schedule)
    assert not schedule.wrong, f"expected the bytes of each job, got {schedule.wrong}"


HOST_ALONE = ("stream-of-the-current-device", "closes-at-once")
"""Where the host is one side of each race: the engine of torch's sanitizer knows accesses of streams alone."""


@EACH
def test_the_model_names_the_two_accesses_that_nothing_puts_in_order(mutant: StreamMutant) -> None:
    expected, found, by_engine = frozenset(map(str, mutant.races[0])), set[frozenset[str]](), set[int]()
    for order in ORDERS:
        sanitizer = Sanitizer()
        with CudaModel(random.Random(order), observer=sanitizer).installed() as cuda:
            gpu = opened(mutant, cuda)
            naming = Naming.of(gpu)
            play(StreamSchedule(gpu))
        assert cuda.races, f"{mutant.slug}: a race is found in each order"
        assert sanitizer.agrees(cuda.races), f"{mutant.slug}: the engine finds {sanitizer.found()}"
        found |= {naming.named(race) for race in cuda.races}
        by_engine |= sanitizer.found().keys()
    assert expected in found, f"{mutant.slug}: expected {sorted(expected)}, got {sorted(map(sorted, found))}"
    assert bool(by_engine) == (mutant.slug not in HOST_ALONE), f"{mutant.slug}: the engine finds {len(by_engine)} bytes"
