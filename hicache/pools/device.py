"""DevicePools: the pools of one cache on the device, allocated and freed together. Sidecars follow KV's slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hicache.arguments import require_slots
from hicache.config import CacheConfig
from hicache.errors import SlotError
from hicache.optional_torch import torch
from hicache.pools.buffers import PoolSpec, TierPools
from hicache.types import Component, Slots


class DevicePools(TierPools):
    """Allocators by component, buffers by pool, and the partner of each FULL page among the SWA pages.

    `tensors`: by pool, the tensors that the caller owns, as PoolBuffers takes them.
    """

    def __init__(
        self,
        config: CacheConfig,
        specs: Mapping[str, PoolSpec],
        tensors: Mapping[str, Sequence[torch.Tensor]] | None = None,
    ) -> None:
        super().__init__(config, config.capacity_tokens, specs, config.device, tensors)
        full_pages = self.capacity_pages(Component.FULL) + 1
        self._partners = np.zeros(full_pages, dtype=np.int64)
        self._has_window = Component.SWA in self.allocators
        self._slots = np.arange(full_pages * self.page_size, dtype=np.int64).reshape(full_pages, self.page_size)

    def reset(self) -> None:
        super().reset()
        self._partners[:] = 0

    def slots_of(self, pages: Slots) -> Slots:
        """The slots of FULL pages in order: int64 [pages * page_size]."""
        return self._slots.take(pages, axis=0).reshape(-1) if self.page_size > 1 else pages.copy()

    def component_slots(self, component: str, pages: Slots) -> Slots:
        """The slots of a component's own pages in order: int64 [pages * page_size], of MAMBA one for each state."""
        if component == Component.MAMBA or self.page_size == 1:
            return pages.copy()
        return (pages[:, None] * self.page_size + np.arange(self.page_size)).reshape(-1)

    def pages_of(self, slots: Slots) -> Slots:
        """The pages of whole, aligned runs of slots. Raises SlotError for anything else."""
        require_slots(slots)
        if self.page_size == 1:
            return slots.copy()
        pages = slots[:: self.page_size] // self.page_size
        if len(slots) % self.page_size or np.count_nonzero(
            self._slots.take(pages, 0, mode="clip").reshape(-1) != slots
        ):
            raise SlotError(f"slots {slots.tolist()} are not whole pages of {self.page_size}")
        return pages

    def allocate(self, pages: int) -> Slots | None:
        """FULL pages, each with an SWA partner where there is an SWA pool; None, with nothing taken, when short."""
        wanted = [Component.FULL.value, Component.SWA.value] if self._has_window else [Component.FULL.value]
        taken = self.take(dict.fromkeys(wanted, pages))
        if taken is None:
            return None
        if self._has_window:
            self._partners[taken[Component.FULL]] = taken[Component.SWA]
        return taken[Component.FULL]

    def pair(self, pages: Slots, window: Slots) -> None:
        """Make SWA pages the partners of FULL pages. Raises SlotError when one of those has a partner already."""
        if self._partners[pages].any():
            raise SlotError(f"FULL pages {pages.tolist()} have partners {self._partners[pages].tolist()} already")
        self._partners[pages] = window

    def free(self, pages: Slots) -> None:
        """Free FULL pages and their partners. Raises SlotError, changing nothing, when one is not allocated."""
        self.allocators[Component.FULL].free(pages)
        self.free_partners(pages)

    def free_window(self, pages: Slots) -> None:
        """Free the SWA partners of FULL pages. Raises SlotError, changing nothing, when one is not allocated."""
        self.allocators[Component.FULL].check_held(pages)
        self.free_partners(pages)

    def free_partners(self, pages: Slots) -> None:
        """Free the SWA partners of FULL pages, no page named twice; one without a partner is skipped."""
        if not self._has_window:
            return
        partners = self.partners(pages)
        count = np.count_nonzero(partners)
        if count:
            self.allocators[Component.SWA].free(partners if count == len(pages) else partners[partners != 0])
            self._partners[pages] = 0

    def free_states(self, states: Slots) -> None:
        """Free MAMBA states. Raises SlotError, changing nothing, when one is not allocated."""
        self.allocators[Component.MAMBA].free(states)

    def partners(self, pages: Slots) -> Slots:
        """The SWA page of each FULL page, 0 where it has none."""
        return self._partners[pages]

    def window_start(self, pages: Slots) -> int:
        """The first of some FULL pages from which on all have an SWA partner; 0 where there is no SWA pool."""
        if not self._has_window:
            return 0
        partners = self.partners(pages)
        if np.count_nonzero(partners) == len(pages):
            return 0
        return int(np.flatnonzero(partners == 0)[-1]) + 1

    def move_partners(self, source: Slots, target: Slots) -> Slots:
        """Give the partners of some FULL pages to others that have none; returns them. No byte is copied."""
        if self._partners[target].any() or not self._partners[source].all():
            raise SlotError(
                f"partners cannot move from {source.tolist()} ({self._partners[source].tolist()}) "
                f"to {target.tolist()} ({self._partners[target].tolist()})"
            )
        moved = self._partners[source]
        self._partners[target] = moved
        self._partners[source] = 0
        return moved

    def share_partners(self, source: Slots, target: Slots) -> None:
        """Map FULL pages that have no partners to those of others, which keep them until they are unpaired."""
        self._partners[source] = self.move_partners(source, target)

    def unpair(self, pages: Slots) -> None:
        """Map FULL pages to no partners. The SWA pages stay allocated, as other FULL pages are mapped to them."""
        self._partners[pages] = 0

    def copy_state(self, source: Slots, target: Slots) -> None:
        """Copy one MAMBA state to another slot, in all layers of all pools that have states."""
        for pool in self.pools_of(Component.MAMBA):
            self.buffers[pool].copy_page(int(source[0]), int(target[0]))

    def copy_state_layer(self, source: Slots, target: Slots, layer: Iterable[tuple[str, int]]) -> None:
        """Copy a MAMBA state in one layer of the stack. `layer`: the pools that it reads, with its numbers."""
        for pool, number in layer:
            if self.buffers[pool].spec.owner == Component.MAMBA:
                self.buffers[pool].copy_page(int(source[0]), int(target[0]), slice(number, number + 1))
