"""Loads: what comes back from the host for a request, who waits for it, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hicache.components.ensemble import Ensemble
from hicache.components.holding import FULL
from hicache.components.locks import DEVICE, HOST, LockReceipt, Locks
from hicache.errors import ReceiptError, StaleHandleError
from hicache.metrics import Counters
from hicache.pools.group import DevicePools
from hicache.tiers.backups import BytesOf
from hicache.tiers.device_room import DeviceRoom
from hicache.tiers.load_plan import LoadPlan, operation_at
from hicache.tiers.operation import Operation
from hicache.transfer.controller import HybridCacheController
from hicache.transfer.job import Move
from hicache.tree.node import Node
from hicache.types import NO_SLOTS, Component, Slots, TransferKind, TransferPhase


@dataclass(slots=True, eq=False)
class LoadTicket:
    """A load that somebody waits for.

    `node`: up to where it is read. `anchor_end`: pages that the device had. `operations`: all that it waits for, also
    those that were asked for before. `pins`: what protects the path, and once it is done the node.
    """

    node: Node
    anchor_end: int
    operations: list[Operation]
    pins: list[LockReceipt]
    phase: TransferPhase
    is_abandoned: bool


class Loads:
    """Copies to the device. Nodes hold their pages when the bytes are there; who asked may read layers before."""

    def __init__(
        self,
        ensemble: Ensemble,
        locks: Locks,
        pools: DevicePools,
        room: DeviceRoom,
        controller: HybridCacheController[Operation],
        counters: Counters,
        bytes_of: BytesOf,
    ) -> None:
        self._ensemble = ensemble
        self._locks = locks
        self._pools = pools
        self._room = room
        self._controller = controller
        self._counters = counters
        self._bytes_of = bytes_of
        self._waiting: list[LoadTicket] = []
        self._open: set[LoadTicket] = set()

    def load_back(self, node: Node, threshold: int, quota: int | None) -> tuple[Slots, LoadTicket] | None:
        """Queue what a reader up to the node lacks; the FULL pages past the device anchor, and the ticket.

        None, with nothing taken, when there is nothing to load, too little (fewer FULL pages than `threshold`) or too
        much (more than `quota`), or no room. Raises StaleHandleError for a dead node.
        """
        if not node.alive:
            raise StaleHandleError(f"{node!r} is in the tree no more")
        plan = LoadPlan.of(self._ensemble, node)
        if plan is None or not plan.is_wanted(threshold, quota):
            return None
        pins, taken = self._protect(node, plan), None
        try:
            taken = self._take(plan)
        finally:
            if taken is None:
                self._unpin(pins)
        if taken is None:
            return None
        operations = plan.under_way + self._queue(plan, taken)
        ticket = LoadTicket(node, plan.anchor_end, operations, pins, TransferPhase.QUEUED, is_abandoned=False)
        for operation in operations:
            operation.readers.add(ticket)
        self._waiting.append(ticket)
        self._open.add(ticket)
        return self._pages_past(node, plan.anchor_end), ticket

    def phase(self, ticket: LoadTicket) -> TransferPhase:
        """How far a load has come. Raises ReceiptError for a ticket that was claimed or abandoned."""
        self._require_open(ticket)
        return ticket.phase

    def has_partners(self, ticket: LoadTicket) -> bool:
        """Whether the window of a load under way has its SWA partners. FULL pages of the tree get theirs at its end."""
        window = self._ensemble.by_name[Component.SWA].needed(ticket.node)
        first = min(step.end - pages for step, pages in window)
        return bool(self._pools.partners(self._pages_past(ticket.node, first)).all())

    def claim(self, ticket: LoadTicket) -> Slots | None:
        """The tree's FULL pages for what was loaded, or None when it failed; the ticket protects nothing any more.

        Raises ReceiptError while the load has not ended, and when the ticket was claimed or abandoned before.
        """
        self._require_open(ticket)
        if not ticket.phase.has_ended:
            raise ReceiptError(f"the load of {ticket.node!r} is {ticket.phase.value} and cannot be claimed yet")
        pages = self._pages_past(ticket.node, ticket.anchor_end) if ticket.phase is TransferPhase.DONE else None
        self._open.remove(ticket)
        self._release(ticket)
        return pages

    def abandon(self, ticket: LoadTicket) -> None:
        """Nobody waits any more; what is under way goes on for the tree. Raises ReceiptError as `claim` does."""
        self._require_open(ticket)
        self._open.remove(ticket)
        ticket.is_abandoned = True
        if ticket.phase.has_ended:
            self._release(ticket)
        else:
            self._stop_reading(ticket)

    def take_over(self) -> None:
        """Give nodes what has arrived, and tell those who wait."""
        for operation in self._controller.take_ended(TransferKind.LOAD):
            self._finish(operation)
        for ticket in self._waiting:
            self._look(ticket)
        self._waiting = [ticket for ticket in self._waiting if not ticket.phase.has_ended]

    def kept(self) -> Slots:
        """FULL pages that arrived, and that are neither the tree's nor free while somebody may read them."""
        kept = [operation.kept for operation in self._read()]
        return np.concatenate(kept) if kept else NO_SLOTS

    def undo(self, operation: Operation) -> None:
        """Free the device pages of a load that nobody wants any more."""
        for name in operation.moves:
            if name != Component.SWA or Component.FULL not in operation.moves:
                self._free(name, operation.target(name))

    def clear(self) -> None:
        """Refuse every ticket from now on, and free what was kept for them."""
        self._free(Component.FULL, self.kept())
        self._waiting.clear()
        self._open.clear()

    def _protect(self, node: Node, plan: LoadPlan) -> list[LockReceipt]:
        """Hold on the device what is there of the path, and on the host what is to be copied."""
        resident = node
        while resident.parent is not None and resident.values[FULL] is None:
            resident = resident.parent
        on_device = {resident: None} | dict.fromkeys(plan.window)
        pins = [self._locks.pin(step, DEVICE) for step in on_device if step.parent is not None]
        return pins + [self._locks.pin(step, HOST) for step in {node: None} | dict.fromkeys(plan.wanted)]

    def _take(self, plan: LoadPlan) -> dict[str, Slots] | None:
        return self._pools.take(plan.pages) if self._room.make(plan.pages) else None

    def _queue(self, plan: LoadPlan, taken: dict[str, Slots]) -> list[Operation]:
        used = dict.fromkeys(taken, 0)
        operations = []
        for node, components in plan.wanted.items():
            moves = {}
            for component in components:
                host = node.values[component.host.place]
                assert host is not None, f"{component.name}: {node!r} is planned without a source"
                first = used[component.name]
                used[component.name] += len(host)
                moves[component.name] = Move(taken[component.name][first : first + len(host)].copy(), host)
            operations.append(self._start(node, moves))
        return operations

    def _start(self, node: Node, moves: dict[str, Move]) -> Operation:
        operation = Operation.of(TransferKind.LOAD, node, moves, [])
        for name, move in moves.items():
            component = self._ensemble.by_name[name]
            node.arriving[component.index] = operation
            component.device.reserve(move.device)
        if Component.FULL in moves and Component.SWA in moves:
            self._pools.pair(moves[Component.FULL].device, moves[Component.SWA].device)
        self._controller.enqueue(operation)
        return operation

    def _pages_past(self, node: Node, anchor_end: int) -> Slots:
        parts = []
        for step in node.path():
            if step.end > anchor_end:
                pages = step.values[FULL]
                parts.append(operation_at(step, FULL).part(Component.FULL, step) if pages is None else pages)
        return np.concatenate(parts) if parts else NO_SLOTS

    def _finish(self, operation: Operation) -> None:
        has_arrived = operation.phase is TransferPhase.DONE
        left = {name: self._hand_out(operation, name, has_arrived=has_arrived) for name in operation.moves}
        for name, pages in left.items():
            self._leave(operation, name, pages)
        if has_arrived:
            self._counters.bytes_loaded += self._bytes_of(operation.moves)

    def _hand_out(self, operation: Operation, name: str, *, has_arrived: bool) -> Slots:
        """Give the nodes of a load what came for them; returns the pages that none of them took."""
        index, left = self._ensemble.by_name[name].index, operation.target(name)
        for fragment in operation.fragments:
            if fragment.arriving[index] is not operation:
                continue
            fragment.arriving[index] = None
            part = operation.part(name, fragment)
            if has_arrived and self._take_over_part(operation, name, fragment, part):
                # A node that was not cut takes all, which is seen without a search.
                left = NO_SLOTS if len(part) == len(left) else np.setdiff1d(left, part, assume_unique=True)
        return left

    def _take_over_part(self, operation: Operation, name: str, node: Node, part: Slots) -> bool:
        """Whether the node takes what came: an insert may have given it other pages meanwhile."""
        component, full = self._ensemble.by_name[name], node.values[FULL]
        if node.values[component.index] is not None:
            return False
        if name == Component.SWA and Component.FULL in operation.moves and full is not None:
            own = operation.part(Component.FULL, node)
            if not np.array_equal(full, own) and not self._pools.partners(full).any():
                # The insert came with FULL pages whose window had passed: the node has the load's from now on.
                self._pools.move_window(own, full)
        return component.arrive(node, part)

    def _leave(self, operation: Operation, name: str, pages: Slots) -> None:
        """What of a load no node took is free, unless it is being read. SWA pages go with their FULL pages."""
        if name == Component.FULL and operation.phase is TransferPhase.DONE and operation.readers:
            operation.kept = pages
        elif name != Component.SWA or Component.FULL not in operation.moves:
            self._free(name, pages)

    def _free(self, name: str, pages: Slots) -> None:
        if not len(pages):
            return
        self._ensemble.by_name[name].device.unreserve(pages)
        if name == Component.FULL:
            if Component.SWA in self._ensemble.by_name:
                partners = self._pools.partners(pages)
                self._ensemble.by_name[Component.SWA].device.unreserve(partners[partners != 0])
            self._pools.free(pages)
        else:
            self._pools.allocators[name].free(pages)

    def _look(self, ticket: LoadTicket) -> None:
        phases = {operation.phase for operation in ticket.operations}
        if not all(phase.has_ended for phase in phases):
            ticket.phase = TransferPhase.QUEUED if phases == {TransferPhase.QUEUED} else TransferPhase.RUNNING
            return
        is_whole = ticket.node.alive and self._ensemble.device_end(ticket.node) == ticket.node.end
        is_done = is_whole and phases <= {TransferPhase.DONE}
        ticket.phase = TransferPhase.DONE if is_done else TransferPhase.FAILED
        pins, ticket.pins = ticket.pins, [self._locks.pin(ticket.node, DEVICE)] if is_done else []
        self._unpin(pins)
        if ticket.is_abandoned:
            self._release(ticket)

    def _release(self, ticket: LoadTicket) -> None:
        self._stop_reading(ticket)
        self._unpin(ticket.pins)

    def _stop_reading(self, ticket: LoadTicket) -> None:
        for operation in ticket.operations:
            operation.readers.discard(ticket)
            if not operation.readers:
                self._free(Component.FULL, operation.kept)
                operation.kept = NO_SLOTS

    def _read(self) -> list[Operation]:
        return list({operation: None for ticket in self._open for operation in ticket.operations})

    def _require_open(self, ticket: LoadTicket) -> None:
        if ticket not in self._open:
            raise ReceiptError(f"the load of {ticket.node!r} was claimed or abandoned before, or is of another life")

    def _unpin(self, pins: list[LockReceipt]) -> None:
        for pin in pins:
            self._locks.unpin(pin)
