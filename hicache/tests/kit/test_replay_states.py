"""Replays of the policies of states: what each keeps, what each loses, and the comparison as a command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hicache.cli.app import app
from hicache.config import Recency
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.replay import StateComparison, StateReplay, states
from hicache.testing.replay.states import CAPACITIES, KEPT, StatePolicy, policies
from hicache.testing.traces import AGENTS, SHORT_TRACE, TraceRequest, generate_agents
from hicache.tests.kit.hosted_cache import HostedCache
from hicache.tests.kit.replays import SETTINGS, hits, replayed, whole_blocks

HYBRID = replace(SETTINGS, components=("full", "mamba"))


def test_an_interval_serves_the_first_prompt_that_parts(tmp_path: Path) -> None:
    requests = [whole_blocks(*range(8)), whole_blocks(*range(5), 98, 99)]
    found = [
        hits(replayed(tmp_path, requests, replace(HYBRID, mamba_checkpoint_interval=interval), ReferenceAdapter))
        for interval in (None, 1024)
    ]
    assert found == [(0,), (4,)], f"expected a hit up to the interval before block 5 alone, got {found}"


def test_a_limit_of_states_keeps_the_last_one(tmp_path: Path) -> None:
    # Four turns of one conversation, and its second turn again.
    requests = [whole_blocks(*range(turns)) for turns in (1, 2, 3, 4, 2)]
    found = [
        hits(replayed(tmp_path, requests, replace(HYBRID, mamba_max_states_per_path=most), ReferenceAdapter))
        for most in (None, 1)
    ]
    assert found == [(1 + 2 + 3 + 2,), (1 + 2 + 3,)], f"expected the second turn to be lost with a limit, got {found}"


@pytest.mark.parametrize(("capacity", "expected"), [("7", 7), ("50%", 2), ("unlimited", 2 * 5)])
def test_the_states_of_a_replay_have_a_capacity_of_their_own(tmp_path: Path, capacity: str, expected: int) -> None:
    settings = replace(HYBRID, mamba_capacity=capacity)
    outcome = replayed(tmp_path, [whole_blocks(*range(turns)) for turns in range(1, 6)], settings, ReferenceAdapter)
    running = 2 * settings.running
    found = outcome.capacity_tokens["mamba"] - running
    assert found == expected, f"{capacity}: expected {expected} states beside {running} of the running, got {found}"


def test_what_requests_lock_at_most_is_counted(tmp_path: Path) -> None:
    outcome = replayed(
        tmp_path, [whole_blocks(0, 1), whole_blocks(2, 3, 4)], replace(HYBRID, running=2), ReferenceAdapter
    )
    expected = {"full": 5 * 512, "mamba": 2}
    assert outcome.pinned_tokens == expected, f"expected both prompts to be locked, got {outcome.pinned_tokens}"


def test_the_worst_loss_is_that_behind_the_best_of_the_same_trace_and_capacity() -> None:
    kept = list(KEPT)
    rates = {StatePolicy(kept[0], Recency.USED): (0.5, 0.2), StatePolicy(kept[2], Recency.USED): (0.4, 0.6)}
    replays = [
        StateReplay("a.jsonl", capacity, policy, rate, 1.0, {"full": 64, "mamba": int(10 * rate)}, None)
        for policy, of_policy in rates.items()
        for capacity, rate in zip(CAPACITIES, of_policy, strict=False)
    ]
    comparison = StateComparison("module:Cache", 8, {"a.jsonl": 9}, replays)
    found = [round(comparison.worst_loss(policy), 3) for policy in rates]
    assert found == [0.4, 0.1], f"expected the losses 0.4 and 0.1, got {found}"
    pinned = [comparison.pinned(policy, "mamba") for policy in rates]
    assert pinned == [5, 6], f"expected the most locked states of both, got {pinned}"


def test_a_cache_has_the_policies_that_it_declares() -> None:
    found = [len(policies(adapter)) for adapter in (ReferenceAdapter, HostedCache)]
    assert found == [9, 2], f"expected nine policies of the reference, and two of a cache without options, got {found}"


@pytest.fixture(name="tiny")
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "AGENTS", replace(AGENTS, requests=6, longest_input=16_384))
    monkeypatch.setattr(states, "SHORT_TRACE", replace(SHORT_TRACE, longest_input=2048))
    monkeypatch.setattr(states, "CAPACITIES", CAPACITIES[:1])


@pytest.mark.usefixtures("tiny")
def test_a_comparison_is_a_table_and_a_picture_of_each_trace(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["replay", "--compare-states", "--report", str(tmp_path)])
    assert done.exit_code == 0, f"expected success, got {done.exit_code}: {done.output}"
    replays = json.loads((tmp_path / "states.json").read_text(encoding="ascii"))["replays"]
    traces = [one["trace"] for one in replays]
    assert traces == ["conversations.jsonl"] * 9 + ["agents.jsonl"] * 9, f"expected nine replays of each, got {traces}"
    picture = (tmp_path / "states.svg").read_text(encoding="utf-8")
    missing = [name for name in (*KEPT, "conversations.jsonl", "agents.jsonl") if name not in picture]
    assert not missing, f"expected each trace and policy in the picture, missing: {missing}"
    assert "worst loss" in done.output, f"expected the table, got {done.output}"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--compare-states", "--page-size", "64"), "--page-size"),
        (("--compare-states", "--host", "5%"), "--host"),
        (("--compare-states", "--capacity", "5%"), "--capacity"),
    ],
)
def test_an_option_without_effect_is_refused(tmp_path: Path, words: tuple[str, ...], named: str) -> None:
    done = CliRunner().invoke(app, ["replay", *words, "--report", str(tmp_path)])
    assert done.exit_code == 2, f"expected a usage error, got {done.exit_code}: {done.output}"
    assert named in done.output, f"expected {named} in the message, got {done.output}"
    assert "no effect" in done.output, f"expected the reason, got {done.output}"


def test_turns_of_agents_share_what_came_before() -> None:
    requests = list(generate_agents(replace(AGENTS, requests=80), 3))
    assert requests == list(generate_agents(replace(AGENTS, requests=80), 3)), "expected the seed to decide"
    first = {asked.hash_ids[0] for asked in requests}
    assert len(first) == 2, f"expected instructions of agents and of sub-agents, got {len(first)} beginnings"
    sizes = {asked.block_tokens for asked in requests}
    assert sizes == {64}, f"expected blocks of 64 tokens, got {sizes}"
    grown = [one for one in requests if any(_continues(one, other) for other in requests)]
    assert len(grown) > len(requests) // 3, f"expected turns to go on with another one, got {len(grown)}"


def _continues(one: TraceRequest, other: TraceRequest) -> bool:
    whole = other.hash_ids[: other.input_length // other.block_tokens]
    return one is not other and len(whole) > 200 and one.hash_ids[: len(whole)] == whole
