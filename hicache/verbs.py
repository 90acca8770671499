"""Turn: one thread is in a verb at a time, none after the end, and an interrupted verb is not passed over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from inspect import signature
from threading import Lock, get_ident
from typing import Any, Protocol, TypeVar, cast, overload

from hicache.clock import Clock
from hicache.errors import ClosedError, HiCacheError, InterruptedVerbError, OverlapError
from hicache.metrics import Liveness

Method = TypeVar("Method", bound=Callable[..., Any])


class Turn:
    """Whose turn it is. Threads may take turns; a verb that overlaps with another thread's is refused.

    A verb that raises a HiCacheError has changed nothing, or exactly what the error documents. Any other exception,
    such as KeyboardInterrupt, may interrupt a change: then every verb is refused until `taken` ends.
    `thread`: who is in a verb. `verb`: the one that is under way, or was the last. `is_closed`: no
    verb begins any more. `free`: called at the end of every verb that has left something `unfreed`, including nested
    verbs and verbs that raise a HiCacheError, but not after an interruption.
    """

    __slots__ = ("_lock", "acquire", "free", "is_closed", "release", "thread", "unfreed", "verb")

    def __init__(self) -> None:
        self.unfreed: Sequence[object] = ()
        self.free: Callable[[], object] = _nothing
        self._lock = Lock()
        self.acquire, self.release = self._lock.acquire, self._lock.release
        self.thread: int | None = None
        self.verb = ""
        self.is_closed = False

    @property
    def is_interrupted(self) -> bool:
        """Whether a verb was interrupted: its turn has not ended, and no thread is in it."""
        return self._lock.locked() and self.thread is None and not self.is_closed

    def close(self) -> None:
        """The verb that is under way is the last: its turn does not end."""
        self.is_closed = True

    def refusal(self, verb: str) -> HiCacheError:
        """Why a verb cannot begin."""
        other = self.thread
        if self.is_closed:
            return ClosedError(f"{verb}: the cache is closed; open another one")
        if other is None:
            return InterruptedVerbError(
                f"{verb}: {self.verb or 'a verb'} was interrupted before its end: reset the cache, which voids all "
                "its slots, receipts, tickets and requests, or close it"
            )
        return OverlapError(
            f"{verb}: thread {other} is in {self.verb}, and thread {get_ident()} calls at the same time"
        )

    def fail(self, error: BaseException, harmless: type[Exception] = HiCacheError) -> None:
        """A verb of this thread ended with an error, or did not begin. A harmless one has interrupted nothing."""
        if not isinstance(error, harmless):
            # It may have come when the turn had ended, and before the caller had the result.
            self.acquire(blocking=False)
        if self.thread == get_ident():
            has_ended = isinstance(error, harmless) and not self.is_closed
            try:
                if has_ended:
                    self.free()
            finally:
                self.thread = None
            if has_ended:
                self.release()

    @contextmanager
    def taken(self, verb: str) -> Iterator[bool]:
        """The turn of a verb that needs no intact cache. Gives whether a verb was interrupted before.

        When it raises then, the cache stays interrupted.
        """
        was_interrupted = False
        try:
            was_interrupted = not self.acquire(blocking=False)
            if was_interrupted and (self.thread is not None or self.is_closed):
                raise self.refusal(verb)  # noqa: TRY301 - as every error of a verb, it must leave the turn as it was
            self.thread, self.verb = get_ident(), verb
            yield was_interrupted
            if not self.is_closed:
                self.free()
            self.thread = None
            if not self.is_closed:
                self.release()
        except BaseException as error:
            if was_interrupted and self.thread == get_ident():
                self.thread = None
            else:
                self.fail(error)
            raise


def _nothing() -> None:
    """A verb has ended."""


class HasTurn(Protocol):
    """An object whose methods are verbs."""

    @property
    def turn(self) -> Turn:
        """Whose turn it is."""


class HasLiveness(Protocol):
    """An object whose verbs may wait."""

    clock: Clock
    liveness: Liveness


def timed(call: Method) -> Method:
    """Measure a method that may wait: for a copy, for storage or for other ranks."""

    @wraps(call)
    def measured(self: HasLiveness, *args: Any, **kwargs: Any) -> Any:
        begin_s = self.clock.now()
        try:
            return call(self, *args, **kwargs)
        finally:
            self.liveness.record(call.__name__, self.clock.now() - begin_s)

    return cast("Method", measured)


@overload
def verb(call: Method, *, waits: bool = ..., harmless: type[Exception] = ...) -> Method: ...


@overload
def verb(*, waits: bool = ..., harmless: type[Exception] = ...) -> Callable[[Method], Method]: ...


def verb(
    call: Method | None = None, *, waits: bool = False, harmless: type[Exception] = HiCacheError
) -> Method | Callable[[Method], Method]:
    """Let a method of what has a turn run while no other thread is in one. Verbs may call verbs.

    It raises OverlapError while another thread is in a verb, and InterruptedVerbError after a verb was interrupted.
    `waits`: it may wait, and is measured. `harmless`: errors before which the method has undone what it did. A
    TypeError for arguments that do not fit the signature interrupts nothing.
    """
    if call is None:
        return partial(verb, waits=waits, harmless=harmless)
    return _in_turn(timed(call) if waits else call, harmless)


def _in_turn(call: Method, harmless: type[Exception]) -> Method:
    name = call.__name__

    @wraps(call)
    def in_turn(self: HasTurn, *args: Any, **kwargs: Any) -> Any:
        turn, thread = self.turn, get_ident()
        if turn.thread == thread:
            result = call(self, *args, **kwargs)
            if turn.unfreed:
                turn.free()
            return result
        try:
            if not turn.acquire(False):
                raise turn.refusal(name)  # noqa: TRY301 - as every error of a verb, it must leave the turn as it was
            turn.thread, turn.verb = thread, name
            result = call(self, *args, **kwargs)
            if turn.unfreed:
                turn.free()
            turn.thread = None
            turn.release()
            return result  # noqa: TRY300 - until the caller has the result, an interruption loses it
        except BaseException as error:
            has_begun = not isinstance(error, TypeError) or _fits(call, self, *args, **kwargs)
            turn.fail(error, harmless if has_begun else TypeError)
            raise

    return cast("Method", in_turn)


def _fits(call: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """Whether the arguments fit the signature of the method. If not, no line of it has run."""
    try:
        signature(call).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def reads(call: Method) -> Method:
    """Let a method that changes nothing run until the cache is closed, also beside a verb of another thread."""

    @wraps(call)
    def while_open(self: HasTurn, *args: Any, **kwargs: Any) -> Any:
        if self.turn.is_closed:
            raise self.turn.refusal(call.__name__)
        return call(self, *args, **kwargs)

    return cast("Method", while_open)
