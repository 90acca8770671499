"""FakeWorld: a rank of a world of any size in this process, on torch's fake process group; what it makes and sends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import distributed
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _world
from torch.testing._internal.distributed import fake_pg  # noqa: F401 - it registers the backend

from hicache.config import Topology
from hicache.parallel import communicators
from hicache.parallel.mesh import world_rank, world_size
from hicache.parallel.rank_monitor import RankMonitor
from hicache.testing.ranks.interposer import VERBS

BACKEND = distributed.Backend.FAKE  # fake_pg registers it


@dataclass(frozen=True, slots=True)
class Sent:
    """One collective: its ranks, the operation, and the shape and type of its tensor."""

    ranks: tuple[int, ...]
    operation: str
    shape: tuple[int, ...]
    dtype: torch.dtype


class Ended:
    """A collective that has ended. The fake one says that it has not, until a caller waits for it."""

    def is_completed(self) -> bool:
        return True

    def wait(self, *_: object) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class FakeWorld:
    """What one rank did. `made`: the arguments of each group that it made, in order; `sent`: its collectives."""

    store: HashStore
    made: list[str] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)

    @property
    def open_groups(self) -> int:
        """The groups that torch keeps for this rank, besides the one of the whole world."""
        tables = (_world.pg_map, _world.pg_names, _world.pg_group_ranks, _world.pg_backend_config, _world.pg_to_tag)
        # Torch has one entry, a number, for all groups of other ranks.
        kept: set[object] = {group for table in tables for group in table}
        return len(kept - {distributed.group.WORLD, distributed.GroupMember.NON_GROUP_MEMBER})

    def new_group(self, ranks: list[int], **options: Any) -> Any:
        """Make a group in torch, and record its arguments."""
        self.made.append(f"{ranks} {sorted(options.items(), key=str)}")
        return self._new_group(ranks, **options)

    def all_reduce(self, tensor: torch.Tensor, operation: Any, *, group: Any, async_op: bool) -> Ended:
        """Enter a collective in torch, which returns at once and changes nothing, and record it."""
        distributed.distributed_c10d.all_reduce(tensor, operation, group=group, async_op=async_op)
        ranks = tuple(distributed.get_process_group_ranks(group))
        self.sent.append(Sent(ranks, str(operation).rpartition(".")[2], tuple(tensor.shape), tensor.dtype))
        return Ended()

    @staticmethod
    def _new_group(ranks: list[int], **options: Any) -> Any:
        return distributed.distributed_c10d.new_group(ranks, **options)


@contextmanager
def fake_world(place: Topology) -> Iterator[FakeWorld]:
    """Be this rank of its mesh: no call waits for other ranks, and groups of the CPU are fake ones."""
    world = FakeWorld(HashStore())
    distributed.init_process_group(BACKEND, store=HashStore(), rank=world_rank(place), world_size=world_size(place))
    with ExitStack() as patched:
        patched.callback(distributed.destroy_process_group)
        for verb in VERBS:  # a world of the kit replaces them until the process ends
            patched.callback(setattr, distributed, verb, getattr(distributed, verb))
        patched.enter_context(patch.dict(communicators.BACKENDS, {"cpu": BACKEND}))
        patched.enter_context(patch.object(RankMonitor, "wait_for_all"))
        patched.enter_context(patch.object(distributed, "new_group", world.new_group))
        patched.enter_context(patch.object(distributed, "all_reduce", world.all_reduce))
        yield world
