"""Copies that failed, and of which nobody asks how they went."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hicache import cache
from hicache.testing.mutants.accuracy.other_parts import OtherParts
from hicache.transfer.queue import HybridCacheController, TransferT
from hicache.types import TransferKind, TransferPhase


class _Unasked(HybridCacheController[TransferT]):
    kind: ClassVar[TransferKind]

    def take_ended(self, kind: TransferKind) -> Iterator[TransferT]:
        for transfer in super().take_ended(kind):
            transfer.phase = TransferPhase.DONE if kind is self.kind else transfer.phase
            yield transfer


class _UnaskedBackups(_Unasked[TransferT]):
    kind = TransferKind.BACKUP


class _UnaskedLoads(_Unasked[TransferT]):
    kind = TransferKind.LOAD


class FailedBackupTaken(OtherParts):
    """A node whose backup failed leaves the device for the host all the same."""

    parts = ((cache, "HybridCacheController", _UnaskedBackups),)


class FailedLoadTaken(OtherParts):
    """A prefix is read whose load failed."""

    parts = ((cache, "HybridCacheController", _UnaskedLoads),)
