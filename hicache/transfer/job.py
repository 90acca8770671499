"""Job: pages to copy between device and host in one go; Move: the pages of one component in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hicache.types import Slots, TransferKind


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """Pages of one component, int64 [pages] each, pairwise the same data on device and host; states for MAMBA."""

    device: Slots
    host: Slots


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """What is copied in one go.

    `number`: unique, and higher than those of earlier jobs. `parts`: the operations that were merged, in order, each by
    component. A job that fails may have copied some of its first parts.
    """

    number: int
    kind: TransferKind
    parts: tuple[Mapping[str, Move], ...]
