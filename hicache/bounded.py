"""Calls on threads of their own: what may block forever is waited for within bounds, and then left alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import TIMEOUT_MAX, Thread
from typing import TypeVar

LOG = logging.getLogger(__name__)

T = TypeVar("T")


def in_thread(act: Callable[[], T], what: str) -> Future[T]:
    """The result or the error of `act`, when it has one. Its thread does not keep the process from ending.

    Settings of a thread, such as the current CUDA device and stream, are not those of the caller.
    """
    done: Future[T] = Future()
    _start(act, done, f"hicache {what}", _drop)
    return done


def bounded(act: Callable[[], T], must_give_up: Callable[[], bool], poll_s: float, what: str) -> T:
    """The result of `act`, or its error. Raises TimeoutError when `must_give_up` comes first, asked every `poll_s`.

    The thread is then left alone.
    """
    done = in_thread(act, what)
    while not wait([done], timeout=poll_s).done:
        if must_give_up() and not done.done():
            raise TimeoutError(f"{what} has not returned")
    return done.result()


def call_within(limit_s: float, name: str, act: Callable[[], T], late: Callable[[T], object]) -> T:
    """Call `act` on a thread of its own, and wait for it for at most so many seconds.

    `name`: of the thread. `late`: what becomes of a result that comes later, on that thread; an error that comes later
    is logged. Raises what `act` raises, a RuntimeError for what would end a thread, and TimeoutError, with the name,
    when it takes longer.
    """
    done: Future[T] = Future()
    thread = _start(act, done, name, late)
    if not wait([done], min(limit_s, TIMEOUT_MAX)).done and done.cancel():
        raise TimeoutError(f"{name} has not ended within {limit_s:g} s")
    error = done.exception()
    thread.join()
    if error is None or isinstance(error, Exception):
        return done.result()
    raise RuntimeError(f"{name} ended its thread: {error!r}") from error


def call_aside(name: str, act: Callable[[], object]) -> None:
    """Call `act` on a thread of its own that is not waited for. An error is logged."""
    done: Future[object] = Future()
    done.cancel()
    _start(act, done, name, _drop)


def _start(act: Callable[[], T], done: Future[T], name: str, late: Callable[[T], object]) -> Thread:
    """Call `act` on a thread. A future that was cancelled by then has no result: `late` takes it, on that thread."""

    def run() -> None:
        try:
            result = act()
            if done.set_running_or_notify_cancel():
                done.set_result(result)
            else:
                late(result)
        except BaseException as error:
            if done.cancelled() or not done.set_running_or_notify_cancel():
                LOG.exception("a call failed after its waiter had given up")
            else:
                done.set_exception(error)

    thread = Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def _drop(_: object) -> None:
    """A result that is not needed."""
