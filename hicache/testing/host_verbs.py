"""HostVerbs: the methods of an adapter for the host tier, and for transfers that a test advances step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from hicache.types import EvictResult, Handle, LoadBack, Pool, Sizes, Slots, TransferKind, TransferPhase

PageBytes = npt.NDArray[np.uint8]
"""Raw bytes of some slots in one layer: uint8, shape [slots, bytes per slot and layer]."""


@dataclass(frozen=True, slots=True, eq=False)
class PendingTransfer:
    """A transfer in flight, as a test sees it.

    `parts`: the number of operations merged into it. `layers`: of the whole stack.
    """

    ticket: Handle
    kind: TransferKind
    parts: int
    layers: int
    layers_done: int


class HostVerbs:
    """Backups and loads that the cache has decided on are started by `step`, which also applies the finished ones."""

    def evict_host(self, component: str, tokens: int) -> EvictResult:
        """Free at least `tokens` of the component's host slots, or all that can be evicted."""
        self._lacks("evict_host")

    def lock_host(self, handle: Handle) -> Handle:
        """Lock the node and its host data of every component; returns the receipt."""
        self._lacks("lock_host")

    def unlock_host(self, receipt: Handle) -> None:
        """Release the lock of `lock_host`. Raises when it was released before, or is from another cache."""
        self._lacks("unlock_host")

    def load_back(self, handle: Handle, *, quota: int | None) -> LoadBack | None:
        """Load to the device the data that a reader of the prefix up to the node needs and that is only on the host.

        Returns None, with no effect, below the threshold, above the `quota` of FULL tokens, without enough memory, or
        when there is nothing to load. The path is locked until the ticket is claimed or abandoned. Raises for a removed
        node.
        """
        self._lacks("load_back")

    def load_phase(self, ticket: Handle) -> TransferPhase:
        """The phase of a load, as of the last `step`."""
        self._lacks("load_phase")

    def claim(self, ticket: Handle) -> Slots | None:
        """Finish a load that has ended: the tree's slots for what `load_back` loaded, or None when the load failed.

        The lock of the ticket is released: lock the node before. Raises when the load has not ended, or when the ticket
        was claimed or abandoned before.
        """
        self._lacks("claim")

    def abandon(self, ticket: Handle) -> None:
        """Give up a load: no caller waits for it. Raises when the ticket was claimed or abandoned before."""
        self._lacks("abandon")

    def host_sizes(self) -> Mapping[str, Sizes]:
        """The size counters of each component on the host."""
        self._lacks("host_sizes")

    def read_host(self, pool: Pool, slots: Slots, layer: int) -> PageBytes:
        """The bytes at slots of the host pool, as `read` returns those of the device pool."""
        self._lacks("read_host")

    def is_pinned(self, pool: Pool) -> bool:
        """Whether CUDA has registered all host memory of the pool. Called only when the device is a GPU."""
        self._lacks("is_pinned")

    # Transfers that the test advances.

    def pending(self) -> Sequence[PendingTransfer]:
        """The transfers that were started and have not ended, oldest first."""
        self._lacks("pending")

    def advance(self, ticket: Handle) -> None:
        """Copy one more layer of a pending transfer. After the last layer the transfer has ended."""
        self._lacks("advance")

    def complete(self, ticket: Handle) -> None:
        """Copy all remaining layers of a pending transfer."""
        self._lacks("complete")

    def fail(self, ticket: Handle, parts_done: int) -> None:
        """End a pending transfer after its first `parts_done` parts, fewer than it has; the other parts fail."""
        self._lacks("fail")

    def fail_waits(self, count: int) -> None:
        """Make the next `count` transfers fail that the cache itself waits for during an eviction."""
        self._lacks("fail_waits")

    def layer_ready(self, ticket: Handle, pool: Pool, layer: int) -> bool:
        """Whether the target slots of a load can be read in one layer of one pool. `ticket`: from `load_back`."""
        self._lacks("layer_ready")

    def _lacks(self, verb: str) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__} declares a capability that needs {verb}(), which it lacks")
