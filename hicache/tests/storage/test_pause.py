"""Pause: for how long a server that failed is not asked."""

from __future__ import annotations

import pytest

from hicache.storage.pause import Pause

SHORTEST_S = 2.0


class SteppedClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def fail(pause: Pause, clock: SteppedClock, seconds: float) -> None:
    """An attempt that fails after so many seconds."""

    def attempt() -> None:
        with pause.attempt((OSError,)):
            clock.now += seconds
            raise OSError("a fault")

    with pytest.raises(OSError, match="a fault"):
        attempt()


def is_asked(pause: Pause) -> bool:
    """Whether an attempt is made now."""
    try:
        with pause.attempt((OSError,)):
            return True
    except OSError:
        return False


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.0, SHORTEST_S), (1.0, SHORTEST_S), (30.0, 30.0)])
def test_a_failed_server_is_not_asked_for_as_long_as_the_attempt_took(took_s: float, pause_s: float) -> None:
    clock = SteppedClock()
    pause = Pause(SHORTEST_S, clock)
    assert is_asked(pause), "at first it is asked"
    fail(pause, clock, took_s)
    clock.now += pause_s - 0.5
    assert not is_asked(pause), f"expected a pause of {pause_s} s after a failure that took {took_s} s"
    clock.now += 0.5
    assert is_asked(pause), f"expected an attempt {pause_s} s after a failure that took {took_s} s"


def test_errors_of_another_kind_begin_no_pause() -> None:
    pause = Pause(SHORTEST_S, SteppedClock())
    with pytest.raises(ValueError, match="a bug"), pause.attempt((OSError,)):
        raise ValueError("a bug")
    assert is_asked(pause), "a bug is no failure of the server"
