"""HostVerbs: the part of an adapter that drives the host tier, and transfers that move when a test says so."""

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
    """A transfer under way, as a test sees it. `parts`: the operations that it merges; `layers`: of the whole stack."""

    ticket: Handle
    kind: TransferKind
    parts: int
    layers: int
    layers_done: int


class HostVerbs:
    """Transfers that the cache decided on are started by `step`, which also takes over what has ended."""

    def evict_host(self, component: str, tokens: int) -> EvictResult:
        """Free at least so many of the component's host slots, or all that can be evicted."""
        self._lacks("evict_host")

    def lock_host(self, handle: Handle) -> Handle:
        """Protect the node, and its host data of every component; returns the receipt."""
        self._lacks("lock_host")

    def unlock_host(self, receipt: Handle) -> None:
        """Undo what `lock_host` did. Raises when it was released before, or is not this cache's."""
        self._lacks("unlock_host")

    def load_back(self, handle: Handle, *, quota: int | None) -> LoadBack | None:
        """Bring what is on the host alone, of all that a reader up to the node needs, to the device.

        None, with nothing taken, below the threshold, above the `quota` of FULL tokens, out of memory, or when there is
        nothing to load. The path is protected until the ticket is claimed or abandoned. Raises on a dead handle.
        """
        self._lacks("load_back")

    def load_phase(self, ticket: Handle) -> TransferPhase:
        """How far a load has come, as of the last `step`."""
        self._lacks("load_phase")

    def claim(self, ticket: Handle) -> Slots | None:
        """Take over a load that has ended: the tree's slots for what `load_back` gave, or None when it failed.

        What the ticket protected is not protected any more: lock first. Raises when the load has not ended, or the
        ticket was claimed or abandoned before.
        """
        self._lacks("claim")

    def abandon(self, ticket: Handle) -> None:
        """Nobody waits for this load any more. Raises when the ticket was claimed or abandoned before."""
        self._lacks("abandon")

    def host_sizes(self) -> Mapping[str, Sizes]:
        """The size counters of each component on the host."""
        self._lacks("host_sizes")

    def read_host(self, pool: Pool, slots: Slots, layer: int) -> PageBytes:
        """The bytes at the host pool's own slots, as `read` gives those of the device."""
        self._lacks("read_host")

    def is_pinned(self, pool: Pool) -> bool:
        """Whether CUDA has all of the pool's host memory registered. Asked only where the device is a GPU."""
        self._lacks("is_pinned")

    # Transfers that move when the test says so.

    def pending(self) -> Sequence[PendingTransfer]:
        """The transfers that were started and have not ended, the oldest first."""
        self._lacks("pending")

    def advance(self, ticket: Handle) -> None:
        """Move one more layer of a pending transfer; after the last one it has ended."""
        self._lacks("advance")

    def complete(self, ticket: Handle) -> None:
        """Move all that is left of a pending transfer."""
        self._lacks("complete")

    def fail(self, ticket: Handle, parts_done: int) -> None:
        """End a pending transfer after its first parts, fewer than it has; the rest does not arrive."""
        self._lacks("fail")

    def fail_waits(self, count: int) -> None:
        """Let the next so many transfers fail that the cache itself waits for, in the middle of an eviction."""
        self._lacks("fail_waits")

    def layer_ready(self, ticket: Handle, pool: Pool, layer: int) -> bool:
        """Whether the slots that a load brings in may be read in one layer of one pool. `ticket`: of `load_back`."""
        self._lacks("layer_ready")

    def _lacks(self, verb: str) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__} declares a capability that needs {verb}(), which it lacks")
