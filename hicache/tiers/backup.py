"""BackupManager: which nodes are copied to the host, and when; and what happens when a copy ends."""

from __future__ import annotations

from collections.abc import Callable

from hicache.components.base import TreeComponent
from hicache.components.component_tree import ComponentTree, LockReceipt
from hicache.config import WritePolicy
from hicache.parallel.agree import Agreement
from hicache.pools.host import HostPools
from hicache.tiers.evict import HostEvictor
from hicache.tiers.transfer import HybridCacheController, Transfer
from hicache.transfer.job import Move
from hicache.transfer.queue import complete_together
from hicache.tree.node import FULL, Node
from hicache.types import Tier, TransferKind, TransferPhase

MAX_BACKUP_FAILURES = 3
"""How many copies of a node may fail before the write policy does not try again."""


class BackupManager:
    """Copies to the host. Host pages become visible in the tree only after the copy is complete.

    `cache.step` calls `take_over`, then `start_due`, then starts the copies that were queued. `cache.reset` calls
    `free_target` for each copy that it aborts. `listeners`: called with each node whose copy has arrived, parents
    first. `min_hits`: how many hits a node needs before it is backed up.
    """

    def __init__(
        self,
        tree: ComponentTree,
        pools: HostPools,
        evictor: HostEvictor,
        controller: HybridCacheController,
        agreement: Agreement,
    ) -> None:
        self.listeners: list[Callable[[Node], None]] = []
        self._tree = tree
        self._pools = pools
        self._evictor = evictor
        self._controller = controller
        self._agreement = agreement
        self._used: dict[Node, None] = {}
        config = tree.config.host
        assert config is not None, "backups need a host tier"
        is_selective = config.write_policy is WritePolicy.WRITE_THROUGH_SELECTIVE
        self.min_hits = config.selective_hits if is_selective else 0

    # When a node is backed up.

    def note_use(self, node: Node) -> None:
        """A match ended at a node on the device. The next `start_due` considers it: a match never evicts or copies."""
        if not self._tree.is_write_back and self.lacking(node):
            self._used[node] = None

    def start_due(self) -> None:
        """Consider the nodes that were used since the last time."""
        used, self._used = self._used, {}
        for node in used:
            if node.alive and node.device[FULL].value is not None:
                self.consider(node)

    def consider(self, node: Node) -> None:
        """Back up what the write policy wants of the path to a node, parents first, while there is room."""
        if self._tree.is_write_back or node.parent is None:
            return
        # Evictions on the way must not take the node, which the caller of cache.insert is about to lock.
        pins = self._pin(node)
        for step in node.path():
            if step.hit_count < self.min_hits:
                break
            if self.lacking(step) and step.backup_failures < MAX_BACKUP_FAILURES and not self.enqueue(step):
                break
        self._tree.locks.unpin(*pins)

    def back_up_path(self, node: Node) -> bool:
        """Back up the whole path to a node, with any number of hits; False when some of it cannot be copied now.

        With write_back nothing is copied here, and the answer is True.
        """
        steps = [] if self._tree.is_write_back else node.path()
        without = (step for step in steps if step.host[FULL].value is None and step.host[FULL].transfer is None)
        return all(self.enqueue(step) for step in without)

    def back_up(self, node: Node) -> bool:
        """Back up what of the path to a node is on the device alone; False when some of it cannot be copied now."""
        return all(self.enqueue(step) for step in node.path() if self.lacking(step))

    def lacking(self, node: Node) -> list[TreeComponent]:
        """The components of a node that are on the device, not on the host, and not being copied to the host."""
        return [
            component
            for component in self._tree.components
            if node.device[component.index].value is not None
            and (host := node.host[component.index]).value is None
            and host.transfer is None
        ]

    def is_hopeless(self, node: Node) -> bool:
        """Whether the node can never be backed up: it is larger than a pool, or failed too often."""
        is_too_large = any(
            (value := node.device[component.index].value) is not None
            and len(value) > self._pools.capacity_pages(component.name)
            for component in self.lacking(node)
        )
        return is_too_large or node.backup_failures >= MAX_BACKUP_FAILURES

    # The life of a backup: start, take over, finish.

    def enqueue(self, node: Node) -> bool:
        """Queue the copy of all that is lacking; False, with nothing allocated, when that is not possible now.

        It is not when host memory is short, or when the parent has no host copy and gets none.
        """
        parent = node.parent
        assert parent is not None, "the root has nothing to back up"
        if not self._may_copy_below(parent):
            return self._refuse()
        # What takes part is pinned before room is made for it, or the eviction could take it.
        pins = self._pin(node)
        if not parent.is_root and not self._tree.is_write_back:
            pins.append(self._tree.locks.pin(parent, Tier.HOST))
        device = {c.name: value for c in self.lacking(node) if (value := node.device[c.index].value) is not None}
        host = self._evictor.allocate({name: len(pages) for name, pages in device.items()})
        if host is None:
            self._tree.locks.unpin(*pins)
            return self._refuse()
        moves = {name: Move(pages, host[name]) for name, pages in device.items()}
        transfer = Transfer.of(TransferKind.BACKUP, node, moves, pins)
        for name in moves:
            self._tree.by_name[name].host.data(node).transfer = transfer
        self._controller.enqueue(transfer)
        return True

    def take_over(self) -> None:
        """Give nodes the copies that have ended."""
        for transfer in self._controller.take_ended(TransferKind.BACKUP):
            self._finish(transfer)

    def finish_now(self) -> None:
        """Wait for the copies that wait or run, and give nodes those that arrived."""
        self._controller.start(TransferKind.BACKUP)
        self._controller.wait(TransferKind.BACKUP)
        complete_together([self._controller.queues[TransferKind.BACKUP]], self._agreement.acknowledged)
        self.take_over()

    def free_target(self, transfer: Transfer) -> None:
        """Free the host pages of a copy that was aborted."""
        for name in transfer.moves:
            self._evictor.free(name, transfer.target(name))

    def reset(self) -> None:
        """Consider nothing that was used before."""
        self._used.clear()

    def _finish(self, transfer: Transfer) -> None:
        is_done = transfer.phase is TransferPhase.DONE
        for node in transfer.nodes:
            node.backup_failures += not is_done
            for component in self._tree.components:
                self._install(transfer, component, node, is_done=is_done)
        # The parent's copy may have failed, or may have been evicted since: then the node did not take its own.
        backed_up = [node for node in transfer.nodes if is_done and self._tree.is_on_host(node)]
        for listener in self.listeners:
            for node in backed_up:
                listener(node)
        self._tree.locks.unpin(*transfer.pins)

    def _install(self, transfer: Transfer, component: TreeComponent, node: Node, *, is_done: bool) -> None:
        data = component.host.data(node)
        if data.transfer is not transfer:
            return
        data.transfer = None
        pages = transfer.part(component.name, node)
        if is_done and self._tree.can_back_up(component, node):
            component.host.install(node, pages)
            self._tree.counters.bytes_backed_up += self._pools.bytes_of({component.name: pages})
        else:
            self._evictor.free(component.name, pages)

    def _may_copy_below(self, parent: Node) -> bool:
        """Whether a copy may be queued below this parent: it has a host copy, or gets one."""
        is_coming = parent.host[FULL].transfer is not None
        return is_coming or self._tree.can_back_up_child(parent)

    def _pin(self, node: Node) -> list[LockReceipt]:
        """Protect all that a node has, on both tiers."""
        tiers = [Tier.DEVICE, Tier.HOST] if self._tree.is_on_host(node) else [Tier.DEVICE]
        return [self._tree.locks.pin(node, tier) for tier in tiers]

    def _refuse(self) -> bool:
        self._tree.counters.backups_refused += 1
        return False
