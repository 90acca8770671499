"""RankDriver: a driver on one of several ranks, which compares the trees of all after each synchronisation point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter
from hicache.testing.driving.driver import Driver
from hicache.testing.ranks.digest import digest_of, parting
from hicache.testing.ranks.world import RankWorld
from hicache.testing.storage.scripted import store_of
from hicache.testing.storage_verbs import PendingStorage
from hicache.testing.violation import violation
from hicache.types import StorageKind, TransferKind


class RankDriver(Driver):
    """Every rank drives its own cache with the same verbs in the same order; what differs is how far transfers come.

    Each verb checks the laws and the bytes of this rank. `step` and `drain` are synchronisation points: after them all
    ranks hold the same tree, or each of them raises InvariantError with the lines that differ.
    """

    def __init__(self, adapter_type: type[CacheAdapter], config: CacheConfig, world: RankWorld) -> None:
        own = config_on(config, world)
        self.world = world
        super().__init__(adapter_type.on_rank(own, world), own)

    @property
    def rank(self) -> int:
        """This rank's number among all."""
        return self.world.rank

    def step(self) -> None:
        super().step()
        self.compare("step")

    def drain(self) -> None:
        super().drain()
        self.compare("drain")

    def compare(self, place: str) -> None:
        """Hold the trees of all ranks against each other. `place`: after what, the same on every rank."""
        parted = parting(self.world.gather(f"trees after {place}", digest_of(self.snapshot()).text))
        if parted:
            raise violation("RANK-1", place, "the same tree on every rank", parted)

    def let_end(self, *kinds: TransferKind | StorageKind) -> int:
        """Let what is under way of these kinds end on this rank, the oldest first; how many there were."""
        transfers = [one.ticket for one in self.pending() if one.kind in kinds]
        asked = [one.ticket for one in self._asked() if one.kind in kinds]
        for ticket in transfers:
            self.complete(ticket)
        for ticket in asked:
            self.complete_storage(ticket)
        return len(transfers) + len(asked)

    def _asked(self) -> Sequence[PendingStorage]:
        return self.pending_storage() if self.config.storage is not None else ()

    def restart(self) -> None:
        """Close the cache, with whatever is under way, and open another one on every rank over the same storage."""
        self.adapter.close()
        self.open(type(self.adapter).on_rank(self.config, self.world))
        self.forget()
        self.running.clear()
        self.verb_done()

    def end(self) -> None:
        """Let all end, compare once more, check every law and every byte, and close the cache."""
        self.drain()
        self.check()
        self.adapter.close()


def config_on(config: CacheConfig, world: RankWorld) -> CacheConfig:
    """A configuration as one rank opens it: with its place, its device, and a scripted store of its own."""
    on_rank = replace(config, topology=world.topology)
    if world.device != "cpu":
        on_rank = replace(on_rank, device=world.device)
    if store_of(config) is None or config.storage is None:
        return on_rank
    options = {"store": f"{config.storage.options['store']}/rank{world.rank}"}
    return replace(on_rank, storage=replace(config.storage, options=options))
