"""RankVerbs: the part of an adapter that opens a cache on one of several ranks."""

from __future__ import annotations

from typing import TypeVar

from hicache.config import CacheConfig
from hicache.testing.ranks.world import RankWorld

Adapter = TypeVar("Adapter", bound="RankVerbs")


class RankVerbs:
    """Each rank has a cache of its own, in a process or a thread of its own. All serve the same requests."""

    @classmethod
    def on_rank(cls: type[Adapter], config: CacheConfig, world: RankWorld) -> Adapter:  # noqa: PYI019 - 3.10 has no Self
        """Open an empty cache on one rank; all ranks open theirs at the same time.

        `config`: its topology is the world's. `world`: gives the groups, or records what torch.distributed is asked.
        Raises ConfigurationError, on every rank, when the ranks were told different things.
        """
        raise NotImplementedError(f"{cls.__name__} declares a capability that needs on_rank(), which it lacks")
