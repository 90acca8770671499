"""Latency histograms and the timeline: bounded memory, and exact totals."""

from __future__ import annotations

from random import Random

import pytest

from hicache.testing.replay.latency import Latency, LatencyHistogram, Stopwatch
from hicache.testing.replay.tally import Timeline, Window


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 1.0])
def test_percentiles_are_at_most_one_bin_too_high(share: float) -> None:
    random = Random(1)
    durations = sorted(int(random.lognormvariate(9, 2)) + 1 for _ in range(2000))
    histogram = LatencyHistogram()
    for duration in durations:
        histogram.add(duration)
    exact = durations[int(share * len(durations)) - 1]
    found = histogram.percentile_ns(share)
    assert exact <= found <= exact * 1.05 + 1, f"{share:.0%} of the calls took {exact} ns at most, histogram: {found}"


def test_the_maximum_is_exact_and_no_percentile_is_above_it() -> None:
    histogram = LatencyHistogram()
    histogram.add(1_000_003)
    expected = Latency(calls=1, p50_us=1000.003, p90_us=1000.003, p99_us=1000.003, max_us=1000.003)
    assert histogram.summary() == expected, f"one call of 1,000,003 ns: {histogram.summary()}"


def test_extreme_durations_have_a_bin() -> None:
    histogram = LatencyHistogram()
    for duration in (0, 1, 2**60):
        histogram.add(duration)
    assert histogram.summary().calls == 3, "a call of no time, or of years, was not counted"


def test_no_calls_take_no_time() -> None:
    assert LatencyHistogram().summary() == Latency(0, 0.0, 0.0, 0.0, 0.0), "an empty histogram shows a duration"


def test_a_stopwatch_counts_each_verb_on_its_own() -> None:
    stopwatch = Stopwatch()
    values = [3, 1, 2]
    assert stopwatch.time(values.index, 1) == 1, "the verb's result was lost"
    stopwatch.time(values.sort)
    stopwatch.time(values.sort, reverse=True)
    calls = {verb: latency.calls for verb, latency in stopwatch.summaries().items()}
    assert calls == {"index": 1, "sort": 2}, f"one index and two sorts were counted as {calls}"


@pytest.mark.parametrize("requests", [1, 79, 80, 81, 1000, 5000])
def test_a_timeline_is_bounded_and_loses_nothing(requests: int) -> None:
    timeline = Timeline()
    for number in range(requests):
        timeline.add(Window(number, 1, 10, {"device": 3, "host": 0}, {"device": number}, 2 * number))
    windows = timeline.windows
    assert len(windows) <= 80, f"{requests} requests made {len(windows)} windows"
    sums = tuple(sum(getattr(window, field) for window in windows) for field in ("requests", "input_tokens"))
    assert sums == (requests, 10 * requests), f"{requests} requests add up to {sums}"
    hits = {tier: sum(window.hit_tokens[tier] for window in windows) for tier in ("device", "host")}
    assert hits == {"device": 3 * requests, "host": 0}, f"{requests} requests with 3 hits each add up to {hits}"
    sizes = {window.requests for window in windows[:-1]}
    assert len(sizes) <= 1, f"windows of {sorted(sizes)} requests can't be compared"
    last = windows[-1]
    state = (last.arrival_ms, last.occupied_tokens, last.evicted_tokens)
    assert state == (requests - 1, {"device": requests - 1}, 2 * requests - 2), f"the last window ends with {state}"
