"""StorageVerbs: the part of an adapter that drives the storage tier, and storage that answers when a test says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from hicache.types import Handle, Key, Pool, StorageKind

__all__ = ["PendingStorage", "StorageKind", "StorageVerbs"]


@dataclass(frozen=True, slots=True, eq=False)
class PendingStorage:
    """Something that storage was asked and has not answered. `batches`: of at most 128 pages, each of one pool."""

    ticket: Handle
    kind: StorageKind
    batches: int
    batches_done: int


class StorageVerbs:
    """Storage is asked by `step`, which also takes over the answers. Nothing of it blocks but `drain`."""

    @classmethod
    def extra_config(cls, source: str) -> Mapping[str, Any]:
        """Read an extra configuration as the cache does: its own four keys, as told or by default, and `options`.

        `options`: what the backend is told, which is everything else.
        Raises an error that names the file, the key and the type of its value, as Python calls it.
        """
        raise NotImplementedError(f"{cls.__name__} declares a capability that needs extra_config(), which it lacks")

    def prefetch(self, key: Key) -> Handle | None:
        """Bring what storage has of a prompt, past what the tree has, to the host; the ticket, or None when refused.

        `key`: as it will be matched when the request is admitted.
        """
        self._lacks("prefetch")

    def check_prefetch(self, ticket: Handle) -> int | None:
        """The tokens that a prefetch brought, or None while the request has to wait, as the stop policy says.

        Ends the ticket, and cuts the prefetch short where the policy says so. Raises for a ticket that has ended.
        """
        self._lacks("check_prefetch")

    def abort_prefetch(self, ticket: Handle) -> None:
        """Nobody waits for this prefetch any more: it brings nothing. Raises for a ticket that has ended."""
        self._lacks("abort_prefetch")

    def attach_storage(self) -> bool:
        """Open the configured backend, after a detach; False, with nothing changed, when it is attached."""
        self._lacks("attach_storage")

    def detach_storage(self) -> bool:
        """Close the backend; False, with nothing changed, while anything is under way or when none is attached."""
        self._lacks("detach_storage")

    def clear_storage(self) -> bool:
        """Remove the cache's objects; False, with nothing changed, while anything is under way."""
        self._lacks("clear_storage")

    def storage_keys(self, pool: Pool, key: Key) -> Sequence[str]:
        """The object of each whole page of a key in one pool (for MAMBA: of the state after it), scope included."""
        self._lacks("storage_keys")

    # Storage that answers when the test says so.

    def pending_storage(self) -> Sequence[PendingStorage]:
        """What storage was asked and has not answered, the oldest first."""
        self._lacks("pending_storage")

    def advance_storage(self, ticket: Handle) -> None:
        """Let storage do one more batch. What was told to stop ends after it."""
        self._lacks("advance_storage")

    def complete_storage(self, ticket: Handle) -> None:
        """Let storage do all that is left of what it was asked."""
        self._lacks("complete_storage")

    def advance_clock(self, seconds: float) -> None:
        """Let time pass for the cache."""
        self._lacks("advance_clock")

    def _lacks(self, verb: str) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__} declares a capability that needs {verb}(), which it lacks")
