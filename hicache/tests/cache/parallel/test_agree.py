"""Agreement: the collectives of each decision, their groups and order, and the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest

from hicache.config import CacheConfig
from hicache.errors import ConfigurationError, InvariantError, RankError
from hicache.parallel.agree import ALONE, Agreement, agreed_config
from hicache.parallel.group import Reduction
from hicache.testing.hybrid_model import reshaped
from hicache.tests.cache.pools.two_tiers import stored_config
from hicache.types import Component, StopPolicy

Call = tuple[str, str, str, tuple[int, ...]]


class Others:
    """The group of one axis. `given`: by purpose, the values of the other rank; by default those of this rank."""

    def __init__(
        self, name: str, calls: list[Call], given: Mapping[str, Sequence[int]], rank: int = 0, size: int = 2
    ) -> None:
        self.name = name
        self.rank = rank
        self.size = size
        self._calls = calls
        self._given = given

    def reduce(self, values: Sequence[int], reduction: Reduction, purpose: str) -> list[int]:
        self._calls.append((self.name, reduction.value, purpose, tuple(values)))
        theirs = self._given.get(purpose, values)
        choose = min if reduction is Reduction.MIN else max
        return [choose(pair) for pair in zip(values, theirs, strict=True)]

    def broadcast(self, values: Sequence[int], purpose: str) -> list[int]:
        self._calls.append((self.name, "BROADCAST", purpose, tuple(values)))
        return list(values) if self.rank == 0 else list(self._given.get(purpose, values))

    def barrier(self, purpose: str) -> None:
        raise AssertionError(f"expected no barrier, got {purpose}")


@pytest.fixture
def calls() -> list[Call]:
    """The collectives that were called."""
    return []


def agreement_of(calls: list[Call], rank: int = 0, **given: Mapping[str, Sequence[int]]) -> Agreement:
    return Agreement({axis: Others(axis, calls, theirs, rank) for axis, theirs in given.items()})


def test_progress_is_one_reduction_over_every_axis_that_shares_the_tree(calls: list[Call]) -> None:
    agreement = agreement_of(
        calls, pp={"progress": [7, -7, 3, 9, 0]}, cp={"progress": [7, -7, 2, 9, 5]}, tp={"progress": [7, -7, 9, 1, 5]}
    )
    agreed, _ = agreement.acknowledged(7, [4, 4, 4])
    assert agreed == [2, 1, 0], f"RANK-1: expected the least progress of each job over all ranks, got {agreed}"
    assert [call[:3] for call in calls] == [(axis, "MIN", "progress") for axis in ("tp", "cp", "pp")], (
        f"RANK-4: one packed reduction for each axis, got {calls}"
    )


def test_a_rank_without_jobs_makes_the_call_too(calls: list[Call]) -> None:
    agreed = agreement_of(calls, tp={}).acknowledged(0, [])
    assert agreed == ([], 0), f"expected no progress without jobs, got {agreed}"
    assert len(calls) == 1, f"RANK-2: expected one call also without jobs, got {calls}"


def test_ranks_with_different_numbers_of_jobs_raise(calls: list[Call]) -> None:
    agreement = agreement_of(calls, tp={"progress": [6, -6, 1]})
    with pytest.raises(InvariantError, match="RANK-1: the ranks diverged: they started from 6 to 7 jobs"):
        agreement.acknowledged(7, [1])


@pytest.mark.parametrize(("mine", "theirs", "over"), [(0, 0, False), (0, 1, True), (1, 0, True)])
def test_one_rank_that_ends_its_wait_ends_it_on_every_rank(
    calls: list[Call], mine: int, theirs: int, *, over: bool
) -> None:
    agreement = agreement_of(calls, tp={"prefetch end: a": [1 - theirs, 1]})
    agreed = agreement.ended_waits(agreement.votes([bool(mine), False]), "a")
    assert agreed == [int(not over), 1], f"RANK-1: expected the first wait over: {over}, the other not, got {agreed}"
    assert len(calls) == 1, f"expected one call about both waits, got {calls}"


@pytest.mark.parametrize("stage", [0, 1])
def test_the_first_stage_of_a_pipeline_decides_about_time(calls: list[Call], stage: int) -> None:
    votes = agreement_of(calls, stage, tp={}, pp={}).votes([True, False])
    assert votes == [stage, 1], (
        f"RANK-4: the time is over on stage {stage}: expected the votes {[stage, 1]}, got {votes}"
    )


def intersected(sets: Sequence[int], count: int) -> list[int]:
    """What each rank of a group agrees on when the ranks have these sets of so many bits."""
    sent: list[Call] = []
    for rank, bits in enumerate(sets):
        Agreement({"tp": Others("tp", sent, {}, rank, len(sets))}).acknowledged(0, [], bits, count)
    least = [min(column) for column in zip(*(call[3] for call in sent), strict=True)]
    groups = [Others("tp", [], {"progress": least}, rank, len(sets)) for rank in range(len(sets))]
    return [
        Agreement({"tp": group}).acknowledged(0, [], bits, count)[1] for group, bits in zip(groups, sets, strict=True)
    ]


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 1000])
def test_sets_are_intersected_over_all_ranks(count: int) -> None:
    whole, dice = (1 << count) - 1, Random(count)
    sets = [whole, dice.getrandbits(count) if count else 0, whole & ~1, dice.getrandbits(count + 1) & whole]
    expected = sets[0] & sets[1] & sets[2] & sets[3]
    agreed = intersected(sets, count)
    assert agreed == [expected] * 4, f"FETCH-7: of {count} bits expected {expected:b} on every rank, got {agreed}"


@pytest.mark.parametrize("lost", [0.2, 0.3])
def test_the_longest_length_that_all_ranks_have_is_found_at_once(lost: float) -> None:
    dice, empty, common = Random(52), 0, 0
    for _ in range(500):
        there = [{length for length in range(1, 65) if dice.random() >= lost} for _ in range(8)]
        expected = max(set.intersection(*there), default=0)
        agreed = intersected([sum(1 << (length - 1) for length in of_rank) for of_rank in there], 64)
        assert {one.bit_length() for one in agreed} == {expected}, f"FETCH-7: expected {expected}, got {agreed}"
        common, empty = common + bool(expected), empty + (min(map(max, there)) != expected)
    assert common > empty > 100, f"of {common} prefixes in common {empty} are not the least of the longest: too few"


def test_completed_pages_are_packed_by_name(calls: list[Call]) -> None:
    agreement = agreement_of(calls, tp={"completed": [4, 9, 1]})
    agreed = agreement.completed({"swa": 2, "kv": 8, "indexer": 5})
    expected = {"kv": 8, "indexer": 4, "swa": 1}
    assert agreed == expected, f"FETCH-7: expected {expected}, the least pages of each pool, got {agreed}"
    packed = [("tp", "MIN", "completed", (5, 8, 2))]
    assert calls == packed, f"FETCH-7: expected one MIN in the order indexer, kv, swa: {packed}, got {calls}"


def test_an_action_that_failed_on_another_rank_is_undone_here(calls: list[Call]) -> None:
    undone: list[int] = []
    agreement = agreement_of(calls, tp={"attach": [1]})
    with pytest.raises(RankError, match=r"rank 1 of 2 failed \(attach\)") as raised:
        agreement.together(lambda: 5, undone.append, "attach")
    assert raised.value.ranks == (1,), f"RANK-8: expected an error that names rank 1, got {raised.value.ranks}"
    assert undone == [5], f"expected the result 5 of this rank to be undone, got {undone}"


def test_an_action_that_fails_here_is_reported_to_the_other_ranks_and_raises(calls: list[Call]) -> None:
    agreement = agreement_of(calls, tp={})

    def fail() -> None:
        raise OSError("no such folder")

    with pytest.raises(OSError, match="no such folder"):
        agreement.together(fail, lambda _: None, "attach")
    reported = [("tp", "MIN", "attach", (0,))]
    assert calls == reported, f"RANK-2: expected the failing rank 0 to report itself: {reported}, got {calls}"


def test_every_is_true_if_it_is_true_on_all_ranks(calls: list[Call]) -> None:
    assert agreement_of(calls, tp={"clear": [2]}).every("clear", did=True), "expected True: it is true on both ranks"
    assert not agreement_of(calls, tp={"clear": [1]}).every("clear", did=True), "expected False: rank 1 did not"
    assert not agreement_of(calls, tp={"clear": [2]}).every("clear", did=False), "expected False: this rank did not"


def test_a_single_rank_decides_alone() -> None:
    outcomes = ALONE.acknowledged(3, [1, 0], 5, 3)
    assert outcomes == ([1, 0], 5), f"expected its own outcomes [1, 0] and its own set, got {outcomes}"
    assert ALONE.ended_waits(ALONE.votes([True]), "") == [0], "expected its own answer, 0"
    assert ALONE.every("clear", did=True), "expected its own success, True"
    assert ALONE.ranks == 1, f"expected 1 rank, got {ALONE.ranks}"


class Both:
    """A group of two ranks. `other`: the configuration of the other rank."""

    name, rank, size = "tp", 0, 2

    def __init__(self, other: CacheConfig) -> None:
        self._given: list[list[int]] = []
        calls: list[Call] = []
        recorder = Others("tp", calls, {})
        agreed_config(other, Agreement({"tp": recorder}))
        self._given = [list(call[3]) for call in calls]

    def reduce(self, values: Sequence[int], reduction: Reduction, purpose: str) -> list[int]:
        return [min(pair) for pair in zip(values, self._given.pop(0), strict=True)]

    def broadcast(self, values: Sequence[int], purpose: str) -> list[int]:
        raise AssertionError(f"expected no broadcast, got {purpose}")

    def barrier(self, purpose: str) -> None:
        raise AssertionError(f"expected no barrier, got {purpose}")


def opened(mine: CacheConfig, other: CacheConfig) -> CacheConfig:
    return agreed_config(mine, Agreement({"tp": Both(other)}))


def config_of(**changes: object) -> CacheConfig:
    return replace(stored_config(StopPolicy.TIMEOUT), **changes)  # type: ignore[arg-type]


def test_ranks_open_with_the_least_capacity_of_each_tier() -> None:
    mine = config_of()
    assert mine.host is not None, "expected a configuration with a host tier"
    page, full = mine.page_size, Component.FULL
    host = {name: tokens - page for name, tokens in mine.host.capacity_tokens.items() if name == full}
    other = config_of(
        capacity_tokens=mine.capacity_tokens,
        host=replace(mine.host, capacity_tokens={**mine.host.capacity_tokens, **host}),
    )
    agreed = opened(mine, other)
    assert agreed.host is not None, "expected the agreed configuration to keep its host tier"
    tokens = agreed.host.capacity_tokens[full]
    assert tokens == host[full], f"RANK-7: expected the {host[full]} host tokens of the smaller rank, got {tokens}"
    assert agreed.capacity_tokens == mine.capacity_tokens, (
        f"RANK-7: expected the device capacity that both have, {mine.capacity_tokens}, got {agreed.capacity_tokens}"
    )


def test_the_order_of_components_and_capacities_does_not_matter() -> None:
    mine = config_of()
    other = config_of(
        capacity_tokens=dict(reversed(list(mine.capacity_tokens.items()))), components=mine.components[::-1]
    )
    assert opened(mine, other) == mine, "FETCH-7: expected the same configuration for any order of its mappings"


@pytest.mark.parametrize(
    "changes", [{"events": True}, {"model": "sidecars"}, {"storage": "more"}], ids=["events", "sidecars", "limit"]
)
def test_ranks_with_different_configurations_are_refused(changes: dict[str, object]) -> None:
    mine = config_of()
    if "storage" in changes:
        assert mine.storage is not None, "expected a configuration with a storage tier"
        changes = {"storage": replace(mine.storage, limit_tokens=mine.storage.limit_tokens + mine.page_size)}
    elif "events" in changes:
        changes = {"events": not mine.events}
    else:
        changes = {"model": reshaped(mine.model, index_dim=0 if mine.sidecars else 4)}
    with pytest.raises(ConfigurationError, match="different configurations"):
        opened(mine, config_of(**changes))
