"""MeshCache: one cache on every rank of a mesh, each in a thread, and how often the ranks agree on something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter
from hicache.testing.ranks.mesh import Mesh
from hicache.testing.ranks.team import Team

T = TypeVar("T")

TIMEOUT_S = 60.0
"""Until a thread that does not come is missed, on a busy machine."""


class MeshCache:
    """`caches`: by rank. Close it in the end."""

    def __init__(self, adapter_type: type[CacheAdapter], config: CacheConfig, mesh: Mesh) -> None:
        self._team = Team(mesh, TIMEOUT_S)
        self.configs = [replace(config, topology=world.topology) for world in self._team.worlds]
        self.caches = self._team.each(lambda rank: adapter_type.on_rank(self.configs[rank], self._team.worlds[rank]))

    def each(self, act: Callable[[CacheAdapter], T]) -> list[T]:
        """Let every rank do something at once, and return what each came to, by rank."""
        return self.of_each(lambda rank: act(self.caches[rank]))

    def of_each(self, act: Callable[[int], T]) -> list[T]:
        """The same, by the number of the rank."""
        return self._team.each(act)

    def made(self, rank: int) -> dict[str, int]:
        """How many collectives a rank has made, along each axis that has several ranks."""
        return {axis: len(calls) for axis, calls in self._team.worlds[rank].calls.items()}

    def numbers(self, rank: int) -> dict[str, int]:
        """How many numbers a rank gave to its last collective, along each axis that has several ranks."""
        return {axis: calls[-1].count for axis, calls in self._team.worlds[rank].calls.items()}

    def counts(self, act: Callable[[CacheAdapter], object]) -> dict[str, int]:
        """How many collectives it takes along each axis. Raises AssertionError where ranks differ."""
        ranks = range(len(self.caches))
        before = [self.made(rank) for rank in ranks]
        self.each(act)
        took = [{axis: count - before[rank][axis] for axis, count in self.made(rank).items()} for rank in ranks]
        assert all(one == took[0] for one in took), f"RANK-2: expected as many on each rank, got {took}"
        return took[0]

    def close(self) -> None:
        """Close the caches, and end the threads."""
        for cache in self.caches:
            cache.close()
        self._team.close()
