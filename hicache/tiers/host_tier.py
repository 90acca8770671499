"""HostTier: what only a cache with a host tier can do, and what follows when transfers end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hicache.components.ensemble import Ensemble
from hicache.components.locks import HOST, LockReceipt, Locks
from hicache.config import CacheConfig, WritePolicy
from hicache.errors import ConfigurationError
from hicache.metrics import Counters
from hicache.parallel.agree import Agreement
from hicache.pools.copier import PoolCopier
from hicache.pools.group import DevicePools
from hicache.pools.host import HostPools
from hicache.stacks import layer_order
from hicache.tiers.backups import Backups
from hicache.tiers.device_room import DeviceRoom
from hicache.tiers.loads import Loads, LoadTicket
from hicache.tiers.operation import Operation
from hicache.transfer.controller import HybridCacheController
from hicache.transfer.executors.protocol import Copier, Executor
from hicache.tree.node import Node
from hicache.types import Component, EvictResult, LoadBack, Sizes, Slots, TransferKind, TransferPhase

OpenExecutor = Callable[[Copier], Executor]
"""Makes the executor that moves bytes with a copier."""


class HostTier:
    """The host pools of one cache and the transfers to and from them. Lengths are in tokens, states for MAMBA."""

    def __init__(
        self,
        config: CacheConfig,
        ensemble: Ensemble,
        locks: Locks,
        pools: DevicePools,
        bank: HostPools,
        counters: Counters,
        open_executor: OpenExecutor | None,
        agreement: Agreement,
    ) -> None:
        if config.host is None or open_executor is None:
            raise ConfigurationError("a host tier needs `host` in its configuration, and an executor")
        self._ensemble = ensemble
        self._locks = locks
        self._pools = pools
        self._page = config.page_size
        self._threshold = -(-config.host.load_back_threshold_tokens // config.page_size)
        self._units = {name: 1 if name == Component.MAMBA else config.page_size for name in ensemble.by_name}
        self.bank = bank
        specs = {pool: buffers.spec for pool, buffers in pools.buffers.items()}
        order = layer_order(specs)
        self.layers = len(order)
        copier = PoolCopier(pools, bank, order)
        self.controller = HybridCacheController[Operation](open_executor(copier))
        self.backups = Backups(
            ensemble, locks, bank, self.controller, config.host, counters, copier.bytes_of, agreement
        )
        writes_back = config.host.write_policy is WritePolicy.WRITE_BACK
        self.room = DeviceRoom(ensemble, pools, self.backups if writes_back else None)
        self.loads = Loads(ensemble, locks, pools, self.room, self.controller, counters, copier.bytes_of)

    def outcomes(self) -> list[int]:
        """How far each job that runs has come."""
        return [outcome for kind in TransferKind for outcome in self.controller.outcomes(kind)]

    def step(self, outcomes: Sequence[int]) -> None:
        """Take over what has ended on every rank, in order; then start what is queued, merged by direction."""
        backups = len(self.controller.outcomes(TransferKind.BACKUP))
        self.controller.settle(TransferKind.BACKUP, outcomes[:backups])
        self.controller.settle(TransferKind.LOAD, outcomes[backups:])
        self.backups.take_over()
        self.loads.take_over()
        self.backups.start_due()
        for kind in TransferKind:
            self.controller.start(kind)
        self._ensemble.flush()

    def wait(self) -> None:
        """Return when all that runs has ended here."""
        for kind in TransferKind:
            self.controller.wait(kind)

    def load_back(self, node: Node, quota: int | None) -> LoadBack | None:
        """Bring what a reader up to the node lacks to the device, if it is worth it and there is room.

        `quota`: FULL tokens that may be loaded. Raises StaleHandleError when the node is in the tree no more.
        """
        found = self.loads.load_back(node, self._threshold, None if quota is None else quota // self._page)
        self._ensemble.flush()
        return None if found is None else LoadBack(self._pools.slots_of(found[0]), found[1])

    def claim(self, ticket: LoadTicket) -> Slots | None:
        """The tree's slots for what was loaded, or None when it failed. Raises ReceiptError until it has ended."""
        pages = self.loads.claim(ticket)
        self._ensemble.flush()
        return None if pages is None else self._pools.slots_of(pages)

    def abandon(self, ticket: LoadTicket) -> None:
        """Nobody waits for this load any more. Raises ReceiptError when it was claimed or abandoned before."""
        self.loads.abandon(ticket)
        self._ensemble.flush()

    def phase(self, ticket: LoadTicket) -> TransferPhase:
        """How far a load has come, as of the last step."""
        return self.loads.phase(ticket)

    def layers_done(self, ticket: LoadTicket) -> int:
        """How many layers of the stack may be read of all that the ticket waits for."""
        return min(self._layers_of(operation) for operation in ticket.operations)

    def wait_layer(self, ticket: LoadTicket, layer: int) -> None:
        """Return when a layer of the stack may be read, or the load has ended."""
        for operation in ticket.operations:
            self.controller.wait_layer(operation, layer)

    def lock(self, node: Node) -> LockReceipt:
        """Protect the node and its host data. Raises StaleHandleError when it is in the tree no more."""
        return self._locks.lock(node, HOST)

    def unlock(self, receipt: LockReceipt) -> None:
        """Undo what the lock of this receipt did. Raises ReceiptError unless it is outstanding."""
        self._locks.unlock(receipt, HOST)
        self._ensemble.flush()

    def evict(self, component: str, tokens: int) -> EvictResult:
        """Free at least so many of the component's host slots, or all that can be."""
        victims = self.backups.room.evict(component, -(-tokens // self._units[component]))
        dropped = {c.name: c.host.dropped_pages * self._units[c.name] for c in self._ensemble.components}
        self._ensemble.flush()
        return EvictResult(dropped, victims, refused=0)

    def sizes(self) -> dict[str, Sizes]:
        """The size counters of each component."""
        return {
            component.name: component.host.sizes(
                self._units[component.name], self.bank.allocators[component.name].free_pages
            )
            for component in self._ensemble.components
        }

    def _layers_of(self, operation: Operation) -> int:
        return self.layers if operation.phase.has_ended else self.controller.layers_done(operation)

    def close(self) -> None:
        """End every transfer and the executor, and let go of pinned memory."""
        self.controller.close()
        self.bank.close()

    def abort(self) -> None:
        """End every transfer, and free what was on its way."""
        for operation in self.controller.abort():
            undo = self.backups.undo if operation.kind is TransferKind.BACKUP else self.loads.undo
            undo(operation)
        self.backups.clear()
        self.loads.clear()
