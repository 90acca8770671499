"""Caches whose ranks do not agree on what has ended on CUDA streams. Stepped, or on one rank, they are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hicache.config import CacheConfig, ExecutorKind
from hicache.parallel.agree import Agreement
from hicache.parallel.group import Group
from hicache.parallel.mesh import world_rank
from hicache.testing.caches.reference import ModelledReference
from hicache.tests.proof.mutants.ranks import OtherAgreement
from hicache.tests.proof.mutants.streams import DoneAtSubmit
from hicache.transfer.executors import Executor
from hicache.transfer.job import CopyJob, LayeredCopier
from hicache.transfer.streams import StreamExecutor
from hicache.types import TransferKind


class _OwnEvents(Agreement):
    def acknowledged(
        self, started: int, outcomes: Sequence[int], bits: int = 0, count: int = 0, waiting: str = ""
    ) -> tuple[Sequence[int], int]:
        super().acknowledged(started, outcomes, bits, count, waiting)
        return outcomes, bits


class OwnEvents(OtherAgreement, ModelledReference):
    """A rank takes over the copies whose own event has fired, without asking the others.

    Streams are as fast as the GPU is idle: on one rank the event of a backup has fired at this step, on another at the
    next one. The first has a node on the host then that the second lacks.
    """

    def agreement(self, config: CacheConfig, groups: Mapping[str, Group]) -> Agreement:
        is_on_streams = config.host is not None and config.host.executor is ExecutorKind.STREAMS
        return (_OwnEvents if is_on_streams else Agreement)(groups)


class EventsOfTheFirst(ModelledReference):
    """The first rank asks its events, and the others take its word: the trees are equal.

    The others have host pages that their own copy has not written, and free device pages that it has not read.
    """

    def _open_copies(self, kind: TransferKind, copier: LayeredCopier) -> Executor[CopyJob]:
        opened = super()._open_copies(kind, copier)
        if isinstance(opened, StreamExecutor) and world_rank(self._config.topology) > 0:
            opened = self._copies[kind] = DoneAtSubmit(copier)
        return opened
