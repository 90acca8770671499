"""MeshCache: one cache on every rank of a mesh, each in a thread, and the number of collectives that the ranks make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter
from hicache.testing.ranks.world import Mesh, Team

T = TypeVar("T")

TIMEOUT_S = 60.0
"""The timeout of a collective, long enough for a busy machine."""


class MeshCache:
    """`caches`: by rank. Close it at the end."""

    def __init__(self, adapter_type: type[CacheAdapter], config: CacheConfig, mesh: Mesh) -> None:
        self._team = Team(mesh, TIMEOUT_S)
        self.configs = [replace(config, topology=world.topology) for world in self._team.worlds]
        self.caches = self._team.each(lambda rank: adapter_type.on_rank(self.configs[rank], self._team.worlds[rank]))

    def each(self, act: Callable[[CacheAdapter], T]) -> list[T]:
        """Call `act` with the cache of every rank at the same time. Returns the results by rank."""
        return self.of_each(lambda rank: act(self.caches[rank]))

    def of_each(self, act: Callable[[int], T]) -> list[T]:
        """Call `act` with the number of every rank at the same time. Returns the results by rank."""
        return self._team.each(act)

    def made(self, rank: int) -> dict[str, int]:
        """How many collectives a rank has made along each axis of several ranks."""
        return {axis: len(calls) for axis, calls in self._team.worlds[rank].calls.items()}

    def numbers(self, rank: int) -> dict[str, int]:
        """How many numbers a rank passed to its last collective along each axis of several ranks."""
        return {axis: calls[-1].count for axis, calls in self._team.worlds[rank].calls.items()}

    def counts(self, act: Callable[[CacheAdapter], object]) -> dict[str, int]:
        """How many collectives `act` makes along each axis. Raises AssertionError if the ranks differ."""
        ranks = range(len(self.caches))
        before = [self.made(rank) for rank in ranks]
        self.each(act)
        took = [{axis: count - before[rank][axis] for axis, count in self.made(rank).items()} for rank in ranks]
        assert all(one == took[0] for one in took), (
            f"RANK-2: expected the same number of collectives on each rank, got {took}"
        )
        return took[0]

    def close(self) -> None:
        """Close the caches, and end the threads."""
        for cache in self.caches:
            cache.close()
        self._team.close()
