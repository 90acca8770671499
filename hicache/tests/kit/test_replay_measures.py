"""What a replay is measured by: the limits of a trace, latencies, the timeline, and the hits of another replay."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import replace
from functools import cache
from itertools import accumulate, combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from hicache.cli.app import app
from hicache.errors import ConfigurationError
from hicache.testing.replay import Survey, lru_hit_tokens, optimal_hit_tokens, survey
from hicache.testing.replay.latency import Latency, LatencyHistogram, Stopwatch
from hicache.testing.replay.outcome import Difference, compare_hits
from hicache.testing.replay.page import figures
from hicache.testing.replay.tally import Timeline, Window
from hicache.testing.traces import BLOCK_TOKENS, SHORT_TRACE, TraceRequest, generate_trace, request_tokens
from hicache.tests.kit.replays import SETTINGS, replayed, request

PAGE_SIZES = (16, 48, 512, 1024)
SHARES = (1.0, 0.25, 0.05, 0.01)


def pages_of(asked: TraceRequest, page_size: int) -> list[int]:
    """The whole pages, as hashes of their tokens and of all tokens before them."""
    tokens = request_tokens(asked)
    pages = (tokens[end - page_size : end].tobytes() for end in range(page_size, len(tokens) + 1, page_size))
    return list(accumulate(pages, lambda before, page: hash((before, page)), initial=0))[1:]


def plain_lru_hits(requests: list[TraceRequest], page_size: int, capacity_pages: int) -> int:
    """LRU page by page; the last page of a prompt is the least recently used."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for asked in requests:
        pages = pages_of(asked, page_size)
        hits += next((place for place, page in enumerate(pages) if page not in held), len(pages))
        for page in reversed(pages):
            held[page] = None
            held.move_to_end(page)
        while len(held) > capacity_pages:
            held.popitem(last=False)
    return hits * page_size


def best_hits(prompts: list[tuple[int, ...]], capacity: int) -> int:
    """The largest number of block hits, found by trying every set of blocks to keep after every prompt."""

    @cache
    def best(place: int, held: frozenset[int]) -> int:
        if place == len(prompts):
            return 0
        prompt = prompts[place]
        hits = next((count for count, block in enumerate(prompt) if block not in held), len(prompt))
        reachable = sorted(held.union(prompt))
        kept = [frozenset(some) for size in range(capacity + 1) for some in combinations(reachable, size)]
        return hits + max(best(place + 1, some) for some in kept)

    return best(0, frozenset())


def random_prompts(seed: int) -> list[tuple[int, ...]]:
    """Prompts of up to three blocks from a small tree, so that prefixes repeat."""
    random = Random(seed)
    names: dict[tuple[int, ...], int] = {}
    prompts = []
    for _ in range(7):
        path = tuple(random.choice((0, 1)) for _ in range(random.randint(1, 3)))
        prompts.append(tuple(names.setdefault(path[: end + 1], len(names)) for end in range(len(path))))
    return prompts


@pytest.mark.parametrize("capacity", [1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_the_optimum_is_what_exhaustive_search_finds(seed: int, capacity: int) -> None:
    prompts = random_prompts(seed)
    requests = [request(BLOCK_TOKENS * len(prompt), *prompt) for prompt in prompts]
    found = optimal_hit_tokens(requests, BLOCK_TOKENS, capacity * BLOCK_TOKENS) // BLOCK_TOKENS
    expected = best_hits(prompts, capacity)
    assert found == expected, f"{prompts} with {capacity} blocks: at best {expected} hits, Belady says {found}"


def test_the_optimum_keeps_what_is_needed_first() -> None:
    requests = [request(512, block) for block in (1, 2, 3, 1, 2, 3)]
    assert optimal_hit_tokens(requests, 512, 2 * 512) == 2 * 512, "with 2 of 3 blocks, 2 of 3 later requests can hit"
    assert lru_hit_tokens(requests, 512, 2 * 512) == 0, "LRU drops each of 3 blocks in turn just before its use"


def test_the_optimum_may_keep_a_part_of_a_block() -> None:
    requests = [request(512, block) for block in (1, 1)]
    assert optimal_hit_tokens(requests, 128, 3 * 128) == 3 * 128, "3 of the block's 4 pages fit, and can be hit"


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("share", SHARES)
def test_lru_by_blocks_is_lru_by_pages(page_size: int, share: float) -> None:
    requests = list(generate_trace(SHORT_TRACE, 3))[:40]
    pages = int(survey(requests, page_size).footprint_tokens // page_size * share)
    expected = plain_lru_hits(requests, page_size, pages)
    found = lru_hit_tokens(requests, page_size, pages * page_size)
    assert found == expected, f"{pages} pages of {page_size}: page by page {expected} tokens are hit, LRU says {found}"


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("share", SHARES)
def test_nothing_hits_more_than_the_optimum(page_size: int, share: float) -> None:
    requests = list(generate_trace(SHORT_TRACE, 4))
    capacity = int(survey(requests, page_size).footprint_tokens * share)
    best, lru = optimal_hit_tokens(requests, page_size, capacity), lru_hit_tokens(requests, page_size, capacity)
    assert best >= lru, f"page {page_size}, {capacity} tokens: LRU hits {lru}, the optimum only {best}"
    if share == 1.0:
        assert best == lru, f"page {page_size}, all fits: LRU hits {lru}, the optimum {best}"


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_the_footprint_counts_distinct_pages(page_size: int) -> None:
    requests = list(generate_trace(SHORT_TRACE, 5))[:40]
    begun = sum(1 for asked in requests if asked.input_length % page_size)
    whole = len({page for asked in requests for page in pages_of(asked, page_size)})
    found = survey(requests, page_size)
    expected = Survey(len(requests), sum(r.input_length for r in requests), (whole + begun) * page_size)
    assert found == expected, f"page {page_size}: {whole} whole and {begun} begun pages, survey says {found}"


def test_an_empty_trace_has_no_footprint() -> None:
    assert survey([], 512) == Survey(0, 0, 0), "expected zeros for a trace without requests"
    assert survey([request(0)], 512) == Survey(1, 0, 0), "expected no page for an empty prompt"


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
        timeline.add(Window(number, 1, 10, {"device": 3, "host": 0}, {"swa": 2}, 1, {"device": number}, 2 * number))
    windows = timeline.windows
    assert len(windows) <= 80, f"{requests} requests made {len(windows)} windows"
    sums = tuple(sum(getattr(window, field) for window in windows) for field in ("requests", "input_tokens"))
    assert sums == (requests, 10 * requests), f"{requests} requests add up to {sums}"
    hits = {tier: sum(window.hit_tokens[tier] for window in windows) for tier in ("device", "host")}
    assert hits == {"device": 3 * requests, "host": 0}, f"{requests} requests with 3 hits each add up to {hits}"
    lost = sum(window.lost_tokens for window in windows), sum(window.refused_tokens["swa"] for window in windows)
    assert lost == (requests, 2 * requests), f"{requests} requests that lost 1 token and were refused 2: {lost}"
    sizes = {window.requests for window in windows[:-1]}
    assert len(sizes) <= 1, f"windows of {sorted(sizes)} requests can't be compared"
    last = windows[-1]
    state = (last.arrival_ms, last.occupied_tokens, last.evicted_tokens)
    assert state == (requests - 1, {"device": requests - 1}, 2 * requests - 2), f"the last window ends with {state}"


def written(path: Path, **changed: Any) -> Path:
    """A replay of three requests."""
    table = {
        "trace": "conversation.jsonl",
        "footprint_tokens": 640,
        "capacity_tokens": {"full": 256},
        "running": 8,
        "adapter": "package.module:Mine",
        "hit_lengths": {"device": [0, 64, 128], "host": [0, 0, 64]},
    }
    path.write_text(json.dumps(table | changed), encoding="ascii")
    return path


def test_replays_that_agree_have_no_difference(tmp_path: Path) -> None:
    compared = compare_hits(written(tmp_path / "a.json"), written(tmp_path / "b.json", adapter="package.module:Theirs"))
    assert compared.adapters == ("package.module:Mine", "package.module:Theirs"), f"got {compared.adapters}"
    assert (compared.requests, compared.hit_tokens) == (3, (256, 256)), f"all hits of all requests: {compared}"
    assert compared.differences == [], f"no request differs, got {compared.differences}"


def test_a_request_that_hits_elsewhere_is_told(tmp_path: Path) -> None:
    other = {"device": [0, 64, 192], "host": [0, 0, 0]}
    compared = compare_hits(written(tmp_path / "a.json"), written(tmp_path / "b.json", hit_lengths=other))
    expected = [Difference(2, ({"device": 128, "host": 64}, {"device": 192, "host": 0}))]
    assert compared.differences == expected, f"the third request alone, by tier, got {compared.differences}"
    assert compared.hit_tokens == (256, 256), f"the totals agree all the same, got {compared.hit_tokens}"


def test_a_tier_that_a_replay_lacks_has_no_hits(tmp_path: Path) -> None:
    """So a replay without a host can be compared with one that has it, and storage too."""
    alone = written(tmp_path / "a.json", hit_lengths={"device": [0, 64, 192]})
    lengths = {"device": [0, 64, 128], "host": [0, 0, 64], "storage": [0, 0, 0]}
    compared = compare_hits(alone, written(tmp_path / "b.json", hit_lengths=lengths))
    expected = [
        Difference(2, ({"device": 192, "host": 0, "storage": 0}, {"device": 128, "host": 64, "storage": 0})),
    ]
    assert compared.differences == expected, f"the third request alone, by tier, got {compared.differences}"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"trace": "other.jsonl"}, "trace is 'other.jsonl', but 'conversation.jsonl'"),
        ({"capacity_tokens": {"full": 128}}, "capacity_tokens is {'full': 128}"),
        ({"hit_lengths": {"device": [0]}}, "1 requests were replayed, but 3"),
    ],
)
def test_replays_of_something_else_are_refused(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        compare_hits(written(tmp_path / "a.json"), written(tmp_path / "b.json", **changed))
    assert said in str(raised.value), f"expected {said!r} in {raised.value}"
    assert str(raised.value).startswith(str(tmp_path / "b.json")), f"the file is named: {raised.value}"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"trace": "t"}'])
def test_what_is_no_replay_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "b.json").write_text(text, encoding="ascii")
    with pytest.raises(ConfigurationError, match=r"b\.json: (cannot be read as a|not a) replay"):
        compare_hits(written(tmp_path / "a.json"), tmp_path / "b.json")


def run_app(*files: Path) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["report", "hits", *map(str, files)])
    return result.exit_code, result.output


def test_the_command_ends_with_1_and_names_the_requests_that_differ(tmp_path: Path) -> None:
    mine = written(tmp_path / "replay.json")
    other = written(tmp_path / "b.json", hit_lengths={"device": [0, 64, 192], "host": [0, 0, 0]})
    code, output = run_app(tmp_path, other)
    assert code == 1, f"a request differs: expected 1, got {code}: {output}"
    assert "request 2: 128 tokens on device, 64 tokens on host and 192 tokens on device, 0 tokens" in output, output
    assert "2 of 3 requests have equal hits" in output, output
    code, output = run_app(mine, mine)
    assert (code, "3 of 3 requests have equal hits" in output) == (0, True), f"expected 0, got {code}: {output}"


def test_the_command_ends_with_2_where_there_is_no_replay(tmp_path: Path) -> None:
    code, output = run_app(written(tmp_path / "a.json"), tmp_path / "none.json")
    assert code == 2, f"expected 2, got {code}: {output}"
    assert "none.json: cannot be read as a replay" in output, f"expected the file and the reason, got {output}"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"capacity_tokens": {"full": 512, "mamba": 7}}, "a recurrent state is kept: there is room for 7,"),
        ({"capacity_tokens": {"full": 512, "swa": 1024}}, "the window before its end: there is room for 1,024 tokens"),
        ({"too_large": 3}, "3 requests were too large"),
        ({"running": 8}, "Up to 8 requests run at a time"),
    ],
)
def test_a_page_says_what_bounds_the_hits_below_lru(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    outcome = replayed(tmp_path, [request(512, 1), request(512, 1)], SETTINGS)
    below = replace(outcome, hit_rate=0.25, lru_hit_rate=0.5)
    plain, found = (
        next(one for one in figures(each) if one.name == "below that LRU")
        for each in (below, replace(below, **changes))
    )
    assert found.value == "25.00% of the input tokens", f"got {found}"
    assert told in found.meaning, f"expected {told!r}, got {found.meaning}"
    assert told not in plain.meaning, f"only where it applies, got {plain.meaning}"
    level = replace(below, hit_rate=0.5, **changes)
    assert "below that LRU" not in {one.name for one in figures(level)}, "there is no gap"
