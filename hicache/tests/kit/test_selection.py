"""The configurations of a test follow from its clauses and from its own needs."""

from __future__ import annotations

from typing import Any

import pytest

from hicache.config import CacheConfig, EvictionPolicy, ExecutorKind, WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.configurations import ALL_POLICIES, USUAL_LAYOUTS, standard_configurations
from hicache.testing.contract import Checks, clause
from hicache.testing.plugin.selection import select, select_clauses
from hicache.tests.kit.flat_cache import FlatCache
from hicache.types import StopPolicy

STANDARD = standard_configurations(frozenset(Capability))
OF_DEVICE = [config for config in STANDARD if config.host is None]
OF_HOST = [config for config in STANDARD if config.host is not None and config.storage is None]
OF_STORAGE = [config for config in STANDARD if config.storage is not None]


class Everything(FlatCache):
    """Declares every capability."""

    capabilities = frozenset(Capability)


def _checks(*ids: str, **choices: Any) -> Checks:
    checks: Checks = clause(*ids, **choices).args[0]
    return checks


def _names(*ids: str, **choices: Any) -> list[str]:
    return [config.name for config in select(_checks(*ids, **choices), Everything, STANDARD).configurations]


def test_a_clause_that_needs_nothing_runs_over_all_of_lru() -> None:
    expected = [one.name for one in OF_DEVICE if one.policy is EvictionPolicy.LRU and not one.bigram]
    assert _names("KEY-1") == expected, f"expected {expected}, got {_names('KEY-1')}"


CHOICES = {
    "its clause needs SWA": (_names("MATCH-3"), lambda one: "swa" in one.components),
    "its clauses need SWA and MAMBA": (
        _names("MATCH-3", "MATCH-4"),
        lambda one: {"swa", "mamba"} <= set(one.components),
    ),
    "its clause needs an indexer": (_names("POOL-7"), lambda one: "indexer" in one.sidecars),
    "its clause needs pages": (_names("POOL-4"), lambda one: one.page_size > 1),
    "it asks for MAMBA": (_names("KEY-1", components=["mamba"]), lambda one: "mamba" in one.components),
    "it asks for an indexer": (_names("KEY-1", sidecars=["indexer"]), lambda one: "indexer" in one.sidecars),
    "it asks for page sizes": (_names("KEY-1", page_sizes=[3, 64]), lambda one: one.page_size in (3, 64)),
}


@pytest.mark.parametrize(("names", "fits"), CHOICES.values(), ids=CHOICES)
def test_a_test_runs_where(names: list[str], fits: Any) -> None:
    expected = [one.name for one in OF_DEVICE if one.policy is EvictionPolicy.LRU and not one.bigram and fits(one)]
    assert 0 < len(expected) < 24, f"the choice leaves some of 24, but not all: {expected}"
    assert names == expected, f"expected {expected}, got {names}"


def test_all_policies_are_run_when_asked_for() -> None:
    policies = {name.split("/")[2] for name in _names("EVICT-2", policies=ALL_POLICIES)}
    assert policies == {policy.value for policy in EvictionPolicy}, f"expected all seven, got {sorted(policies)}"


def test_bigram_keys_are_run_when_asked_for() -> None:
    names = _names("KEY-1", bigram=True)
    assert {"full/page1/lru", "full/page1/lru/bigram"} <= set(names), f"expected both kinds, got {names}"


def test_a_clause_of_bigram_keys_runs_over_nothing_else() -> None:
    expected = ["full/page1/lru/bigram", "full+swa/page16/lru/bigram"]
    assert _names("KEY-3") == expected, f"expected {expected}, got {_names('KEY-3')}"


def _waits(config: CacheConfig) -> bool:
    return config.host is not None and config.host.load_back_threshold_tokens > 0


def _has(config: CacheConfig, *choices: WritePolicy | ExecutorKind) -> bool:
    return config.host is not None and {config.host.write_policy, config.host.executor} >= set(choices)


def _is_plain(config: CacheConfig) -> bool:
    """Whether a test of the host tier gets this configuration without asking for it."""
    has_plain_layouts = config.host is not None and (config.layout, config.host.layout) == USUAL_LAYOUTS
    return has_plain_layouts and not _waits(config) and not _has(config, WritePolicy.WRITE_THROUGH_SELECTIVE)


OF_HOST_CHOICES = {
    "its clause is of the host tier": (_names("HOST-2"), _is_plain),
    "one of its clauses is of the host tier": (_names("KEY-1", "HOST-2"), _is_plain),
    "it needs a host tier itself": (_names("KEY-1", needs=[Capability.HOST]), _is_plain),
    "its clause needs steps": (
        _names("FLOW-2"),
        lambda one: _has(one, ExecutorKind.STEPPED) and _is_plain(one),
    ),
    "it asks for a write policy": (
        _names("HOST-2", write_policies=[WritePolicy.WRITE_BACK]),
        lambda one: _has(one, WritePolicy.WRITE_BACK),
    ),
    "it asks for other layouts": (
        _names("HOST-7", layouts=True, components=["mamba"], executors=[ExecutorKind.STEPPED], page_sizes=[16]),
        lambda one: (
            _has(one, ExecutorKind.STEPPED)
            and not _has(one, WritePolicy.WRITE_THROUGH_SELECTIVE)
            and "mamba" in one.components
            and one.page_size == 16
        ),
    ),
    "it asks for an executor": (
        _names("HOST-2", executors=[ExecutorKind.THREADED]),
        lambda one: _has(one, ExecutorKind.THREADED),
    ),
    "it asks for a threshold": (_names("HOST-5", load_back_threshold=True), _waits),
    "it asks for a component": (
        _names("HOST-2", components=["swa"]),
        lambda one: "swa" in one.components and _is_plain(one),
    ),
}


@pytest.mark.parametrize(("names", "fits"), OF_HOST_CHOICES.values(), ids=OF_HOST_CHOICES)
def test_a_test_runs_on_a_host_tier_where(names: list[str], fits: Any) -> None:
    expected = [one.name for one in OF_HOST if fits(one)]
    assert 0 < len(expected) < len(OF_HOST), f"the choice leaves some of {len(OF_HOST)}, but not all: {expected}"
    assert names == expected, f"expected {expected}, got {names}"


def _stops(config: CacheConfig, policy: StopPolicy) -> bool:
    return config.storage is not None and config.storage.stop_policy is policy


def _has_threshold(config: CacheConfig) -> bool:
    return config.storage is not None and config.storage.extra.prefetch_threshold > 0


OF_STORAGE_CHOICES = {
    "its clause is of the storage tier": (_names("FETCH-2"), lambda one: not _has_threshold(one)),
    "one of its clauses is of the storage tier": (
        _names("HOST-2", "FETCH-2"),
        lambda one: not _has_threshold(one),
    ),
    "it needs storage itself": (_names("KEY-1", needs=[Capability.STORAGE]), lambda one: not _has_threshold(one)),
    "it asks for a stop policy": (
        _names("FETCH-2", stop_policies=[StopPolicy.TIMEOUT]),
        lambda one: _stops(one, StopPolicy.TIMEOUT),
    ),
    "it asks for a threshold": (_names("FETCH-1", prefetch_threshold=True), _has_threshold),
}


@pytest.mark.parametrize(("names", "fits"), OF_STORAGE_CHOICES.values(), ids=OF_STORAGE_CHOICES)
def test_a_test_runs_on_storage_where(names: list[str], fits: Any) -> None:
    expected = [one.name for one in OF_STORAGE if fits(one)]
    assert 0 < len(expected) < len(OF_STORAGE), f"the choice leaves some of {len(OF_STORAGE)}, not all: {expected}"
    assert names == expected, f"expected {expected}, got {names}"


def _is_stepped(config: CacheConfig) -> bool:
    return config.storage is not None and config.storage.executor is ExecutorKind.STEPPED


class OnlyStorageSteps(FlatCache):
    """Declares STEPPED_STORAGE without STEPPED."""

    capabilities = frozenset(Capability) - {Capability.STEPPED}


def test_a_test_that_steps_storage_need_not_step_transfers() -> None:
    found = standard_configurations(OnlyStorageSteps.capabilities)
    wanted = [one.name for one in found if _is_stepped(one) and not _has_threshold(one)]
    assert wanted, "storage can be stepped without transfers"
    checks = _checks("FETCH-8", "FLOW-4", needs=[Capability.STEPPED_STORAGE])
    names = [one.name for one in select(checks, OnlyStorageSteps, found).configurations]
    assert names == wanted, f"expected stepped storage to be enough for FLOW-4: {wanted}, got {names}"
    both = _checks("FETCH-8", needs=[Capability.STEPPED, Capability.STEPPED_STORAGE])
    reason = select(both, OnlyStorageSteps, found).reason
    assert "STEPPED: " in reason, f"expected STEPPED to be needed when the test asks for it, got {reason!r}"


def test_a_run_without_a_fitting_host_tier_says_what_was_wanted() -> None:
    choices = {"write_policies": [WritePolicy.WRITE_BACK], "executors": [ExecutorKind.STREAMS]}
    selection = select(_checks("HOST-5", load_back_threshold=True, **choices), Everything, STANDARD)
    expected = (
        "no configuration of this run has HOST, write policy write_back, executor streams, a threshold for loads, "
        "policy lru"
    )
    assert selection.reason == expected, f"expected {expected!r}, got {selection.reason!r}"


@pytest.mark.parametrize(
    ("checks", "named"),
    [
        (_checks("MATCH-5"), "HOST: a host tier"),
        (_checks("KEY-1", "MATCH-5"), "HOST: a host tier"),
        (_checks("KEY-1", needs=[Capability.EVENTS]), "EVENTS: an event log: `events`"),
        (_checks("KEY-1", components=["swa"]), "SWA: the SWA component"),
        (_checks("KEY-1", sidecars=["indexer"]), "INDEXER: an indexer sidecar"),
    ],
)
def test_what_is_not_declared_is_the_reason(checks: Checks, named: str) -> None:
    selection = select(checks, FlatCache, STANDARD)
    assert not selection.configurations, f"expected none, got {selection.configurations}"
    expected = f"adapter FlatCache does not declare {named}"
    assert selection.reason.startswith(expected), f"expected {expected!r}, got {selection.reason!r}"


def test_a_run_without_a_fitting_configuration_says_what_was_wanted() -> None:
    selection = select(_checks("MATCH-3", page_sizes=[2, 4]), Everything, STANDARD)
    expected = "no configuration of this run has SWA, a page size of 2 or 4, policy lru"
    assert selection.reason == expected, f"expected {expected!r}, got {selection.reason!r}"


def test_a_test_without_configurations_stands_for_the_clauses_that_apply() -> None:
    selection = select_clauses(_checks("POOL-2", "MATCH-3", "POOL-3", "MATCH-5"), FlatCache)
    assert selection.clauses == ("POOL-2", "POOL-3"), f"FlatCache has neither SWA nor HOST, got {selection.clauses}"
    assert not selection.reason, f"two clauses apply, but it is skipped: {selection.reason}"


@pytest.mark.parametrize(
    ("checks", "named"),
    [
        (_checks("MATCH-5"), "HOST: a host tier"),
        (_checks("POOL-2", needs=[Capability.RANKS]), "RANKS: one cache on several ranks: `on_rank`"),
    ],
)
def test_a_test_without_a_clause_that_applies_is_skipped(checks: Checks, named: str) -> None:
    selection = select_clauses(checks, FlatCache)
    expected = f"adapter FlatCache does not declare {named}"
    assert selection.reason == expected, f"expected {expected!r}, got {selection.reason!r}"
    assert selection.clauses == checks.clauses, f"the report says which were skipped, got {selection.clauses}"


def test_a_test_of_the_suite_itself_runs_on_any_adapter() -> None:
    selection = select_clauses(_checks(), FlatCache)
    assert (selection.clauses, selection.reason) == ((), ""), f"expected no clause and no reason, got {selection}"
