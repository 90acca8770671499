"""StorageWriter: which nodes are written to storage, and when; parents before their children."""

from __future__ import annotations

from dataclasses import dataclass

from hicache.components.base import TreeComponent
from hicache.components.component_tree import ComponentTree, LockReceipt
from hicache.tiers.quarantine import HeldPages, Quarantine
from hicache.tiers.storage_jobs import StorageJobs
from hicache.transfer.job import Answers, StorageJob
from hicache.transfer.queue import TransferQueue
from hicache.tree.hashes import node_hashes
from hicache.tree.node import FULL, Node
from hicache.types import Component, EventKind, Slots, Tier

MAX_STORE_FAILURES = 3
"""How often storage may fail to take a node before it is not offered again."""


@dataclass(frozen=True, slots=True, eq=False)
class StoreOperation:
    """The host pages of one node on their way to storage.

    `node`: after splits, the last part. `start`: the first page of the run. `pages`: by component.
    """

    node: Node
    start: int
    pages: dict[str, Slots]
    pin: LockReceipt
    job: StorageJob

    def nodes(self) -> list[Node]:
        """The nodes that have its pages now, parents first."""
        return [step for step in self.node.path() if step.end > self.start]


class StorageWriter:
    """Writes host pages to storage. A node is written when storage has all pages before it."""

    def __init__(self, tree: ComponentTree, jobs: StorageJobs, queue: TransferQueue[StorageJob]) -> None:
        self._tree = tree
        self._jobs = jobs
        self._queue = queue
        self._under_way: list[StoreOperation] = []
        self._used: dict[Node, None] = {}

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way."""
        return not self._under_way

    def note_use(self, node: Node) -> None:
        """A request used the path to a node. The next `start_due` offers again what storage lacks of it."""
        self._used[node] = None

    def start_due(self) -> None:
        """Offer what was used since the last time."""
        used, self._used = self._used, {}
        for node in used:
            for step in node.path() if node.alive else ():
                self.offer(step)

    def offer(self, node: Node) -> None:
        """Queue what storage lacks of a node, if it has all pages before. Otherwise the node follows its parent."""
        lacking = self._lacking(node)
        if not lacking or node.storing is not None or node.store_failures >= MAX_STORE_FAILURES:
            return
        parent = node.parent
        assert parent is not None, "the root has nothing to store"
        if not (parent.is_root or parent.stored[FULL]):
            return
        pages = {c.name: own.copy() for c in lacking if (own := node.host[c.index].value) is not None}
        digests = node_hashes(node, self._tree.radix.bytes_per_page, self._tree.counters)
        job = self._queue.add(self._jobs.write([digest.hex() for digest in digests], pages, parent))
        operation = StoreOperation(node, node.start, pages, self._tree.locks.pin(node, Tier.HOST), job)
        node.storing = operation
        self._under_way.append(operation)

    def take_over(self) -> None:
        """Note what storage has taken, and offer the nodes that waited for it."""
        under_way, self._under_way = self._under_way, []
        for operation in under_way:
            answers = self._queue.take(operation.job)
            if answers is None:
                self._under_way.append(operation)
            else:
                self._finish(operation, is_stored=is_complete(operation.job, answers))

    def reset(self) -> None:
        """End everything, and drop the results."""
        under_way, self._under_way = self._under_way, []
        for operation in under_way:
            self._queue.cancel(operation.job)
            self._end(operation)
        self._used.clear()

    def disown(self, quarantine: Quarantine) -> None:
        """Storage does not answer: drop what waits, clear all marks, and hand over the pages that it may still read."""
        under_way, self._under_way = self._under_way, []
        for operation in under_way:
            if self._queue.stop(operation.job):
                self._end(operation)
                continue
            for node in operation.nodes():
                node.storing = None
            quarantine.hold(HeldPages(self._queue, operation.job, {}, operation.pages, operation.pin))
        self.clear_marks()

    def note_cleared(self) -> None:
        """Storage removed all objects of the cache."""
        for node in self._tree.radix.nodes():
            for component in self._tree.components:
                if node.stored[component.index]:
                    component.report(Tier.STORAGE, EventKind.REMOVED, node)
        self.clear_marks()

    def clear_marks(self) -> None:
        """Clear all marks: the backend changed, or is empty. Nothing waits to be offered."""
        for node in self._tree.radix.nodes():
            node.stored = [False] * len(node.stored)
            node.store_failures = 0
        self._used.clear()

    def _lacking(self, node: Node) -> list[TreeComponent]:
        """The components of a node that are on the host and not in storage."""
        return [
            component
            for component, data, is_stored in zip(self._tree.components, node.host, node.stored, strict=True)
            if data.value is not None and not is_stored
        ]

    def _finish(self, operation: StoreOperation, *, is_stored: bool) -> None:
        nodes = self._end(operation)
        if not is_stored:
            self._tree.counters.stores_failed += 1
            for node in nodes:
                node.store_failures += 1
            return
        self._tree.counters.bytes_stored += self._jobs.bytes_of(operation.pages, operation.node.end)
        for node in nodes:
            for name in operation.pages:
                if name != Component.MAMBA or node is operation.node:
                    self._mark(node, self._tree.by_name[name])
        for node in nodes:
            for child in node.children.values():
                self.offer(child)

    def _mark(self, node: Node, component: TreeComponent) -> None:
        node.stored[component.index] = True
        component.report(Tier.STORAGE, EventKind.STORED, node)

    def _end(self, operation: StoreOperation) -> list[Node]:
        nodes = operation.nodes()
        for node in nodes:
            node.storing = None
        self._tree.locks.unpin(operation.pin)
        return nodes


def is_complete(job: StorageJob, answers: Answers) -> bool:
    """Whether every part of a job was done to its end."""
    return len(answers) == len(job.parts) and job.is_whole(len(answers) - 1, answers[-1])
