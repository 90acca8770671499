"""Locks: receipts over the nodes of an ensemble, those of callers and those of the cache's own transfers apart."""

from __future__ import annotations

from dataclasses import dataclass

from hicache.components.ensemble import Ensemble
from hicache.components.holding import FULL
from hicache.errors import ReceiptError, StaleHandleError
from hicache.tree.node import Node

DEVICE, HOST = range(2)


@dataclass(frozen=True, slots=True, eq=False)
class LockReceipt:
    """What a lock took: the node, the tier (0 device, 1 host), and what each component must know to give it back.

    `keeper`: the device lock that keeps the node of a host lock, where it has no host copy that could.
    """

    node: Node
    tier: int
    marks: tuple[int, ...]
    keeper: LockReceipt | None


class Locks:
    """Receipts that are not released. `pins`: those that the cache itself holds."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble
        self._receipts: set[LockReceipt] = set()
        self.pins: set[LockReceipt] = set()

    def lock(self, node: Node, tier: int) -> LockReceipt:
        """Protect on one tier all that a reader up to the node's end needs.

        Raises StaleHandleError for a dead node, and for a device lock of one that is on the host alone.
        """
        receipt = self._acquire(node, tier)
        self._receipts.add(receipt)
        return receipt

    def unlock(self, receipt: LockReceipt, tier: int) -> None:
        """Undo what the lock did. Raises ReceiptError unless it is outstanding, in this life and on this tier."""
        if receipt not in self._receipts or receipt.tier != tier:
            raise ReceiptError(f"{receipt!r} was released before, or is not such a receipt of this cache")
        self._receipts.remove(receipt)
        self._release(receipt)
        self._ensemble.settle(receipt.node)

    def pin(self, node: Node, tier: int) -> LockReceipt:
        """As `lock`, for the cache itself."""
        receipt = self._acquire(node, tier)
        self.pins.add(receipt)
        return receipt

    def unpin(self, receipt: LockReceipt) -> None:
        """Undo a pin; one of an earlier life is gone already."""
        if receipt in self.pins:
            self.pins.remove(receipt)
            self._release(receipt)
            self._ensemble.settle(receipt.node)

    def clear(self) -> None:
        """Refuse every receipt from now on."""
        self._receipts.clear()
        self.pins.clear()

    def _acquire(self, node: Node, tier: int) -> LockReceipt:
        if not node.alive:
            raise StaleHandleError(f"{node!r} is in the tree no more")
        if tier == DEVICE and node.parent is not None and node.values[FULL] is None:
            raise StaleHandleError(f"{node!r} is on the host alone: load it back before it can be locked")
        keeper = self._acquire(node, DEVICE) if tier == HOST and not self._ensemble.is_on_host(node) else None
        components = self._ensemble.components
        marks = tuple([component.acquire(node, component.holdings[tier]) for component in components])
        return LockReceipt(node, tier, marks, keeper)

    def _release(self, receipt: LockReceipt) -> None:
        for component, mark in zip(self._ensemble.components, receipt.marks, strict=True):
            component.release(receipt.node, mark, component.holdings[receipt.tier])
        if receipt.keeper is not None:
            self._release(receipt.keeper)
