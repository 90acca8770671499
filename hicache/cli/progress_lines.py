"""progress_lines: a line every ten seconds that says what a command does, where no progress bar is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from rich.console import Console

from hicache.cli.command import say
from hicache.clock import Clock, WallClock

PERIOD_S = 10.0


@contextmanager
def progress_lines(state: Callable[[], str], console: Console) -> Iterator[None]:
    """Print what `state` returns every PERIOD_S seconds until the block ends. Another thread calls it."""
    over = Event()
    printer = Thread(target=print_until, args=(over.wait, state, console, WallClock()), daemon=True)
    printer.start()
    try:
        yield
    finally:
        over.set()
        printer.join()


def print_until(is_over: Callable[[float], bool], state: Callable[[], str], console: Console, clock: Clock) -> None:
    """Print the seconds so far and the state, each time that `is_over` has waited for PERIOD_S in vain."""
    begin = clock.now()
    while not is_over(PERIOD_S):
        say(console, f"{clock.now() - begin:.0f} s: {state()}")
