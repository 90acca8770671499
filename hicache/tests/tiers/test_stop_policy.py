"""PrefetchStopPolicy: each stop policy, and the cap of the timeout."""

from __future__ import annotations

from hicache.clock import VirtualClock
from hicache.parallel.agree import ALONE
from hicache.tests.tiers.stored_cache import stored_config
from hicache.tiers.prefetch import PrefetchStopPolicy
from hicache.types import StopPolicy


def stop_policy(policy: StopPolicy, clock: VirtualClock) -> PrefetchStopPolicy:
    return PrefetchStopPolicy(stored_config(policy), clock, ALONE)


def test_best_effort_waits_not_at_all_and_wait_complete_to_the_end() -> None:
    clock = VirtualClock()
    clock.advance(1e6)
    assert stop_policy(StopPolicy.BEST_EFFORT, clock).is_over(1e9), "FETCH-3: it does not wait"
    assert not stop_policy(StopPolicy.WAIT_COMPLETE, clock).is_over(0.0), "FETCH-3: it waits, however late it is"


def test_a_timeout_grows_with_the_pages_and_stops_at_the_cap() -> None:
    clock = VirtualClock()
    clock.advance(5.0)
    timed = stop_policy(StopPolicy.TIMEOUT, clock)
    assert timed.deadline_s(2) == 5.0 + 1.0 + 2 * 3.0, "FETCH-3: base + pages * per page (3 tokens at 1 s each)"
    assert timed.deadline_s(1_000_000) == 5.0 + 10.0, "FLOW-11: the cap"
    clock.advance(6.9)
    assert not timed.is_over(12.0), "before the deadline"
    clock.advance(0.1)
    assert timed.is_over(12.0), "at the deadline"
