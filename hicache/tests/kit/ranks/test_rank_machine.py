"""RankMachine: what it tells the drivers of the ranks."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from distributed_tests.rank_machine import RankMachine
from hicache.testing.ranks.world import Mesh
from hicache.types import Component, Tier


class Evicts(RankMachine):
    """A machine whose ranks do nothing."""

    mesh = Mesh(1, 2, 1)

    def __init__(self, drivers: list[Any]) -> None:
        self.drivers = drivers

    def _each(self, act: Callable[[Any], Any]) -> list[Any]:
        return [None for _ in self.drivers]


@pytest.mark.parametrize("failing", [0, 1])
def test_each_rank_expects_a_failure_that_is_armed_on_one(failing: int) -> None:
    armed: list[int] = []
    config = SimpleNamespace(components=(Component.FULL.value,), page_size=2)
    drivers = [
        SimpleNamespace(rank=rank, failures=0, config=config, adapter=SimpleNamespace(fail_waits=armed.append))
        for rank in range(2)
    ]
    Evicts(drivers).evict(tier=Tier.DEVICE, component=0, pages=1, failing=failing)
    assert armed == [1], f"expected one rank with one failure, got {armed}"
    told = [driver.failures for driver in drivers]
    assert told == [1, 1], f"a load of rank {failing} may be the one that fails, on all ranks, got {told}"
