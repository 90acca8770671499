"""Copies that failed, and of which nobody asks how they went."""

from __future__ import annotations

from typing import ClassVar

from hicache.testing.mutants.accuracy.other_parts import OtherParts
from hicache.tiers import host_tier
from hicache.transfer.job import CopyJob
from hicache.transfer.queue import HybridCacheController, TransferT
from hicache.types import TransferKind


class _Unasked(HybridCacheController[TransferT]):
    kind: ClassVar[TransferKind]

    def _outcome(self, job: CopyJob) -> int:
        outcome = super()._outcome(job)
        return len(job.parts) + 1 if outcome and job.kind is self.kind else outcome


class _UnaskedBackups(_Unasked[TransferT]):
    kind = TransferKind.BACKUP


class _UnaskedLoads(_Unasked[TransferT]):
    kind = TransferKind.LOAD


class FailedBackupTaken(OtherParts):
    """A node whose backup failed leaves the device for the host all the same."""

    parts = ((host_tier, "HybridCacheController", _UnaskedBackups),)


class FailedLoadTaken(OtherParts):
    """A prefix is read whose load failed."""

    parts = ((host_tier, "HybridCacheController", _UnaskedLoads),)
