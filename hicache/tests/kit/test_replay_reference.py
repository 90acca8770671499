"""Replays on the reference cache, their report files, and the exit codes of the command."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hicache.cli.app import app
from hicache.config import EvictionPolicy, ExecutorKind, Layout, WritePolicy
from hicache.testing.caches.offload import OffloadCacheAdapter
from hicache.testing.load import load_adapter
from hicache.testing.replay import (
    HostSettings,
    ReplayOutcome,
    replay,
    replay_sample,
    samples,
    write_report,
)
from hicache.testing.replay.page import figures, render_replay
from hicache.testing.traces import SHIPPED_TRACE, SHORT_TRACE, Trace, generate_trace, write_trace
from hicache.tests.kit.html_page import HtmlPage
from hicache.tests.kit.replays import SETTINGS, SMALL

REFERENCE = "hicache.testing.caches.reference:ReferenceAdapter"
STEPPED = HostSettings("30%", WritePolicy.WRITE_THROUGH, Layout.PAGE_FIRST, ExecutorKind.STEPPED)
BROKEN = "hicache.tests.kit.test_replay:SwapsPages"


@pytest.fixture(name="path", scope="module")
def _path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replay") / "generated.jsonl"
    write_trace(path, generate_trace(SMALL, 7))
    return path


def replayed(
    path: Path,
    components: tuple[str, ...],
    capacity: str,
    policy: EvictionPolicy = EvictionPolicy.LRU,
    host: HostSettings | None = None,
) -> ReplayOutcome:
    asked = replace(
        SETTINGS,
        capacity=capacity,
        page_size=64,
        components=components,
        policy=policy,
        sliding_window_size=256,
        running=4,
        check_every=10,
        host=host,
    )
    return replay(Trace(path, skip_bad=False, limit=None), load_adapter(REFERENCE), asked, None)


def test_every_token_is_hit_refused_evicted_or_never_seen(path: Path) -> None:
    unlimited = replayed(path, ("full",), "unlimited")
    seen = unlimited.hit_tokens["device"]
    assert (unlimited.lost_tokens, unlimited.refused_tokens) == (0, {}), f"nothing is lost, got {unlimited.lost_tokens}"
    assert unlimited.unseen_tokens == unlimited.input_tokens - seen, f"got {unlimited.unseen_tokens}"
    small = replayed(path, ("full", "swa", "mamba"), "20%")
    refused = small.refused_tokens or {}
    assert refused.keys() == {"swa", "mamba"}, f"got {refused}"
    assert refused["mamba"], f"prompts part where no state is: got {refused}"
    assert small.lost_tokens, f"the device is small, got {small.evicted_tokens} evicted"
    assert small.unseen_tokens == unlimited.unseen_tokens, f"it is the same trace, got {small.unseen_tokens}"
    windows = [(*map(one.refused_tokens.get, refused, (0, 0)), one.lost_tokens) for one in small.timeline]
    sums = tuple(map(sum, zip(*windows, strict=True)))
    assert sums == (refused["swa"], refused["mamba"], small.lost_tokens), f"the windows have {sums}"
    shown = {one.name: one.value for one in figures(small)}
    parts = ("hits on device", "refused by swa", "refused by mamba", "evicted before reuse", "never seen")
    total = sum(int(shown[name].partition(" ")[0].replace(",", "")) for name in parts)
    assert total == small.input_tokens, f"expected {small.input_tokens} tokens in all, got {shown}"


@pytest.mark.parametrize("capacity", ["unlimited", "40%", "20%"])
@pytest.mark.parametrize(
    "components", [("full",), ("full", "indexer"), ("full", "swa"), ("full", "mamba"), ("full", "swa", "mamba")]
)
def test_the_reference_keeps_the_laws(path: Path, components: tuple[str, ...], capacity: str) -> None:
    outcome = replayed(path, components, capacity)
    assert outcome.broken is None, f"{components} with {capacity}: {outcome.broken}"
    assert outcome.checks == 4 + 2, f"40 requests, every tenth checked, and twice at the end: {outcome.checks} checks"
    assert 0 < outcome.hit_rate <= outcome.optimal_hit_rate, f"{components} with {capacity}: {outcome.hit_rate}"


@pytest.mark.parametrize("policy", EvictionPolicy)
def test_every_policy_can_be_compared(path: Path, policy: EvictionPolicy) -> None:
    outcome = replayed(path, ("full",), "30%", policy)
    assert outcome.broken is None, f"{policy.value}: {outcome.broken}"
    assert outcome.hit_rate <= outcome.optimal_hit_rate, f"{policy.value} hits {outcome.hit_rate}, above the optimum"


@pytest.mark.parametrize("executor", [ExecutorKind.STEPPED, ExecutorKind.THREADED])
@pytest.mark.parametrize("policy", WritePolicy)
@pytest.mark.parametrize("components", [("full",), ("full", "swa"), ("full", "swa", "mamba", "indexer")])
def test_the_reference_keeps_the_laws_on_two_tiers(
    path: Path, components: tuple[str, ...], policy: WritePolicy, executor: ExecutorKind
) -> None:
    outcome = replayed(path, components, "20%", host=replace(STEPPED, write_policy=policy, executor=executor))
    assert outcome.broken is None, f"{components}, {policy.value}, {executor.value}: {outcome.broken}"
    assert outcome.host is not None, "expected the outcome of the host tier, got None"
    assert outcome.host.bytes_backed_up, f"nothing was backed up: {outcome.host}"
    assert outcome.hit_rate <= outcome.optimal_hit_rate, f"{outcome.hit_rate} is above the optimum of both tiers"
    if "mamba" not in components and policy is not WritePolicy.WRITE_THROUGH_SELECTIVE:
        assert outcome.hit_tokens["host"], f"nothing came back: {outcome.hit_tokens}"


@pytest.mark.parametrize("policy", WritePolicy)
def test_stepped_transfers_repeat_a_replay(path: Path, policy: WritePolicy) -> None:
    host = replace(STEPPED, write_policy=policy)
    one, other = (replayed(path, ("full", "swa"), "20%", host=host) for _ in range(2))
    calls = [{verb: latency.calls for verb, latency in outcome.latency.items()} for outcome in (one, other)]
    assert calls[0] == calls[1], f"the same replay made other calls: {calls}"
    assert (one.timeline, one.host) == (other.timeline, other.host), "the same replay found or moved something else"


def test_a_host_with_room_for_all_hits_what_no_eviction_would(path: Path) -> None:
    host = replace(STEPPED, capacity="unlimited")
    both, unlimited = replayed(path, ("full",), "20%", host=host), replayed(path, ("full",), "unlimited")
    assert both.hit_rate == unlimited.hit_rate, f"of {unlimited.hit_rate:.2%} a host with room for all hits {both}"
    assert both.hit_rates["device"] < both.hit_rate, f"all hits were on a device of a fifth of the footprint: {both}"


def test_what_the_last_check_moves_is_not_counted(path: Path) -> None:
    outcome = replayed(path, ("full",), "unlimited", host=replace(STEPPED, write_policy=WritePolicy.WRITE_BACK))
    assert outcome.broken is None, f"expected no violated law, got {outcome.broken}"
    assert outcome.host is not None, "expected the outcome of the host tier, got None"
    moved = (outcome.evicted_tokens, outcome.host.bytes_backed_up)
    assert moved == (0, 0), f"nothing had to leave the device, yet evicted tokens and bytes backed up are {moved}"


def test_full_without_limit_and_with_lru_matches_the_counts(path: Path) -> None:
    unlimited = replayed(path, ("full",), "unlimited")
    assert unlimited.hit_rate == unlimited.lru_hit_rate == unlimited.optimal_hit_rate, f"no eviction: {unlimited}"
    small = replayed(path, ("full",), "40%")
    assert abs(small.hit_rate - small.lru_hit_rate) < 0.01, f"LRU {small.lru_hit_rate:.2%}, cache {small.hit_rate:.2%}"


@pytest.mark.parametrize("name", ["replay", "replay-host", "replay-storage"])
def test_a_sample_leaves_its_report(tmp_path: Path, name: str) -> None:
    adapter = load_adapter(REFERENCE)
    sample = next(one for one in samples(adapter) if one.name == name)
    seen: list[tuple[int, int]] = []
    outcome = replay_sample(adapter, sample, tmp_path / "report", lambda done, total: seen.append((done, total)))
    assert outcome.broken is None, f"the sample breaks a law: {outcome.broken}"
    assert all(outcome.hit_tokens.values()), f"expected hits on every tier, got {outcome.hit_tokens}"
    assert outcome.evicted_tokens, f"expected evictions, got {outcome.evicted_tokens}"
    total = SHORT_TRACE.requests
    assert {len(lengths) for lengths in outcome.hit_lengths.values()} == {total}, "each request has its hits, by tier"
    assert seen == [(done, total) for done in range(1, total + 1)], f"expected each step, got {seen[:5]}"
    table = json.loads((tmp_path / "report" / f"{name}.json").read_text(encoding="ascii"))
    assert table == json.loads(json.dumps(asdict(outcome))), f"{name}.json does not hold the outcome"
    assert table["schema_version"] == 5, f"{name}.json has schema {table['schema_version']}"
    picture = (tmp_path / "report" / f"{name}.svg").read_text(encoding="utf-8")
    assert "<svg" in picture, f"{name}.svg begins with {picture[:80]}"


def test_a_cache_of_chunks_has_no_sample() -> None:
    found = samples(OffloadCacheAdapter)
    assert not found, f"a replay drives no cache beside the device, got {found}"


@pytest.mark.parametrize("host", [None, STEPPED])
def test_equal_outcomes_are_drawn_alike(path: Path, tmp_path: Path, host: HostSettings | None) -> None:
    outcome = replayed(path, ("full",), "30%", host=host)
    for directory in ("one", "other"):
        write_report(outcome, tmp_path / directory)
    one, other = ((tmp_path / directory / "replay.svg").read_bytes() for directory in ("one", "other"))
    assert one == other, "the same outcome was drawn in two ways"


def test_the_command_reports_and_ends_with_0(path: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["replay", str(path), "--limit", "20", "--report", str(tmp_path)])
    assert result.exit_code == 0, f"exit code {result.exit_code}: {result.output}"
    for expected in ("hit rate", "offline optimum", "p99", "replay.html"):
        assert expected in result.output, f"{expected!r} is missing from: {result.output}"
    assert json.loads((tmp_path / "replay.json").read_text(encoding="ascii"))["requests"] == 20, (
        "--limit 20 was not kept"
    )


def test_without_an_argument_the_shipped_trace_is_replayed(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["replay", "--report", str(tmp_path)], env={"COLUMNS": "120"})
    assert result.exit_code == 0, f"exit code {result.exit_code}: {result.output}"
    assert f"{SHIPPED_TRACE.name} on" in result.output, f"expected the name of the trace: {result.output}"
    table = json.loads((tmp_path / "replay.json").read_text(encoding="ascii"))
    assert table["requests"] == SHORT_TRACE.requests, f"got {table['requests']} requests"


def test_the_page_explains_each_figure(path: Path, tmp_path: Path) -> None:
    write_report(replayed(path, ("full",), "30%", host=STEPPED), tmp_path)
    page = HtmlPage((tmp_path / "replay.html").read_text(encoding="utf-8"))
    outcome = replayed(path, ("full",), "30%", host=STEPPED)
    rows = {row.one("th").text: row.one("td") for row in page.all("tr") if row.all("span", kind="muted")}
    for figure in figures(outcome):
        assert rows[figure.name].one("span", kind="muted").text == " ".join(figure.meaning.split()), f"{figure.name}"
    (plot,) = page.all("img")
    assert plot.attributes["src"].startswith("data:image/svg+xml"), f"the plot is missing: {plot.attributes}"
    loaded = [one.attributes[name] for one in page.walk() for name in ("src", "href") if name in one.attributes]
    assert not [one for one in loaded if one.startswith("http")], f"a page loads nothing from a network: {loaded}"


def test_the_page_shows_what_an_adapter_says_as_text(path: Path) -> None:
    outcome = replace(replayed(path, ("full",), "30%"), broken="<b>1</b>", trace="<script>alert(1)</script>")
    page = render_replay(outcome, b"<svg/>", "replay.json")
    shown = HtmlPage(page)
    assert not shown.mismatches, f"tags that do not match: {shown.mismatches}"
    assert not [one for one in shown.all("b") if one.text == "1"], "a message is not markup"
    assert not shown.all("script"), "a name is not markup"
    assert "<script>alert(1)</script>" in shown.one("body").text, "the name is not shown verbatim"


def test_the_command_shows_both_tiers_and_what_moved(path: Path, tmp_path: Path) -> None:
    arguments = ["--capacity", "20%", "--host", "50%", "--write-policy", "write_back", "--executor", "stepped"]
    arguments += ["--host-layout", "layer_first", "--report", str(tmp_path)]
    result = CliRunner().invoke(app, ["replay", str(path), *arguments], env={"COLUMNS": "120"})
    assert result.exit_code == 0, f"exit code {result.exit_code}: {result.output}"
    table = json.loads((tmp_path / "replay.json").read_text(encoding="ascii"))
    assert table["configuration"].endswith("/write_back-layer_first-stepped"), f"got {table['configuration']}"
    moved, tokens = table["host"]["bytes_loaded"], table["host"]["bytes_loaded"] // table["host"]["bytes_per_token"]
    assert tokens == table["hit_tokens"]["host"] > 0, f"bytes of {tokens} tokens were loaded for {table['hit_tokens']}"
    for expected in (
        "hits on device",
        "hits on host",
        f"{moved:,} bytes, equal to {tokens:,} tokens",
        "backups refused",
    ):
        assert expected in result.output, f"{expected!r} is missing from: {result.output}"


WITH_STORAGE = ["--capacity", "20%", "--host", "30%", "--executor", "stepped", "--storage", "memory"]


def test_the_command_tells_of_both_parts(path: Path, tmp_path: Path) -> None:
    arguments = ["replay", str(path), *WITH_STORAGE, "--report", str(tmp_path)]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})
    assert result.exit_code == 0, f"exit code {result.exit_code}: {result.output}"
    table = json.loads((tmp_path / "replay.json").read_text(encoding="ascii"))
    storage = table["storage"]
    found = (storage["backend"], storage["stop_policy"], storage["restarted"])
    assert found == ("memory", "wait_complete", True), f"expected the storage of the options, got {found}"
    assert [part["requests"] for part in storage["parts"]] == [20, 20], f"a restart in the middle: {storage}"
    assert storage["parts"][1]["hit_tokens"]["storage"] > 0, f"the second half hits storage: {storage['parts'][1]}"
    second = storage["parts"][1]["hit_rates"]["storage"]
    for expected in ("hits on storage", "part 2", "unlimited cache", "with a restart", "stored", f"{second:.2%}"):
        assert expected in result.output, f"{expected!r} is missing from: {result.output}"
    picture = (tmp_path / "replay.svg").read_text(encoding="utf-8")
    assert "<!-- restart -->" in picture, "the restart is not in the picture"
    assert "<!-- and in storage" in picture, "the hits of storage are not in the picture"


def test_a_broken_law_ends_with_1_and_a_report(path: Path, tmp_path: Path) -> None:
    arguments = ["replay", str(path), "--adapter", BROKEN, "--check-every", "1", "--report", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1, f"exit code {result.exit_code}: {result.output}"
    assert "REQ-3" in result.output, f"the law is not named in: {result.output}"
    assert "REQ-3" in json.loads((tmp_path / "replay.json").read_text(encoding="ascii"))["broken"], "nor in replay.json"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--adapter", "nowhere:Cache"], "nowhere"),
        (["--adapter", "nowhere"], "package.module:Class"),
        (["--capacity", "much"], "much"),
        (["--host", "plenty"], "plenty"),
        (["--host", "25%", "--adapter", "hicache.tests.kit.hosted_cache:FlatCache"], "HOST"),
        (["--adapter", "hicache.testing.caches.offload:OffloadCacheAdapter"], "chunk"),
        (["--host", "25%", "--adapter", "hicache.testing.caches.blocks:BlockCacheAdapter"], "host tier"),
        (["--page-size", "0"], "--page-size"),
        (["--components", "swa"], "full"),
        (["--storage", "memory"], "needs a host tier"),
        ([*WITH_STORAGE, "--storage", "nowhere"], "nowhere"),
        ([*WITH_STORAGE, "--storage-config", '{"prefetch_threshold": "many"}'], "prefetch_threshold"),
        ([*WITH_STORAGE, "--storage-config", '{"room": 1}'], "room"),
        ([*WITH_STORAGE, "--storage-config", "@nowhere.json"], "nowhere.json"),
        ([*WITH_STORAGE, "--restart-at", "2"], "--restart-at"),
        ([*WITH_STORAGE, "--stop-policy", "soon"], "soon"),
    ],
)
def test_what_cannot_be_opened_ends_with_2(path: Path, tmp_path: Path, arguments: list[str], expected: str) -> None:
    result = CliRunner().invoke(app, ["replay", str(path), "--report", str(tmp_path), *arguments])
    assert result.exit_code == 2, f"exit code {result.exit_code}: {result.output}"
    assert expected in result.output, f"{expected!r} is missing from: {result.output}"


def test_malformed_lines_end_with_2_or_are_counted(path: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    arguments = ["replay", str(bad), "--limit", "5", "--report", str(tmp_path)]
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 2, f"exit code {refused.exit_code}: {refused.output}"
    assert "line 1" in refused.output, f"the line is not named in: {refused.output}"
    skipped = CliRunner().invoke(app, [*arguments, "--skip-bad"])
    assert skipped.exit_code == 0, f"exit code {skipped.exit_code}: {skipped.output}"
    table = json.loads((tmp_path / "replay.json").read_text(encoding="ascii"))
    assert table["skipped_lines"] == 1, f"one line is malformed, {table['skipped_lines']} were counted"
