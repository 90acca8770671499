"""RankVerbs: the method of an adapter that opens a cache on one of several ranks."""

from __future__ import annotations

from typing import TypeVar

from hicache.config import CacheConfig
from hicache.testing.ranks.world import RankWorld

Adapter = TypeVar("Adapter", bound="RankVerbs")


class RankVerbs:
    """Each rank has its own cache, in its own process or thread. All ranks serve the same requests."""

    @classmethod
    def on_rank(cls: type[Adapter], config: CacheConfig, world: RankWorld) -> Adapter:  # noqa: PYI019 - 3.10 has no Self
        """Open an empty cache on one rank; all ranks call this at the same time.

        `config`: with the topology of `world`. `world`: gives the process groups, or records the calls to
        torch.distributed. Raises ConfigurationError, on every rank, when the configurations of the ranks differ.
        """
        raise NotImplementedError(f"{cls.__name__} declares a capability that needs on_rank(), which it lacks")
