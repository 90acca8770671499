"""Agreement: what is called, over which groups and in which order, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from hicache.config import CacheConfig
from hicache.errors import ConfigurationError, InvariantError, RankError
from hicache.parallel.agree import ALONE, Agreement, agreed_config
from hicache.parallel.group import Reduction
from hicache.testing.hybrid_model import reshaped
from hicache.tests.tiers.stored_cache import stored_config
from hicache.types import Component, StopPolicy

Call = tuple[str, str, str, tuple[int, ...]]


class Others:
    """The group of one axis, the other ranks of which give what the test says, by purpose; or what this rank gives."""

    def __init__(self, name: str, calls: list[Call], given: Mapping[str, Sequence[int]], rank: int = 0) -> None:
        self.name = name
        self.rank = rank
        self.size = 2
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
        raise AssertionError(f"nothing waits at a barrier ({purpose})")


@pytest.fixture
def calls() -> list[Call]:
    """What was called."""
    return []


def agreement_of(calls: list[Call], rank: int = 0, **given: Mapping[str, Sequence[int]]) -> Agreement:
    return Agreement({axis: Others(axis, calls, theirs, rank) for axis, theirs in given.items()})


def test_progress_is_one_reduction_over_every_axis_that_shares_the_tree(calls: list[Call]) -> None:
    agreement = agreement_of(
        calls, pp={"progress": [7, -7, 3, 9, 0]}, cp={"progress": [7, -7, 2, 9, 5]}, tp={"progress": [7, -7, 9, 1, 5]}
    )
    assert agreement.acknowledged(7, [4, 4, 4]) == [2, 1, 0], "RANK-1: of each job what every rank has"
    assert [call[:3] for call in calls] == [(axis, "MIN", "progress") for axis in ("tp", "cp", "pp")], (
        f"RANK-4: one packed reduction for each axis, got {calls}"
    )


def test_a_rank_with_nothing_to_do_calls_as_well(calls: list[Call]) -> None:
    assert list(agreement_of(calls, tp={}).acknowledged(0, [])) == [], "nothing has ended"
    assert len(calls) == 1, f"RANK-2: the call is made whatever the rank has, got {calls}"


def test_ranks_that_have_parted_are_told(calls: list[Call]) -> None:
    agreement = agreement_of(calls, tp={"progress": [6, -6, 1]})
    with pytest.raises(InvariantError, match="RANK-1: the ranks diverged: they started from 6 to 7 jobs"):
        agreement.acknowledged(7, [1])


@pytest.mark.parametrize(("mine", "theirs", "over"), [(0, 0, False), (0, 1, True), (1, 0, True)])
def test_one_rank_that_waits_no_longer_ends_the_wait(calls: list[Call], mine: int, theirs: int, *, over: bool) -> None:
    agreement = agreement_of(calls, tp={"prefetch end": [theirs]})
    assert agreement.is_over(is_over=bool(mine)) is over, "RANK-1: MAX over the states"


@pytest.mark.parametrize("told", [0, 1])
def test_the_first_stage_of_a_pipeline_decides_about_time(calls: list[Call], told: int) -> None:
    agreement = agreement_of(calls, 1, tp={"prefetch end": [1]}, pp={"prefetch end": [told]})
    assert agreement.is_over(is_over=True) is bool(told), "RANK-4: a later stage receives, whatever its own clock says"
    assert [call[:2] for call in calls] == [("tp", "MAX"), ("pp", "BROADCAST")], f"got {calls}"


def test_completed_pages_are_packed_by_name(calls: list[Call]) -> None:
    agreement = agreement_of(calls, tp={"completed": [4, 9, 1]})
    agreed = agreement.completed({"swa": 2, "kv": 8, "indexer": 5})
    assert agreed == {"kv": 8, "indexer": 4, "swa": 1}, f"FETCH-7: each pool with its own, got {agreed}"
    assert calls == [("tp", "MIN", "completed", (5, 8, 2))], "FETCH-7: one MIN, indexer before kv before swa"


def test_what_one_rank_could_not_do_no_rank_has_done(calls: list[Call]) -> None:
    undone: list[int] = []
    agreement = agreement_of(calls, tp={"attach": [1]})
    with pytest.raises(RankError, match=r"rank 1 of 2 failed \(attach\)") as raised:
        agreement.together(lambda: 5, undone.append, "attach")
    assert raised.value.ranks == (1,), "RANK-8: the error names the rank"
    assert undone == [5], "what was done here is undone"


def test_what_fails_here_is_told_and_raised(calls: list[Call]) -> None:
    agreement = agreement_of(calls, tp={})

    def fail() -> None:
        raise OSError("no such folder")

    with pytest.raises(OSError, match="no such folder"):
        agreement.together(fail, lambda _: None, "attach")
    assert calls == [("tp", "MIN", "attach", (0,))], "RANK-2: the failing rank takes part, and names itself"


def test_every_rank_must_have_done_it(calls: list[Call]) -> None:
    assert agreement_of(calls, tp={"clear": [2]}).every("clear", did=True), "both did"
    assert not agreement_of(calls, tp={"clear": [1]}).every("clear", did=True), "the other did not"
    assert not agreement_of(calls, tp={"clear": [2]}).every("clear", did=False), "this one did not"


def test_one_rank_agrees_with_itself_and_calls_nothing() -> None:
    assert list(ALONE.acknowledged(3, [1, 0])) == [1, 0], "its own outcomes"
    assert ALONE.is_over(is_over=True), "its own clock"
    assert ALONE.every("clear", did=True), "its own success"
    assert ALONE.ranks == 1, "one rank"


class Both:
    """A group of two ranks of which the other has a configuration of its own."""

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
        raise AssertionError(f"nobody decides alone ({purpose})")

    def barrier(self, purpose: str) -> None:
        raise AssertionError(f"nothing waits at a barrier ({purpose})")


def opened(mine: CacheConfig, other: CacheConfig) -> CacheConfig:
    return agreed_config(mine, Agreement({"tp": Both(other)}))


def config_of(**changes: object) -> CacheConfig:
    return replace(stored_config(StopPolicy.TIMEOUT), **changes)  # type: ignore[arg-type]


def test_ranks_open_with_the_least_capacity_of_each_tier() -> None:
    mine = config_of()
    assert mine.host is not None, "it has a host tier"
    page, full = mine.page_size, Component.FULL
    host = {name: tokens - page for name, tokens in mine.host.capacity_tokens.items() if name == full}
    other = config_of(
        capacity_tokens=mine.capacity_tokens,
        host=replace(mine.host, capacity_tokens={**mine.host.capacity_tokens, **host}),
    )
    agreed = opened(mine, other)
    assert agreed.host is not None, "it still has one"
    assert agreed.host.capacity_tokens[full] == host[full], "RANK-7: what the smaller rank can serve"
    assert agreed.capacity_tokens == mine.capacity_tokens, "RANK-7: the device has the same on both"


def test_the_order_of_tables_does_not_matter() -> None:
    mine = config_of()
    other = config_of(
        capacity_tokens=dict(reversed(list(mine.capacity_tokens.items()))), components=mine.components[::-1]
    )
    assert opened(mine, other) == mine, "FETCH-7: the order is by name, and not by a dictionary"


@pytest.mark.parametrize(
    "changes", [{"events": True}, {"model": "sidecars"}, {"storage": "more"}], ids=["events", "sidecars", "limit"]
)
def test_ranks_with_other_rules_are_refused(changes: dict[str, object]) -> None:
    mine = config_of()
    if "storage" in changes:
        assert mine.storage is not None, "it has a storage tier"
        changes = {"storage": replace(mine.storage, limit_tokens=mine.storage.limit_tokens + mine.page_size)}
    elif "events" in changes:
        changes = {"events": not mine.events}
    else:
        changes = {"model": reshaped(mine.model, index_dim=0 if mine.sidecars else 4)}
    with pytest.raises(ConfigurationError, match="different configurations"):
        opened(mine, config_of(**changes))
