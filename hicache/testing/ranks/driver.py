"""RankDriver: a driver on one of several ranks, which compares the trees of all ranks at synchronisation points."""

from __future__ import annotations

from dataclasses import replace

from hicache.config import CacheConfig, ExecutorKind
from hicache.testing.adapter import CacheAdapter
from hicache.testing.driving.driver import Driver
from hicache.testing.plugin.failures import recorded
from hicache.testing.ranks.digest import digest_of, tree_differences
from hicache.testing.ranks.world import RankWorld
from hicache.testing.storage.scripted import store_of
from hicache.testing.violation import violation
from hicache.types import StorageKind, TransferKind


class RankDriver(Driver):
    """Every rank calls its own cache with the same verbs in the same order; only the progress of transfers differs.

    Each verb checks the laws and the bytes of this rank. `step` and `drain` are synchronisation points: after them all
    ranks hold the same tree, or every rank raises InvariantError with the lines that differ.
    """

    def __init__(self, adapter_type: type[CacheAdapter], config: CacheConfig, world: RankWorld) -> None:
        own = config_on(config, world)
        self.world = world
        super().__init__(recorded(adapter_type).on_rank(own, world), own)

    @property
    def rank(self) -> int:
        """This rank's number in the mesh."""
        return self.world.rank

    def step(self) -> None:
        super().step()
        self.compare("step")

    def drain(self) -> None:
        super().drain()
        self.compare("drain")

    def compare(self, place: str) -> None:
        """Compare the trees of all ranks. `place`: the name of this point, the same on every rank."""
        differences = tree_differences(self.world.gather(f"trees after {place}", digest_of(self.snapshot()).text))
        if differences:
            raise violation("RANK-1", place, "the same tree on every rank", differences)

    def let_end(self, *kinds: TransferKind | StorageKind) -> int:
        """Complete what is pending of these kinds, or all of it, oldest first; returns the number."""
        pending = self.pending(*kinds)
        for one in pending:
            self.complete(one.ticket)
        return len(pending)

    def open_again(self) -> CacheAdapter:
        return type(self.adapter).on_rank(self.config, self.world)

    def end(self) -> None:
        """Drain, compare the trees, check every law and every byte, and close the cache."""
        self.drain()
        self.check()
        self.adapter.close()


def config_on(config: CacheConfig, world: RankWorld) -> CacheConfig:
    """The configuration that one rank opens: with its topology, its device, and a scripted store of its own.

    A cache whose copies a test or a thread moves is on the CPU, even if its collectives are on another device.
    """
    on_rank = replace(config, topology=world.topology)
    may_be_there = config.host is None or config.host.executor is ExecutorKind.STREAMS
    if world.device != "cpu" and may_be_there:
        on_rank = replace(on_rank, device=world.device)
    if store_of(config) is None or config.storage is None:
        return on_rank
    options = {"store": f"{config.storage.options['store']}/rank{world.rank}"}
    return replace(on_rank, storage=replace(config.storage, options=options))
