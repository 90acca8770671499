"""SlotMap and SlotCopier: which slots of SGLang the reference's pages stand for, and the bytes in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hicache.errors import ConfigurationError
from hicache.optional_torch import torch
from hicache.transfer.job import CopyJob, Progress
from hicache.types import NO_SLOTS, Component, Slots, TransferKind

UNBOUND = -1
"""A page that stands for no slots."""


class SlotMap:
    """The slots that each page of one component stands for: any slots of SGLang's allocator, in any order.

    `pages`: how many pages the reference has; page 0 stands for nothing. `slots`: one more than the highest slot.
    """

    def __init__(self, pages: int, page_size: int, slots: int) -> None:
        self.page_size = page_size
        self._slots = np.full((pages + 1, page_size), UNBOUND, dtype=np.int64)
        self._page = np.zeros(slots, dtype=np.int64)

    def bind(self, pages: Slots, slots: Slots) -> None:
        """Let pages stand for slots, int64 [pages * page_size]."""
        runs = slots.reshape(-1, self.page_size)
        self._slots[pages] = runs
        self._page[runs[:, 0]] = pages

    def unbind(self, pages: Slots) -> Slots:
        """The slots of the pages that stand for some; from now on they stand for none."""
        runs = self._slots[pages]
        bound = runs[:, 0] != UNBOUND
        self._page[runs[bound, 0]] = 0
        self._slots[pages] = UNBOUND
        return np.array(runs[bound].reshape(-1))

    def all_slots(self) -> Slots:
        """The slots that some page stands for, in any order."""
        return np.array(self._slots[self._slots != UNBOUND])

    def slots(self, pages: Slots) -> Slots:
        """The slots of pages, int64 [pages * page_size]; UNBOUND for a page that stands for none."""
        return np.array(self._slots[pages].reshape(-1))

    def pages(self, slots: Slots) -> Slots:
        """The page of each run of slots, int64 [slots / page_size]; 0 for a run that no page stands for."""
        return self._page[slots[:: self.page_size]]


class SlotCopier:
    """A Worker that copies pages between SGLang's tensors and host memory of its own, on the current stream.

    `tensors`: by component, SGLang's tensors with the slots as their first axis. `host_pages`: by component. `take`:
    allocates slots of a component for so many pages, or gives None; a load whose pages get none has failed.
    """

    def __init__(
        self,
        maps: Mapping[str, SlotMap],
        tensors: Mapping[str, Sequence[torch.Tensor]],
        host_pages: Mapping[str, int],
        take: Callable[[str, int], Slots | None],
    ) -> None:
        self._maps = maps
        self._tensors = tensors
        self._take = take
        self._host = {name: [self._host_twin(name, own, host_pages[name]) for own in tensors[name]] for name in maps}

    def step(self, job: CopyJob, done: Progress) -> Progress:
        """Copy the parts of a job up to the first that has no slots."""
        parts = 0
        for part in job.parts:
            if not all(self._have_slots(name, move.device) for name, move in part.items()):
                break
            for name, move in part.items():
                self._copy(job.kind, name, move.device, move.host)
            parts += 1
        return Progress(int(parts == len(job.parts)), (1,) * parts, has_ended=True)

    rest = step

    def _have_slots(self, name: str, pages: Slots) -> bool:
        """Whether all of the pages stand for slots; those that did not get some."""
        own = self._maps[name]
        bare = pages[own.slots(pages)[:: own.page_size] == UNBOUND]
        taken = self._take(name, len(bare)) if len(bare) else NO_SLOTS
        if taken is not None:
            own.bind(bare, taken)
        return taken is not None

    def _copy(self, kind: TransferKind, name: str, pages: Slots, host_pages: Slots) -> None:
        own, size = self._maps[name], self._maps[name].page_size
        slots = torch.from_numpy(own.slots(pages))
        there = torch.from_numpy((host_pages[:, None] * size + np.arange(size)).reshape(-1))
        for device, host in zip(self._tensors[name], self._host[name], strict=True):
            here = slots.to(device.device)
            if kind is TransferKind.BACKUP:
                host[there] = device[here].to(host.device)
            else:
                device[here] = host[there].to(device.device)

    def _host_twin(self, name: str, own: torch.Tensor, pages: int) -> torch.Tensor:
        slots = (pages + 1) * self._maps[name].page_size
        return torch.zeros((slots, *own.shape[1:]), dtype=own.dtype, pin_memory=own.is_cuda)


def slot_tensors(kv: Any, states: Any, components: Sequence[str]) -> dict[str, list[torch.Tensor]]:
    """SGLang's tensors by component, with the slots as their first axis, as views.

    `kv`: its KV pool. `states`: its pool of MAMBA states, or None. Raises ConfigurationError for a pool whose bytes the
    cache would not copy.
    """
    found: dict[str, list[torch.Tensor]] = {}
    if Component.FULL in components:
        found[Component.FULL.value] = _rows_of(getattr(kv, "full_kv_pool", kv))
    if Component.SWA in components:
        found[Component.SWA.value] = _rows_of(kv.swa_kv_pool)
    if Component.MAMBA in components:
        cache = states.mamba_cache
        found[Component.MAMBA.value] = [part.transpose(0, 1) for part in (*cache.conv, cache.temporal)]
    return found


def _rows_of(pool: Any) -> list[torch.Tensor]:
    if getattr(pool, "index_k_with_scale_buffer", None) is not None:
        raise ConfigurationError(f"{type(pool).__name__}: an indexer's pool is not supported")
    for names in (("k_buffer", "v_buffer"), ("kv_buffer",)):
        if all(getattr(pool, name, None) is not None for name in names):
            return [row for name in names for row in getattr(pool, name)]
    raise ConfigurationError(f"{type(pool).__name__} has neither k_buffer and v_buffer nor kv_buffer")
