"""LoadBackManager: what is copied back to the device for a request, who waits for it, and what happens when it ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hicache.components.base import TreeComponent
from hicache.components.component_tree import ComponentTree, LockReceipt
from hicache.errors import ReceiptError
from hicache.pools.device import DevicePools
from hicache.tiers.evict import DeviceEvictor
from hicache.tiers.transfer import HybridCacheController, Transfer
from hicache.transfer.job import Move
from hicache.tree.node import FULL, Node
from hicache.types import NO_SLOTS, Component, Slots, Tier, TransferKind, TransferPhase


@dataclass(frozen=True, slots=True, eq=False)
class LoadBackPlan:
    """What a reader up to a node lacks on the device, and where it comes from.

    `to_copy`: the nodes in the order of the path, each with its components in component order. `under_way`: the
    transfers of other load-backs that bring the rest. `anchor_end`: pages from the root to the device anchor, the
    deepest node at which all components are valid there.
    """

    to_copy: dict[Node, list[TreeComponent]]
    under_way: list[Transfer]
    anchor_end: int

    @property
    def pages(self) -> dict[str, int]:
        """The device pages that are needed for each component."""
        pages: dict[str, int] = {}
        for node, components in self.to_copy.items():
            for component in components:
                count = 1 if component.name == Component.MAMBA else node.pages
                pages[component.name] = pages.get(component.name, 0) + count
        return pages

    def is_worth_it(self, threshold: int, quota: int | None) -> bool:
        """Whether there is something to copy or to join, and neither too few nor too many FULL pages to copy."""
        full = self.pages.get(Component.FULL, 0)
        is_too_small = 0 < full < threshold
        is_too_large = quota is not None and full > quota
        return bool(self.to_copy or self.under_way) and not is_too_small and not is_too_large


def make_plan(tree: ComponentTree, node: Node) -> LoadBackPlan | None:
    """The plan for a reader up to the node, or None when something of it is on no tier.

    A node of which only the last pages are needed is split there.
    """
    _split_at_tails(tree, node)
    to_copy: dict[Node, list[TreeComponent]] = {step: [] for step in node.path()}
    under_way: dict[Transfer, None] = {}
    for component in tree.components:
        for step, _ in component.needed(node):
            device = step.device[component.index]
            if device.value is not None:
                continue
            if device.transfer is not None:
                under_way[_transfer_of(step, component.index)] = None
            elif step.host[component.index].value is not None:
                to_copy[step].append(component)
            else:
                return None
    lacking = {step: components for step, components in to_copy.items() if components}
    return LoadBackPlan(lacking, list(under_way), tree.device_end(node))


def _split_at_tails(tree: ComponentTree, node: Node) -> None:
    """Split the nodes of which a component needs only the last pages, and does not have them."""
    for component in tree.components:
        for step, pages in component.needed(node):
            if pages < step.pages and step.device[component.index].value is None:
                tree.radix.split(step, step.pages - pages)


def _transfer_of(node: Node, component: int) -> Transfer:
    """The transfer that brings a component of a node to the device."""
    transfer = node.device[component].transfer
    assert isinstance(transfer, Transfer), f"nothing is loaded back for component {component} of {node!r}"
    return transfer


@dataclass(slots=True, eq=False)
class LoadBackTicket:
    """A pending load-back.

    `node`: its last node. `anchor_end`: pages that the device had. `given`: the FULL pages after them, as they were
    returned. `transfers`: all that it waits for, also those of earlier load-backs. `pins`: while it loads, locks on its
    sources and on the device data of the path; when it is done, a device lock on the node.
    """

    node: Node
    anchor_end: int
    given: Slots
    transfers: list[Transfer]
    pins: list[LockReceipt]
    phase: TransferPhase
    is_cancelled: bool


class LoadBackManager:
    """Copies to the device. Nodes get their pages when the bytes are there; readers may use layers before that.

    `cache.step` calls `take_over`, then starts the copies that were queued. `cache.reset` calls `free_target` for each
    copy that it aborts.
    """

    def __init__(
        self,
        tree: ComponentTree,
        pools: DevicePools,
        evictor: DeviceEvictor,
        controller: HybridCacheController,
    ) -> None:
        self._tree = tree
        self._pools = pools
        self._evictor = evictor
        self._controller = controller
        self._waiting: list[LoadBackTicket] = []
        self._open: set[LoadBackTicket] = set()

    # What callers ask for.

    def load_back(self, node: Node, threshold: int, quota: int | None) -> tuple[Slots, LoadBackTicket] | None:
        """Queue what a reader up to the node lacks; the FULL pages past the device anchor, and the ticket.

        None, with nothing allocated, when there is nothing to copy or to join, too little (some FULL pages, but fewer
        than `threshold`), too much (more than `quota`), no room, or a page that is on no tier. Raises StaleHandleError
        for a node that is not in the tree.
        """
        self._tree.require(node)
        plan = make_plan(self._tree, node)
        if plan is None or not plan.is_worth_it(threshold, quota):
            return None
        pins, pages = self._protect(node, plan), None
        try:
            pages = self._pools.take(plan.pages) if self._evictor.ensure_available(plan.pages) else None
        finally:
            if pages is None:
                self._tree.locks.unpin(*pins)
        if pages is None:
            return None
        transfers = plan.under_way + self._queue(plan, pages)
        given = self._pages_past(node, plan.anchor_end)
        ticket = LoadBackTicket(node, plan.anchor_end, given, transfers, pins, TransferPhase.QUEUED, is_cancelled=False)
        for transfer in transfers:
            transfer.readers.add(ticket)
        self._waiting.append(ticket)
        self._open.add(ticket)
        return given, ticket

    def phase(self, ticket: LoadBackTicket) -> TransferPhase:
        """How far a load-back has come. Raises ReceiptError for a ticket that was claimed or abandoned."""
        self._require_open(ticket)
        return ticket.phase

    def layers_done(self, ticket: LoadBackTicket, layers: int) -> int:
        """How many layers of the stack have arrived of all that the ticket waits for; all once it has ended.

        Raises ReceiptError for a ticket that was claimed or abandoned.
        """
        self._require_open(ticket)
        if ticket.phase.has_ended:
            return layers
        return min(self._layers_of(transfer, layers) for transfer in ticket.transfers)

    def wait_layer(self, ticket: LoadBackTicket, layer: int) -> bool:
        """Return when a layer of the stack has arrived, or the load-back has ended. Whether it may be read.

        Nothing may be read of one that was not started, or has failed, nor before its end of one whose window has no
        partners yet. Raises ReceiptError for a ticket that was claimed or abandoned.
        """
        self._require_open(ticket)
        have_arrived = all(self._controller.wait_layer(transfer, layer) for transfer in ticket.transfers)
        return have_arrived and (Component.SWA not in self._tree.by_name or self.has_partners(ticket))

    def state_of(self, ticket: LoadBackTicket) -> Slots:
        """The slot of the state at the end of a load-back that has not failed, also while the state is on its way."""
        index = self._tree.by_name[Component.MAMBA].index
        state = ticket.node.device[index].value
        return _transfer_of(ticket.node, index).part(Component.MAMBA, ticket.node) if state is None else state

    def has_partners(self, ticket: LoadBackTicket) -> bool:
        """Whether the window of a load-back has its SWA partners. FULL pages of the tree get theirs when it ends.

        The pages are those that were given, also where an insert has given others to a node since.
        """
        window = self._tree.by_name[Component.SWA].needed(ticket.node)
        pages = self._pages_past(ticket.node, min(step.end - pages for step, pages in window))
        start = ticket.node.end - len(pages)
        before, after = max(ticket.anchor_end - start, 0), max(start - ticket.anchor_end, 0)
        return bool(self._pools.partners(np.concatenate((pages[:before], ticket.given[after:]))).all())

    def claim(self, ticket: LoadBackTicket) -> Slots | None:
        """The tree's FULL pages for what was loaded, or None when it failed. The ticket protects nothing any more.

        Raises ReceiptError while the load-back has not ended, and when the ticket was claimed or abandoned before.
        """
        self._require_open(ticket)
        if not ticket.phase.has_ended:
            raise ReceiptError(f"the load-back of {ticket.node!r} is {ticket.phase.value} and cannot be claimed yet")
        pages = self._pages_past(ticket.node, ticket.anchor_end) if ticket.phase is TransferPhase.DONE else None
        self._open.remove(ticket)
        self._release(ticket)
        return pages

    def cancel(self, ticket: LoadBackTicket) -> None:
        """Cancel the ticket. Running copies finish, and their pages stay in the tree. Raises ReceiptError."""
        self._require_open(ticket)
        self._open.remove(ticket)
        ticket.is_cancelled = True
        if ticket.phase.has_ended:
            self._release(ticket)
        else:
            self._stop_reading(ticket)

    # The life of a load-back: queue, take over, finish.

    def take_over(self) -> None:
        """Give nodes what has arrived, and update the tickets."""
        ended = list(self._controller.take_ended(TransferKind.LOAD))
        for transfer in ended:
            self._finish(transfer)
        for ticket in self._waiting:
            self._update(ticket)
        self._waiting = [ticket for ticket in self._waiting if not ticket.phase.has_ended]
        for ticket in self._waiting:
            # What came is on the device from now on, and the load-back that began its transfer may end first.
            if any(transfer in ended for transfer in ticket.transfers):
                ticket.pins += self._pin_on_device(ticket.node)

    def orphaned_pages(self) -> Slots:
        """FULL pages that arrived outside the tree, and that are not free while they may have a reader."""
        return np.concatenate([NO_SLOTS, *(transfer.orphaned for transfer in self._open_transfers())])

    def sharing_pages(self) -> Slots:
        """Those of `orphaned_pages` that share their SWA partners with pages of the tree."""
        return np.concatenate([NO_SLOTS, *(transfer.sharing for transfer in self._open_transfers())])

    def free_target(self, transfer: Transfer) -> None:
        """Free the device pages of a load-back that was aborted."""
        for name in transfer.moves:
            if name != Component.SWA or Component.FULL not in transfer.moves:
                self._free(name, transfer.target(name))

    def reset(self) -> None:
        """Refuse every ticket from now on, and free the pages that no node took."""
        for transfer in self._open_transfers():
            self._free_orphans(transfer, transfer.orphaned)
        self._waiting.clear()
        self._open.clear()

    def _open_transfers(self) -> list[Transfer]:
        """The transfers of all tickets that were neither claimed nor abandoned."""
        return list(dict.fromkeys(transfer for ticket in self._open for transfer in ticket.transfers))

    def _protect(self, node: Node, plan: LoadBackPlan) -> list[LockReceipt]:
        """Pin on the device what is there of the path, and on the host what is to be copied."""
        sources = {node: None} | dict.fromkeys(plan.to_copy)
        return self._pin_on_device(node) + [self._tree.locks.pin(step, Tier.HOST) for step in sources]

    def _pin_on_device(self, node: Node) -> list[LockReceipt]:
        """Pin the device data that a reader up to the node needs."""
        pinned = {node.last_on_device(): None}
        for component in self._tree.components[1:]:
            needed = component.needed(node)
            pinned |= {step: None for step, _ in needed if step.device[component.index].value is not None}
        return [self._tree.locks.pin(step, Tier.DEVICE) for step in pinned if not step.is_root]

    def _queue(self, plan: LoadBackPlan, pages: dict[str, Slots]) -> list[Transfer]:
        used = dict.fromkeys(pages, 0)
        transfers = []
        for node, components in plan.to_copy.items():
            moves = {}
            for component in components:
                host = node.host[component.index].value
                assert host is not None, f"{component.name}: {node!r} is planned without a source"
                first = used[component.name]
                used[component.name] += len(host)
                moves[component.name] = Move(pages[component.name][first : first + len(host)].copy(), host)
            transfers.append(self._start(node, moves))
        return transfers

    def _start(self, node: Node, moves: dict[str, Move]) -> Transfer:
        transfer = Transfer.of(TransferKind.LOAD, node, moves, [])
        for name, move in moves.items():
            component = self._tree.by_name[name]
            node.device[component.index].transfer = transfer
            component.device.reserve(move.device)
        if Component.FULL in moves and Component.SWA in moves:
            self._pools.pair(moves[Component.FULL].device, moves[Component.SWA].device)
        self._controller.enqueue(transfer)
        return transfer

    def _layers_of(self, transfer: Transfer, layers: int) -> int:
        """How many layers of a transfer may be read: none of one that has failed, as its pages are free again."""
        if transfer.phase.has_ended:
            return layers if transfer.phase is TransferPhase.DONE else 0
        return self._controller.layers_done(transfer)

    def _pages_past(self, node: Node, anchor_end: int) -> Slots:
        """The FULL pages from the device anchor to the node's end, also those that have not arrived."""
        parts = []
        for step in node.path():
            if step.end > anchor_end:
                pages = step.device[FULL].value
                parts.append(_transfer_of(step, FULL).part(Component.FULL, step) if pages is None else pages)
        return np.concatenate(parts) if parts else NO_SLOTS

    def _finish(self, transfer: Transfer) -> None:
        is_done = transfer.phase is TransferPhase.DONE
        unused = {name: self._install(transfer, name, is_done=is_done) for name in transfer.moves}
        for name, pages in unused.items():
            self._free_unused(transfer, name, pages)
        if is_done:
            loaded = {name: move.device for name, move in transfer.moves.items()}
            self._tree.counters.bytes_loaded += self._pools.bytes_of(loaded)

    def _install(self, transfer: Transfer, name: str, *, is_done: bool) -> Slots:
        """Give the nodes of a transfer what arrived for them; returns the pages that none of them took."""
        index, unused = self._tree.by_name[name].index, transfer.target(name)
        for node in transfer.nodes:
            if node.device[index].transfer is not transfer:
                continue
            node.device[index].transfer = None
            part = transfer.part(name, node)
            if is_done and self._install_part(transfer, name, node, part):
                # A node that was not split takes all, which needs no search.
                unused = NO_SLOTS if len(part) == len(unused) else np.setdiff1d(unused, part, assume_unique=True)
        return unused

    def _install_part(self, transfer: Transfer, name: str, node: Node, part: Slots) -> bool:
        """Whether the node takes what arrived: an insert may have given it other pages meanwhile."""
        component, full = self._tree.by_name[name], node.device[FULL].value
        if node.device[component.index].value is not None:
            return False
        if name == Component.SWA and Component.FULL in transfer.moves and full is not None:
            own = transfer.part(Component.FULL, node)
            if not np.array_equal(full, own) and not self._pools.partners(full).any():
                # An insert brought FULL pages without a window: they get the window of the load-back. A reader of
                # its layers still finds the window by the pages that it was given.
                self._pools.share_partners(own, full)
                transfer.sharing = np.concatenate((transfer.sharing, own))
        return component.install_loaded(node, part)

    def _free_unused(self, transfer: Transfer, name: str, pages: Slots) -> None:
        """Free what no node took and nothing reads. SWA pages are freed with their FULL pages."""
        if name == Component.FULL and transfer.phase is TransferPhase.DONE and transfer.readers:
            transfer.orphaned = pages
        elif name == Component.FULL:
            self._free_orphans(transfer, pages)
        elif name != Component.SWA or Component.FULL not in transfer.moves:
            self._free(name, pages)

    def _free_orphans(self, transfer: Transfer, pages: Slots) -> None:
        """Free FULL pages that no node took, and their partners where they are not shared."""
        if len(transfer.sharing):
            self._pools.unpair(transfer.sharing)
        self._free(Component.FULL, pages)
        transfer.orphaned = transfer.sharing = NO_SLOTS

    def _free(self, name: str, pages: Slots) -> None:
        if not len(pages):
            return
        self._tree.by_name[name].device.unreserve(pages)
        if name == Component.FULL:
            if Component.SWA in self._tree.by_name:
                partners = self._pools.partners(pages)
                self._tree.by_name[Component.SWA].device.unreserve(partners[partners != 0])
            self._pools.free(pages)
        else:
            self._pools.allocators[name].free(pages)

    def _update(self, ticket: LoadBackTicket) -> None:
        phases = {transfer.phase for transfer in ticket.transfers}
        if not all(phase.has_ended for phase in phases):
            ticket.phase = TransferPhase.QUEUED if phases == {TransferPhase.QUEUED} else TransferPhase.RUNNING
            return
        is_whole = ticket.node.alive and self._tree.device_end(ticket.node) == ticket.node.end
        is_done = is_whole and phases <= {TransferPhase.DONE}
        ticket.phase = TransferPhase.DONE if is_done else TransferPhase.FAILED
        pins, ticket.pins = ticket.pins, [self._tree.locks.pin(ticket.node, Tier.DEVICE)] if is_done else []
        self._tree.locks.unpin(*pins)
        if ticket.is_cancelled:
            self._release(ticket)

    def _release(self, ticket: LoadBackTicket) -> None:
        self._stop_reading(ticket)
        self._tree.locks.unpin(*ticket.pins)

    def _stop_reading(self, ticket: LoadBackTicket) -> None:
        for transfer in ticket.transfers:
            transfer.readers.discard(ticket)
            if not transfer.readers:
                self._free_orphans(transfer, transfer.orphaned)

    def _require_open(self, ticket: LoadBackTicket) -> None:
        if not isinstance(ticket, LoadBackTicket):
            raise ReceiptError(f"{ticket!r} is not a ticket of a load-back")
        if ticket not in self._open:
            raise ReceiptError(
                f"the load-back of {ticket.node!r} was claimed or abandoned, ended by a reset, or is of another cache"
            )
