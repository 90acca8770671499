"""Fetch: one prefetch, what it asks for, and what has come of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hicache.components.locks import LockReceipt
from hicache.keys import RadixKey
from hicache.transfer.storage_job import StorageJob
from hicache.tree.node import Node
from hicache.types import Pool, Slots


@dataclass(slots=True, eq=False)
class Fetch:
    """A prefix that a request waits for, and its host pages until they are a node's or free.

    `key`: to the last page that is wanted. `anchor`: what the tree had, up to page `start`. `hashes`: of the pages past
    it. `pin`: protects the anchor; None for the root. `deadline_s`: when it is waited for no longer. `job`: what is
    asked of storage now. `queries`: how often it was asked how far it can give. `length`: pages of the prefix that is
    tried. `pages`: by component, its host pages. `whole`: by pool without gaps, how many of its first pages have come.
    `came_tokens`: what it brought, once it has ended. `is_awaited`: the ticket is open, unless the cache was reset
    since: then `life` is no longer the cache's.
    """

    key: RadixKey
    anchor: Node
    start: int
    hashes: Sequence[str]
    pin: LockReceipt | None
    deadline_s: float
    job: StorageJob | None
    queries: int
    length: int
    pages: dict[str, Slots]
    whole: dict[Pool, int]
    came_tokens: int | None
    is_awaited: bool
    life: object

    @property
    def has_ended(self) -> bool:
        """Whether what it brings is in the tree."""
        return self.came_tokens is not None
