"""reduction_times: how long ranks take to reduce numbers in one collective, and in one collective for each number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from time import perf_counter

from hicache.config import CacheConfig
from hicache.parallel.group import Group, Reduction
from hicache.testing.adapter import CacheAdapter
from hicache.testing.ranks.world import RankWorld

NUMBERS = 16
"""About as many numbers as a step packs when a few jobs run."""

Groups = Mapping[str, Group]


def reduction_times(
    world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig, rounds: int
) -> tuple[list[float], list[float]]:
    """The seconds of one packed reduction, and of one reduction for each number, alternating in the cache's group."""
    group = _open_groups(world, adapter_type, config)["tp"]
    numbers = list(range(NUMBERS))
    packed_s, separate_s = list[float](), list[float]()
    for _ in range(rounds):
        packed_s.append(_seconds(lambda: group.reduce(numbers, Reduction.MIN, "packed")))
        separate_s.append(_seconds(lambda: [group.reduce([number], Reduction.MIN, "separate") for number in numbers]))
    group.barrier("end")
    return packed_s, separate_s


def _open_groups(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> Groups:
    """The groups that the cache opens."""
    opened: dict[str, Group] = {}
    inner = world.groups

    def record(open_groups: Callable[[], Groups]) -> Groups:
        opened.update(inner(open_groups))
        return opened

    world.groups = record  # type: ignore[method-assign]
    adapter_type.on_rank(replace(config, topology=world.topology), world).close()
    return opened


def _seconds(call: Callable[[], object]) -> float:
    begin = perf_counter()
    call()
    return perf_counter() - begin
