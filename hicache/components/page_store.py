"""PageStore and PageBank: what components need of the pools of each tier. They never see a tensor."""

from __future__ import annotations

from typing import Protocol

from hicache.types import Slots


class PageStore(Protocol):
    """Pages of a cache's device pools, int64 [pages]. A state is a page of one slot."""

    def capacity_pages(self, component: str) -> int:
        """The pages that a component's pool has: 1 to this number."""

    def free(self, pages: Slots) -> None:
        """Take back FULL pages and their SWA partners."""

    def free_partners(self, pages: Slots) -> None:
        """Take back the SWA partners of FULL pages."""

    def free_states(self, states: Slots) -> None:
        """Take back MAMBA states."""

    def partners(self, pages: Slots) -> Slots:
        """The SWA page of each FULL page, 0 where it has none."""

    def pair(self, pages: Slots, window: Slots) -> None:
        """Make SWA pages the partners of FULL pages that have none."""

    def move_window(self, source: Slots, target: Slots) -> Slots:
        """Give the partners of some FULL pages to others that have none; returns them."""


class PageBank(Protocol):
    """Pages of a cache's host pools, int64 [pages], each component's its own. A state is a page of one slot."""

    def capacity_pages(self, component: str) -> int:
        """The pages that a component's pool has: 1 to this number."""

    def free(self, component: str, pages: Slots) -> None:
        """Take back pages of a component."""
