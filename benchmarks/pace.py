"""Pace: how long ranks take for numbers that are agreed at once, and for the same numbers one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from time import perf_counter

from hicache.config import CacheConfig
from hicache.parallel.group import Group, Reduction
from hicache.testing.adapter import CacheAdapter
from hicache.testing.ranks.world import RankWorld

NUMBERS = 16
"""As many as a step packs when a few jobs run."""

Groups = Mapping[str, Group]


def paces(
    world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig, rounds: int
) -> tuple[list[float], list[float]]:
    """The seconds for one packed reduction, and for one of each number, by turns in the cache's own group."""
    group = _opened(world, adapter_type, config)["tp"]
    numbers = list(range(NUMBERS))
    packed_s, separate_s = list[float](), list[float]()
    for _ in range(rounds):
        packed_s.append(_seconds(lambda: group.reduce(numbers, Reduction.MIN, "packed")))
        separate_s.append(_seconds(lambda: [group.reduce([number], Reduction.MIN, "separate") for number in numbers]))
    group.barrier("end")
    return packed_s, separate_s


def _opened(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> Groups:
    """The groups that the cache opens."""
    kept: dict[str, Group] = {}
    inner = world.groups

    def keep(open_groups: Callable[[], Groups]) -> Groups:
        kept.update(inner(open_groups))
        return kept

    world.groups = keep  # type: ignore[method-assign]
    adapter_type.on_rank(replace(config, topology=world.topology), world).close()
    return kept


def _seconds(call: Callable[[], object]) -> float:
    begin = perf_counter()
    call()
    return perf_counter() - begin
