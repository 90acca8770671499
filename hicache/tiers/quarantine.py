"""Quarantine: host pages that a disowned backend may use, until its calls have ended on every rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from hicache.components.component_tree import ComponentTree, LockReceipt
from hicache.transfer.job import StorageJob
from hicache.transfer.queue import TransferQueue
from hicache.types import NO_SLOTS, Slots


@dataclass(slots=True, eq=False)
class HeldPages:
    """What one job still uses. `pages`: of no node. `source`: of nodes, which `pin` keeps on the host. By component."""

    queue: TransferQueue[StorageJob]
    job: StorageJob
    pages: Mapping[str, Slots]
    source: Mapping[str, Slots]
    pin: LockReceipt | None


class Quarantine:
    """The pages of the jobs that ran when their backend was disowned. `free`: frees pages of a component."""

    def __init__(self, tree: ComponentTree, free: Callable[[str, Slots], None]) -> None:
        self._tree = tree
        self._free = free
        self._held: list[HeldPages] = []

    @property
    def is_empty(self) -> bool:
        """Whether all calls of the disowned backend have ended."""
        return not self._held

    def pages(self) -> dict[str, Slots]:
        """By component, the pages that belong to no node and are not free."""
        return {
            name: np.concatenate([NO_SLOTS, *(held.pages[name] for held in self._held if name in held.pages)])
            for name in self._tree.by_name
        }

    def hold(self, held: HeldPages) -> None:
        """Keep the pages of a job that runs."""
        self._held.append(held)

    def take_over(self) -> None:
        """Free the pages of the jobs that have ended on every rank."""
        for held in list(self._held):
            if held.queue.take(held.job) is not None:
                self._held.remove(held)
                for name, pages in held.pages.items():
                    self._free(name, pages)
                if held.pin is not None:
                    self._tree.locks.unpin(held.pin)

    def keep_dropped(self) -> None:
        """The tree was cleared: keep those of its pages that are still read, before `free_dropped` frees them."""
        for held in self._held:
            if held.pin is not None:
                kept = {name: self._tree.by_name[name].host.keep_dropped(pages) for name, pages in held.source.items()}
                held.pages, held.source, held.pin = kept, {}, None
