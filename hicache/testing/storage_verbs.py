"""StorageVerbs: the methods of an adapter for the storage tier, and for storage requests that a test advances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from hicache.types import Handle, Key, Pool, StorageKind

__all__ = ["PendingStorage", "StorageKind", "StorageVerbs"]


@dataclass(frozen=True, slots=True, eq=False)
class PendingStorage:
    """An unfinished request to storage. `batches`: the number of its batches, each of at most 128 pages of one pool."""

    ticket: Handle
    kind: StorageKind
    batches: int
    batches_done: int


class StorageVerbs:
    """`step` sends requests to storage and applies the finished ones. Of these methods only `drain` blocks."""

    @classmethod
    def extra_config(cls, source: str) -> Mapping[str, Any]:
        """Read an extra configuration as the cache does: its own four keys, given or by default, and `options`.

        `options`: all other keys, which the backend receives.
        Raises an error that names the file, the key and the Python type of the wrong value.
        """
        raise NotImplementedError(f"{cls.__name__} declares a capability that needs extra_config(), which it lacks")

    def prefetch(self, key: Key) -> Handle | None:
        """Start to prefetch a prompt's pages, those past the cached prefix, from storage to the host.

        Returns the ticket, or None when the prefetch is refused. `key`: the same that `match` gets at the admission.
        """
        self._lacks("prefetch")

    def check_prefetch(self, ticket: Handle) -> int | None:
        """The number of tokens that a prefetch loaded, or None while the stop policy lets the request wait.

        Ends the ticket, and stops the prefetch early where the policy says so. Raises when the ticket has ended before.
        """
        self._lacks("check_prefetch")

    def abort_prefetch(self, ticket: Handle) -> None:
        """Cancel a prefetch: it loads nothing, and no caller waits for it. Raises when the ticket has ended before."""
        self._lacks("abort_prefetch")

    def attach_storage(self) -> bool:
        """Open the configured backend after a detach; False, with no effect, when a backend is attached."""
        self._lacks("attach_storage")

    def detach_storage(self) -> bool:
        """Close the backend; False, with no effect, while requests are in flight or when none is attached."""
        self._lacks("detach_storage")

    def clear_storage(self) -> bool:
        """Remove the cache's objects from storage; False, with no effect, while requests are in flight."""
        self._lacks("clear_storage")

    def storage_keys(self, pool: Pool, key: Key) -> Sequence[str]:
        """The object key of each whole page in one pool (MAMBA: of the state after the page), with its scope."""
        self._lacks("storage_keys")

    # Storage requests that the test advances.

    def pending_storage(self) -> Sequence[PendingStorage]:
        """The unfinished requests to storage, oldest first."""
        self._lacks("pending_storage")

    def advance_storage(self, ticket: Handle) -> None:
        """Let storage do one more batch of a request. A request that was told to stop ends after this batch."""
        self._lacks("advance_storage")

    def complete_storage(self, ticket: Handle) -> None:
        """Let storage do all remaining batches of a request."""
        self._lacks("complete_storage")

    def advance_clock(self, seconds: float) -> None:
        """Advance the clock of the cache."""
        self._lacks("advance_clock")

    def _lacks(self, verb: str) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__} declares a capability that needs {verb}(), which it lacks")
