"""Backups: which nodes are copied to the host, and when; and what becomes of the copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hicache.components.base import TreeComponent
from hicache.components.ensemble import Ensemble
from hicache.components.holding import FULL
from hicache.components.locks import DEVICE, HOST, LockReceipt, Locks
from hicache.config import HostConfig, WritePolicy
from hicache.metrics import Counters
from hicache.parallel.agree import Agreement
from hicache.pools.host import HostPools
from hicache.tiers.host_room import HostRoom
from hicache.tiers.operation import Operation
from hicache.transfer.controller import HybridCacheController
from hicache.transfer.job import Move
from hicache.tree.node import Node
from hicache.types import TransferKind, TransferPhase

MOST_FAILURES = 3
"""Copies of a node that may fail before it is not tried again."""

BytesOf = Callable[[Mapping[str, Move]], int]
"""How many bytes some moves are, over all layers and pools."""


class Backups:
    """Copies to the host. A node's host pages are its own once they have its bytes, and not before.

    `followers`: are told of each node that got a copy, parents first.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        locks: Locks,
        bank: HostPools,
        controller: HybridCacheController[Operation],
        config: HostConfig,
        counters: Counters,
        bytes_of: BytesOf,
        agreement: Agreement,
    ) -> None:
        self._ensemble = ensemble
        self._locks = locks
        self._bank = bank
        self._room = HostRoom(ensemble, bank)
        self._controller = controller
        self._config = config
        self._counters = counters
        self._bytes_of = bytes_of
        self._agreement = agreement
        self._used: dict[Node, None] = {}
        self.followers: list[Callable[[Node], None]] = []
        is_selective = config.write_policy is WritePolicy.WRITE_THROUGH_SELECTIVE
        self._least_hits = config.selective_hits if is_selective else 0

    @property
    def room(self) -> HostRoom:
        """Where host pages come from."""
        return self._room

    def used(self, node: Node) -> None:
        """A match ended at a node on the device: it is considered in the next `start_due`, as a match moves nothing."""
        if not self._ensemble.leaves_gaps and self.lacking(node):
            self._used[node] = None

    def start_due(self) -> None:
        """Consider the nodes that were used since the last time."""
        used, self._used = self._used, {}
        for node in used:
            if node.alive and node.values[FULL] is not None:
                self.consider(node)

    def consider(self, node: Node) -> None:
        """Back up what the policy wants of the path to a node, parents first, as far as there is room."""
        if self._ensemble.leaves_gaps or node.parent is None:
            return
        # Room is made on the way, which must not take the node that the caller is about to lock.
        pins = self._claim(node)
        for step in node.path():
            if step.hits < self._least_hits:
                break
            if self.lacking(step) and step.failures < MOST_FAILURES and not self.start(step):
                break
        self._unpin(pins)

    def cover(self, node: Node) -> bool:
        """Have the whole path to a node copied, whatever its hits; False when some of it is not, and cannot be."""
        place = self._ensemble.components[FULL].host.place
        steps = [] if self._ensemble.leaves_gaps else node.path()
        bare = (step for step in steps if step.values[place] is None and step.arriving[place] is None)
        return all(self.start(step) for step in bare)

    def lacking(self, node: Node) -> list[TreeComponent]:
        """The components that the device has of a node, and the host has not and does not get."""
        return [
            component
            for component in self._ensemble.components
            if node.values[component.index] is not None
            and node.values[component.host.place] is None
            and node.arriving[component.host.place] is None
        ]

    def start(self, node: Node) -> bool:
        """Queue the copy of all that is lacking; False, with nothing taken, when there is no room or no parent's."""
        parent = node.parent
        assert parent is not None, "the root has nothing to copy"
        if not self._may_follow(parent):
            return self._refuse()
        # What takes part is claimed before room is made for it, or the making could take it.
        pins = self._claim(node)
        if parent.parent is not None and not self._ensemble.leaves_gaps:
            pins.append(self._locks.pin(parent, HOST))
        device = {c.name: pages for c in self.lacking(node) if (pages := node.values[c.index]) is not None}
        host = self._room.take({name: len(pages) for name, pages in device.items()})
        if host is None:
            self._unpin(pins)
            return self._refuse()
        moves = {name: Move(pages, host[name]) for name, pages in device.items()}
        operation = Operation.of(TransferKind.BACKUP, node, moves, pins)
        for name in moves:
            node.arriving[self._ensemble.by_name[name].host.place] = operation
        self._controller.enqueue(operation)
        return True

    def is_hopeless(self, node: Node) -> bool:
        """Whether the node cannot be backed up, however long one waits."""
        pages = {c.name: node.values[c.index] for c in self.lacking(node)}
        too_large = [
            name for name, own in pages.items() if own is not None and len(own) > self._bank.capacity_pages(name)
        ]
        return bool(too_large) or node.failures >= MOST_FAILURES

    def finish_now(self) -> None:
        """Wait for the copies that are queued or running, and take them over."""
        self._controller.start(TransferKind.BACKUP)
        self._controller.wait(TransferKind.BACKUP)
        reported = self._controller.outcomes(TransferKind.BACKUP)
        self._controller.settle(TransferKind.BACKUP, self._agreement.acknowledged(self._controller.started, reported))
        self.take_over()

    def take_over(self) -> None:
        """Give nodes the copies that have ended."""
        for operation in self._controller.take_ended(TransferKind.BACKUP):
            self._finish(operation)

    def undo(self, operation: Operation) -> None:
        """Free the host pages of a copy that nobody wants any more."""
        for name in operation.moves:
            self._bank.free(name, operation.target(name))

    def clear(self) -> None:
        """Forget what was used."""
        self._used.clear()

    def _finish(self, operation: Operation) -> None:
        arrived = operation.phase is TransferPhase.DONE
        for fragment in operation.fragments:
            fragment.failures += not arrived
            for component in self._ensemble.components:
                self._settle(operation, component, fragment, arrived=arrived)
        if arrived:
            self._counters.bytes_backed_up += self._bytes_of(operation.moves)
            for follow in self.followers:
                for fragment in operation.fragments:
                    follow(fragment)
        self._unpin(operation.pins)

    def _settle(self, operation: Operation, component: TreeComponent, node: Node, *, arrived: bool) -> None:
        place = component.host.place
        if node.arriving[place] is not operation:
            return
        node.arriving[place] = None
        pages = operation.part(component.name, node)
        if arrived and self._ensemble.has_ground(component, node):
            component.host.hold(node, pages)
        else:
            self._bank.free(component.name, pages)

    def _may_follow(self, parent: Node) -> bool:
        """Whether a copy may be queued below this parent: on the host no prefix has a gap."""
        is_coming = parent.arriving[self._ensemble.components[FULL].host.place] is not None
        return is_coming or self._ensemble.bears_on_host(parent)

    def _claim(self, node: Node) -> list[LockReceipt]:
        """Protect all that a node has, on both tiers."""
        tiers = [DEVICE, HOST] if self._ensemble.is_on_host(node) else [DEVICE]
        return [self._locks.pin(node, tier) for tier in tiers]

    def _refuse(self) -> bool:
        self._counters.backups_refused += 1
        return False

    def _unpin(self, pins: list[LockReceipt]) -> None:
        for pin in pins:
            self._locks.unpin(pin)
