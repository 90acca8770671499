"""Transfer: the pages of one node on their way between device and host; HybridCacheController: the queues of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count

from hicache.components.component_tree import LockReceipt
from hicache.transfer.executors import Executor
from hicache.transfer.job import CopyJob, Move
from hicache.transfer.queue import TransferQueue
from hicache.tree.node import Node
from hicache.types import NO_SLOTS, Component, Slots, TransferKind, TransferPhase


@dataclass(slots=True, eq=False)
class Transfer:
    """One node's pages under way.

    `start`: pages from the root to where the node began. `moves`: by component, all pages of the node at that time.
    `nodes`: the node and, before it, the parts that were split off since. `pins`: released when it ends. `readers`: who
    reads its pages already. `orphaned`: FULL pages that arrived and that no node took, while readers still read them.
    `sharing`: those of them that share their SWA partners with pages of a node.
    """

    kind: TransferKind
    start: int
    moves: Mapping[str, Move]
    nodes: list[Node]
    pins: list[LockReceipt]
    phase: TransferPhase
    readers: set[object]
    orphaned: Slots
    sharing: Slots

    @classmethod
    def of(cls, kind: TransferKind, node: Node, moves: Mapping[str, Move], pins: list[LockReceipt]) -> Transfer:
        """A transfer of one node that has not started."""
        return cls(kind, node.start, moves, [node], pins, TransferPhase.QUEUED, set(), NO_SLOTS, NO_SLOTS)

    def split(self, upper: Node, lower: Node) -> None:
        """One of its nodes was split."""
        self.nodes.insert(self.nodes.index(lower), upper)

    def target(self, component: str) -> Slots:
        """The pages that a component's data is copied to."""
        move = self.moves[component]
        return move.host if self.kind is TransferKind.BACKUP else move.device

    def part(self, component: str, node: Node) -> Slots:
        """The target pages of one of its nodes, in an array of its own. A state belongs to the last node."""
        pages = self.target(component)
        if component == Component.MAMBA:
            return pages.copy()
        return pages[node.start - self.start : node.end - self.start].copy()


class HybridCacheController:
    """Backups and load-backs. Transfers wait until `start` merges those of one direction into one job.

    Transfers of one direction end in the order in which they were queued: what was finished early waits for those
    before. `queues`: by direction, each with an executor of its own. `numbers`: of all jobs of the cache, so that those
    of storage are in one order with the copies.
    """

    def __init__(self, open_executor: Callable[[TransferKind], Executor[CopyJob]]) -> None:
        self.queues = {kind: TransferQueue(open_executor(kind)) for kind in TransferKind}
        self.numbers = count(1)
        self._queued: dict[TransferKind, list[Transfer]] = {kind: [] for kind in TransferKind}
        self._running: dict[TransferKind, deque[tuple[CopyJob, list[Transfer]]]] = {
            kind: deque() for kind in TransferKind
        }

    def enqueue(self, transfer: Transfer) -> None:
        """Let a transfer wait for the next start."""
        self._queued[transfer.kind].append(transfer)

    def start(self, kind: TransferKind) -> None:
        """Merge what waits in one direction into a job, and run it."""
        transfers = self._queued[kind]
        if not transfers:
            return
        self._queued[kind] = []
        job = CopyJob(next(self.numbers), kind, tuple([transfer.moves for transfer in transfers]))
        for transfer in transfers:
            transfer.phase = TransferPhase.RUNNING
        self._running[kind].append((job, transfers))
        self.queues[kind].add(job)
        self.queues[kind].start()

    def take_ended(self, kind: TransferKind) -> Iterator[Transfer]:
        """The transfers of one direction that have ended, in order, as done or failed. Each is given out once."""
        running = self._running[kind]
        while running and (answers := self.queues[kind].take(running[0][0])) is not None:
            _, transfers = running.popleft()
            done = sum(map(bool, answers))
            for place, transfer in enumerate(transfers):
                transfer.phase = TransferPhase.DONE if place < done else TransferPhase.FAILED
                yield transfer

    def wait(self, kind: TransferKind) -> None:
        """Return when all that runs in one direction has ended on this rank."""
        self.queues[kind].wait()

    def reset(self) -> list[Transfer]:
        """End everything: what waits never starts, and the result of what runs is dropped. Returns all of them."""
        aborted: list[Transfer] = []
        for kind in TransferKind:
            for job, transfers in self._running[kind]:
                self.queues[kind].cancel(job)
                aborted += transfers
            self._running[kind].clear()
            aborted += self._queued[kind]
            self._queued[kind] = []
        for transfer in aborted:
            transfer.phase = TransferPhase.ABORTED
        return aborted

    def under_way(self) -> list[Transfer]:
        """The transfers that run or wait."""
        running = [transfer for jobs in self._running.values() for _, transfers in jobs for transfer in transfers]
        return running + [transfer for queue in self._queued.values() for transfer in queue]

    def lengths(self, kind: TransferKind) -> tuple[int, int]:
        """How many transfers of one direction wait for the next start, and how many jobs run. Any thread may ask."""
        return len(self._queued[kind]), len(self._running[kind])

    def layers_done(self, transfer: Transfer) -> int:
        """How many layers of the stack have arrived, of a transfer under way."""
        job = self._job_of(transfer)
        return 0 if job is None else self.queues[transfer.kind].progress(job).steps

    def wait_layer(self, transfer: Transfer, layer: int) -> bool:
        """Return when a layer of a running transfer may be read, or it has ended. Whether the layer may be read."""
        job = self._job_of(transfer)
        if job is None:
            return transfer.phase is TransferPhase.DONE
        return self.queues[transfer.kind].wait_layer(job, layer)

    def close(self) -> bool:
        """Close the executors. Whether they have stopped."""
        have_ended = [queue.close() for queue in self.queues.values()]
        return all(have_ended)

    def _job_of(self, transfer: Transfer) -> CopyJob | None:
        for job, transfers in self._running[transfer.kind]:
            if any(transfer is other for other in transfers):
                return job
        return None
