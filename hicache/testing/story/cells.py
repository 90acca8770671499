"""Cell: the residency of one component of a node on one tier, and whether it is locked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from hicache.testing.snapshot import HostNodeView, HostView, NodeView, Snapshot
from hicache.types import Component, Slots, Tier, TransferKind


class Residency(str, Enum):
    """Whether data is on a tier. The value is the sign in a text drawing."""

    HERE = "■"
    ARRIVING = "○"
    TOMBSTONE = "†"
    ABSENT = "·"


@dataclass(frozen=True, slots=True)
class Cell:
    """One component of one node on one tier. `arrived`: the share of layers that may be read, from 0 to 1."""

    component: str
    tier: Tier
    residency: Residency
    arrived: float
    is_locked: bool


class Cells:
    """Reads cells from a snapshot of a cache with a host tier.

    `progress`: for each kind of transfer, the share of its layers that are done, from 0 to 1.
    """

    def __init__(self, snapshot: Snapshot, host: HostView, progress: Mapping[TransferKind, float]) -> None:
        self._tiers: Mapping[Tier, Sequence[NodeView | HostNodeView]] = {
            Tier.DEVICE: snapshot.nodes,
            Tier.HOST: host.nodes,
        }
        self._progress = progress
        self._sources = _sources(host)

    def of(self, node: int, tier: Tier) -> tuple[Cell, ...]:
        """The cells of a node on a tier, in order of component rank."""
        return tuple(self._cell(node, tier, component) for component in self._tiers[tier][node].slots)

    def _cell(self, node: int, tier: Tier, component: str) -> Cell:
        view = self._tiers[tier][node]
        residency = self._residency(node, tier, component)
        is_here = residency is Residency.HERE
        is_arriving = residency is Residency.ARRIVING
        arrived = self._progress.get(_BRINGS[tier], 0.0) if is_arriving else float(is_here)
        return Cell(component, tier, residency, arrived, is_locked=is_here and view.locks[component] > 0)

    def _residency(self, node: int, tier: Tier, component: str) -> Residency:
        slots = self._tiers[tier][node].slots
        if slots[component] is not None:
            return Residency.HERE
        source = self._tiers[_OTHER[tier]][node].slots[component]
        if source is not None and not self._sources[_BRINGS[tier], component].isdisjoint(source.tolist()):
            return Residency.ARRIVING
        return Residency.ABSENT if slots[Component.FULL] is None else Residency.TOMBSTONE


_OTHER = {Tier.DEVICE: Tier.HOST, Tier.HOST: Tier.DEVICE}
_BRINGS = {Tier.DEVICE: TransferKind.LOAD, Tier.HOST: TransferKind.BACKUP}


def _sources(host: HostView) -> Mapping[tuple[TransferKind, str], set[int]]:
    """The slots that transfers read from, by kind and component."""
    sources: defaultdict[tuple[TransferKind, str], set[int]] = defaultdict(set)
    for transfer in host.transfers:
        ends: Mapping[str, Slots] = transfer.device if transfer.kind is TransferKind.BACKUP else transfer.host
        for component, slots in ends.items():
            sources[transfer.kind, component].update(slots.tolist())
    return sources
