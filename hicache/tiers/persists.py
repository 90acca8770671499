"""Persists: which nodes are given to storage, and when; parents before their children."""

from __future__ import annotations

from dataclasses import dataclass

from hicache.components.base import TreeComponent
from hicache.components.ensemble import Ensemble
from hicache.components.holding import FULL
from hicache.components.locks import HOST, LockReceipt, Locks
from hicache.metrics import Counters
from hicache.tiers.page_requests import PageRequests
from hicache.tiers.storage_queue import StorageQueue
from hicache.transfer.storage_job import StorageJob, is_whole
from hicache.tree.hashes import node_hashes
from hicache.tree.node import Node
from hicache.types import Component, EventKind, Slots, StorageKind, Tier

MOST_REFUSALS = 3
"""How often storage may refuse a node before it is not offered again."""


@dataclass(frozen=True, slots=True, eq=False)
class Persist:
    """What the host has of one stretch of pages on its way to storage.

    `node`: whose end it has; cut since, its upper parts begin at page `start`. `pages`: by component.
    """

    node: Node
    start: int
    pages: dict[str, Slots]
    pin: LockReceipt
    job: StorageJob

    def parts(self) -> list[Node]:
        """The nodes that have its pages by now, parents first."""
        return [step for step in self.node.path() if step.end > self.start]


class Persists:
    """What goes from the host to storage. What is given to it was given all that comes before."""

    def __init__(
        self, ensemble: Ensemble, locks: Locks, requests: PageRequests, queue: StorageQueue, counters: Counters
    ) -> None:
        self._ensemble = ensemble
        self._locks = locks
        self._requests = requests
        self._queue = queue
        self._counters = counters
        self._under_way: list[Persist] = []
        self._used: dict[Node, None] = {}

    @property
    def are_idle(self) -> bool:
        """Whether nothing is on its way."""
        return not self._under_way

    def used(self, node: Node) -> None:
        """A request used the path to a node: what storage lacks of it is offered again in the next `start_due`."""
        self._used[node] = None

    def start_due(self) -> None:
        """Offer what was used since the last time."""
        used, self._used = self._used, {}
        for node in used:
            for step in node.path() if node.alive else ():
                self.offer(step)

    def offer(self, node: Node) -> None:
        """Queue what storage lacks of a node, if it has all that is before it; otherwise its turn comes after that."""
        lacking = self._lacking(node)
        if not lacking or node.persisting is not None or node.refusals >= MOST_REFUSALS:
            return
        assert node.parent is not None, "the root has nothing to keep"
        if node.parent.parent is not None and not node.parent.persisted & 1 << FULL:
            return
        pages = {c.name: own.copy() for c in lacking if (own := node.values[c.host.place]) is not None}
        digests = node_hashes(node, self._ensemble.tree.bytes_per_page, self._counters)
        batches = self._requests.to_persist([digest.hex() for digest in digests], pages)
        job = self._queue.ask(StorageKind.PERSIST, batches, self._requests.prefix_keys(node.parent))
        persist = Persist(node, node.start, pages, self._locks.pin(node, HOST), job)
        node.persisting = persist
        self._under_way.append(persist)

    def take_over(self) -> None:
        """Note what storage has taken, and offer what waited for it."""
        under_way, self._under_way = self._under_way, []
        for persist in under_way:
            progress = self._queue.take_over(persist.job)
            if progress is None:
                self._under_way.append(persist)
                continue
            answers, batches = progress.answers, persist.job.batches
            is_kept = len(answers) == len(batches) and is_whole(batches[-1], answers[-1])
            self._finish(persist, is_kept=is_kept)

    def clear(self) -> None:
        """End everything, and ask for no result."""
        under_way, self._under_way = self._under_way, []
        for persist in under_way:
            self._queue.end(persist.job)
            self._let_go(persist)
        self._used.clear()

    def removed(self) -> None:
        """Storage was told to remove all that it was given."""
        for node in self._ensemble.tree.nodes():
            for component in self._ensemble.components:
                if node.persisted & 1 << component.index:
                    component.report(Tier.STORAGE, EventKind.REMOVED, node)
        self.forget()

    def forget(self) -> None:
        """Storage is another one, or has nothing any more."""
        for node in self._ensemble.tree.nodes():
            node.persisted = node.refusals = 0

    def _lacking(self, node: Node) -> list[TreeComponent]:
        """The components that the host has of a node, and storage was not given."""
        return [
            component
            for component in self._ensemble.components
            if node.values[component.host.place] is not None and not node.persisted & 1 << component.index
        ]

    def _finish(self, persist: Persist, *, is_kept: bool) -> None:
        parts = self._let_go(persist)
        if not is_kept:
            self._counters.persists_failed += 1
            for part in parts:
                part.refusals += 1
            return
        self._counters.bytes_persisted += self._requests.bytes_of(persist.pages)
        for part in parts:
            for name in persist.pages:
                if name != Component.MAMBA or part is persist.node:
                    self._mark(part, self._ensemble.by_name[name])
        for part in parts:
            for child in part.children.values():
                self.offer(child)

    def _mark(self, node: Node, component: TreeComponent) -> None:
        node.persisted |= 1 << component.index
        component.report(Tier.STORAGE, EventKind.STORED, node)

    def _let_go(self, persist: Persist) -> list[Node]:
        parts = persist.parts()
        for part in parts:
            part.persisting = None
        self._locks.unpin(persist.pin)
        return parts
