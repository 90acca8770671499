"""The exceptions. A programmer error raises at once; running out of something is an answer, not an exception."""

from __future__ import annotations


class HiCacheError(Exception):
    """Any error of this package."""


class ConfigurationError(HiCacheError, ValueError):
    """A configuration that cannot be served, or cannot be read."""


class MissingTorchError(ConfigurationError, ImportError):
    """torch is needed and not installed. The message ends with the command that installs it."""

    INSTALL = "pip install 'hicache[torch]'"

    @classmethod
    def of(cls, user: str) -> MissingTorchError:
        """The error of `user`, which is what needs torch."""
        return cls(f"{user} needs torch, which is not installed: {cls.INSTALL}")


class ArgumentError(HiCacheError, ValueError):
    """An argument of a verb that has a wrong type or is out of its range. Nothing was changed."""


class SlotError(HiCacheError, ValueError):
    """A slot that is foreign, free already, another's, or the padding slot. Nothing was changed."""


class PoolMismatchError(HiCacheError, ValueError):
    """A copy between pools that differ in dtype, layers or layout."""


class PinningError(HiCacheError, RuntimeError):
    """Host memory that CUDA would not register, or not give back. The message holds CUDA's code and text."""


class ReceiptError(HiCacheError, ValueError):
    """A receipt that was released before, that a reset ended, or that another cache gave out."""


class StaleHandleError(HiCacheError, LookupError):
    """A handle of a node that is not in the tree any more, or that another cache gave out."""


class OverlapError(HiCacheError, RuntimeError):
    """A verb that a thread called while another one was in a verb of the same cache. Nothing was changed."""


class InterruptedVerbError(HiCacheError, RuntimeError):
    """A verb of a cache in which another one was interrupted, as by KeyboardInterrupt. Reset the cache, or close it."""


class ClosedError(HiCacheError, RuntimeError):
    """A verb of a cache that was closed, or of its requests. Nothing can be done with it any more."""


class RequestError(HiCacheError, ValueError):
    """A request that waits for a load-back, that has ended, or that another manager admitted."""


class KeyFormError(HiCacheError, ValueError):
    """Tokens, or slots for them, whose shape or type is not what the call takes."""


class InvariantError(HiCacheError, AssertionError):
    """An invariant of the cache does not hold. The message names the invariant, the node and the values."""


class RankError(HiCacheError, RuntimeError):
    """A rank is dead or silent, or makes another call than the others. The message names the rank and the call.

    `ranks`: their numbers in the group `group`.
    """

    def __init__(self, message: str, group: str, ranks: tuple[int, ...]) -> None:
        super().__init__(message)
        self.group = group
        self.ranks = ranks


class TraceError(HiCacheError, ValueError):
    """A line of a trace that cannot be read. The message names the line."""
