"""bounded: run what may block for ever in a thread of its own, and give up on it in time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")


def in_thread(act: Callable[[], T], what: str) -> Future[T]:
    """The result or the error of `act`, when it has one. Its thread does not keep the process from ending.

    Settings of a thread, such as the current CUDA device and stream, are not those of the caller.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(act())
        except BaseException as error:  # noqa: BLE001 - whoever waits raises it
            done.set_exception(error)

    threading.Thread(target=run, name=f"hicache {what}", daemon=True).start()
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
