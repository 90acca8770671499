"""Stream mutants lack nothing but order: each does its work as long as all runs in the order in which it was queued."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

from hicache.pools.copy import KernelCopies
from hicache.testing.mutants.streams import MUTANTS, StreamMutant
from hicache.tests.pools.two_tiers import BACKED_UP, LOADED, TwoTiers, contents, job_of, moved, two_tier_config
from hicache.tests.transfer.fake_cuda import FakeCuda, QueuedCopier
from hicache.transfer.job import Progress
from hicache.transfer.streams import StreamExecutor
from hicache.types import TransferKind

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


@EACH
def test_a_mutant_is_right_in_the_order_in_which_work_is_queued(mutant: StreamMutant) -> None:
    tiers, cuda = TwoTiers(two_tier_config()), FakeCuda()
    kinds: dict[type, type] = {StreamExecutor: StreamExecutor, KernelCopies: KernelCopies}
    kinds[mutant.replaces] = mutant.mutant
    copier = QueuedCopier(tiers.copier(kinds[KernelCopies](torch.device("cpu"))), cuda)
    executors: dict[TransferKind, StreamExecutor] = {kind: kinds[StreamExecutor](copier, cuda) for kind in TransferKind}
    for number in range(1, 5):
        kind, parts = (TransferKind.BACKUP, BACKED_UP) if number % 2 else (TransferKind.LOAD, LOADED)
        job = job_of(kind, parts, number)
        expected = moved(job, tiers, len(parts))
        executors[kind].submit(job)
        while cuda.run():
            pass
        executors[kind].wait_layer(number, copier.layers - 1)
        assert executors[kind].wait(number), f"job {number} has ended"
        found, whole = executors[kind].progress(number), Progress(copier.layers, (1,) * len(parts), has_ended=True)
        assert found == whole, f"job {number}: expected {whole}, got {found}"
        target = tiers.host if kind is TransferKind.BACKUP else tiers.device
        for pool, own in expected.items():
            assert np.array_equal(contents(target, pool), own), f"{pool} differs after the {kind.value} {number}"
    for executor in executors.values():
        assert executor.close(), "a closed executor has stopped"
