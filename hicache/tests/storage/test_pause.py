"""Pause: for how long a server that failed is not asked."""

from __future__ import annotations

from contextlib import suppress

import pytest

from hicache.storage.base import Breaker
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


def test_the_breaker_is_open_from_a_failure_to_an_answer() -> None:
    clock = SteppedClock()
    pause = Pause(SHORTEST_S, clock)
    assert pause.breaker == Breaker(is_open=False, pauses=0), "nothing has failed"
    fail(pause, clock, 0)
    assert not is_asked(pause), "the pause has begun"
    assert pause.breaker == Breaker(is_open=True, pauses=1), "an attempt that is not made begins no pause"
    clock.now += SHORTEST_S
    assert pause.breaker == Breaker(is_open=True, pauses=1), "the server has not answered yet"
    fail(pause, clock, 0)
    assert pause.breaker == Breaker(is_open=True, pauses=2), "it has failed again"
    clock.now += SHORTEST_S
    assert is_asked(pause), "it is asked, and answers"
    assert pause.breaker == Breaker(is_open=False, pauses=2), "it has answered"


def test_attempts_that_fail_side_by_side_begin_one_pause() -> None:
    clock = SteppedClock()
    pause = Pause(SHORTEST_S, clock)

    def attempt() -> None:
        with pause.attempt((OSError,)):
            fail(pause, clock, 0)
            raise OSError("both")

    with pytest.raises(OSError, match="both"):
        attempt()
    assert pause.breaker == Breaker(is_open=True, pauses=1), "the second failure is within the pause of the first"


def test_errors_of_another_kind_begin_no_pause() -> None:
    pause = Pause(SHORTEST_S, SteppedClock())
    with pytest.raises(ValueError, match="a bug"), pause.attempt((OSError,)):
        raise ValueError("a bug")
    assert is_asked(pause), "a bug is not a failure of the server"


def fail_of(pause: Pause, clock: SteppedClock, server: str, seconds: float) -> None:
    """An attempt of one of several servers that fails after so many seconds."""

    def attempt() -> None:
        with pause.attempt((OSError,), server):
            clock.now += seconds
            raise OSError("a fault")

    with pytest.raises(OSError, match="a fault"):
        attempt()


def asked(pause: Pause, servers: str) -> str:
    """The servers of which an attempt is made now."""
    found = ""
    for server in servers:
        with suppress(OSError), pause.attempt((OSError,), server):
            found += server
    return found


def test_a_server_that_fails_pauses_itself_alone() -> None:
    clock = SteppedClock()
    pause = Pause(SHORTEST_S, clock)
    fail_of(pause, clock, "a", 0)
    assert asked(pause, "abc") == "bc", "the others are asked"
    assert pause.is_failing("a"), "it has not answered since"
    assert not pause.is_failing("b"), "it has answered"
    assert pause.breaker == Breaker(is_open=True, pauses=1), "one of them is failing"
    clock.now += SHORTEST_S
    assert asked(pause, "abc") == "abc", "the pause is over"
    assert pause.breaker == Breaker(is_open=False, pauses=1), "all have answered"


def test_servers_that_hang_take_half_of_the_time_together() -> None:
    clock = SteppedClock()
    pause = Pause(SHORTEST_S, clock)
    fail_of(pause, clock, "a", 30)
    clock.now += 20
    fail_of(pause, clock, "b", 30)
    assert asked(pause, "abc") == "c", "the pause of the second holds for both: else the first would be asked now"
    clock.now += 29
    assert asked(pause, "abc") == "c", "for as long as the second took"
    clock.now += 1
    assert asked(pause, "abc") == "abc", "then both are asked side by side"


def test_a_short_failure_does_not_shorten_the_pause_after_a_long_one() -> None:
    clock = SteppedClock()
    pause = Pause(SHORTEST_S, clock)
    fail_of(pause, clock, "a", 30)
    fail_of(pause, clock, "b", 0)
    clock.now += 29
    assert asked(pause, "a") == "", "it took 30 s"
