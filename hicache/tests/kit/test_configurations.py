"""The standard configurations cover what an adapter declares; clauses and needs of a test select some of them."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from hicache.config import CacheConfig, EvictionPolicy, ExecutorKind, IoBackend, Layout, WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.configurations import (
    ALL_POLICIES,
    ON_MODEL,
    QUICK,
    USUAL_LAYOUTS,
    needs_of,
    quick_configurations,
    standard_configurations,
)
from hicache.testing.contract import Checks, clause
from hicache.testing.plugin.selection import select, select_clauses
from hicache.testing.storage.scripted import store_of
from hicache.tests.kit.hosted_cache import FlatCache
from hicache.types import StopPolicy

EVERYTHING = frozenset(Capability)
STANDARD = standard_configurations(EVERYTHING)
OF_DEVICE = [config for config in STANDARD if config.host is None]
OF_HOST = [config for config in STANDARD if config.host is not None and config.storage is None]
OF_STORAGE = [config for config in STANDARD if config.storage is not None]
OF_LRU = [one for one in OF_DEVICE if one.policy is EvictionPolicy.LRU and not one.bigram]

SEVERAL_SIDECARS = {"full+draft+second_index", "full+groups", "full+swa+mamba+indexer+scales+experts"}
KINDS = {"full", "full+swa", "full+mamba", "full+swa+mamba", "full+indexer", "full+swa+mamba+indexer"}


def kind(config: CacheConfig) -> str:
    return "+".join(config.components + config.sidecars)


def threshold(config: CacheConfig) -> int:
    return config.host.load_back_threshold_tokens if config.host else 0


def test_names_are_unique() -> None:
    names = [config.name for config in STANDARD]
    assert len(names) == len(set(names)) == 79, f"expected 79 names, each once, got {len(names)}: {sorted(names)}"
    assert len(OF_STORAGE) == 22, f"22 of them have storage, got {len(OF_STORAGE)}"
    assert len(OF_DEVICE) == 30, f"30 of them have no host tier, got {len(OF_DEVICE)}"


def test_the_product_covers_components_and_page_sizes() -> None:
    covered = {(kind(config), config.page_size) for config in OF_LRU}
    expected = {(kind, 16) for kind in KINDS | SEVERAL_SIDECARS} | {("full+swa", 3)}
    expected |= {(kind, size) for kind in ("full", "full+swa+mamba+indexer") for size in (1, 3, 64)}
    assert covered == expected, f"expected and covered differ in {sorted(expected ^ covered)}"


def test_windows_are_longer_shorter_and_unaligned() -> None:
    windows = [
        (config.sliding_window_size, config.page_size) for config in STANDARD if config.sliding_window_size is not None
    ]
    assert any(window % page for window, page in windows), f"no window ends inside a page: {windows}"
    assert any(window < page for window, page in windows), f"no window is shorter than a page: {windows}"
    assert any(window > page for window, page in windows), f"no window is longer than a page: {windows}"


@pytest.mark.parametrize("policy", EvictionPolicy)
def test_every_policy_runs_on_one_and_on_all_components(policy: EvictionPolicy) -> None:
    kinds = {config.components for config in STANDARD if config.policy is policy}
    expected = {("full",), ("full", "swa", "mamba")}
    assert kinds >= expected, f"{policy.value}: expected {expected}, got {kinds}"


def test_one_and_all_components_run_without_events_on_all_tiers() -> None:
    silent = [config for config in STANDARD if not config.events]
    assert {kind(config) for config in silent} == {"full", "full+swa+mamba+indexer"}, f"got {silent}"
    assert all(config.storage is not None for config in silent), f"expected all tiers, got {silent}"
    assert QUICK & {config.name for config in silent}, f"expected one of them in a quick run, got {silent}"
    names = [config.name for config in silent]
    assert not set(names) & set(_names("EVENT-1", needs=[Capability.STORAGE])), f"{names} have no events to be tested"


def test_a_cache_without_an_event_log_is_opened_without_events() -> None:
    found = standard_configurations(EVERYTHING - {Capability.EVENTS})
    assert [config.name for config in found] == [config.name for config in STANDARD], "expected the same configurations"
    assert not any(config.events for config in found), "EVENTS is not declared: expected no events in any of them"


def test_a_cache_that_declares_nothing_has_one_configuration() -> None:
    names = [config.name for config in standard_configurations(frozenset())]
    assert names == ["full/page1/lru"], f"expected the simplest configuration alone, got {names}"


@pytest.mark.parametrize(
    "lacking",
    [
        *(Capability.SWA, Capability.MAMBA, Capability.PAGED, Capability.BIGRAM),
        *(Capability.HOST, Capability.STORAGE, Capability.STEPPED, Capability.STEPPED_STORAGE),
    ],
)
def test_what_is_not_declared_is_not_configured(lacking: Capability) -> None:
    found = standard_configurations(EVERYTHING - {lacking})
    assert found, f"expected configurations without {lacking.name}, got none"
    wrong = [config.name for config in found if lacking in needs_of(config)]
    assert not wrong, f"{lacking.name} is not declared, but needed by {wrong}"


def test_a_quick_run_shows_every_kind_of_thing_once() -> None:
    quick = quick_configurations(EVERYTHING)
    assert {config.name for config in quick} == QUICK, f"names that do not exist: {QUICK ^ {one.name for one in quick}}"
    shown = frozenset[Capability]().union(*(needs_of(config) for config in quick))
    expected = frozenset().union(*(needs_of(config) for config in STANDARD))
    assert shown == expected, f"a quick run does not show {expected - shown}"


def test_every_kind_is_written_through_step_by_step() -> None:
    plain = [config for config in OF_HOST if config.name.endswith("write_through-page_first-stepped")]
    covered = {(kind(config), config.page_size) for config in plain if not threshold(config)}
    expected = {(kind, 16) for kind in ("full", "full+swa", "full+mamba", "full+swa+mamba+indexer", *SEVERAL_SIDECARS)}
    expected |= {("full", 1), ("full+swa+mamba+indexer", 1)}
    assert covered == expected, f"expected and covered differ in {sorted(expected ^ covered)}"


ALL = "full+swa+mamba+indexer"
RUN_ON = {WritePolicy: {"full", ALL}, ExecutorKind: {"full", "full+swa", "full+mamba", ALL}, StopPolicy: {ALL}}
"""The components that each choice of a kind must run on."""


@pytest.mark.parametrize("choice", [*WritePolicy, *ExecutorKind, *StopPolicy])
def test_every_choice_runs_on_the_components(choice: WritePolicy | ExecutorKind | StopPolicy) -> None:
    found = (
        [one for one in STANDARD if _stops(one, choice)]
        if isinstance(choice, StopPolicy)
        else ([one for one in OF_HOST if _has(one, choice)])
    )
    kinds, expected = {kind(config) for config in found}, RUN_ON[type(choice)]
    assert kinds >= expected, f"{choice.value}: expected {expected}, got {sorted(kinds)}"
    if isinstance(choice, ExecutorKind):
        devices, device = {config.device for config in found}, "cuda" if choice is ExecutorKind.STREAMS else "cpu"
        assert devices == {device}, f"{choice.value}: expected {device}, got {devices}"


def test_every_io_backend_runs_on_each_device() -> None:
    found = {(config.device, config.io_backend) for config in OF_HOST}
    assert found == set(product(("cpu", "cuda"), IoBackend)), f"expected both I/O backends on both devices, got {found}"
    modelled = {config.io_backend for config in STANDARD if config.name in ON_MODEL}
    assert modelled == set(IoBackend), f"expected both I/O backends on the model of CUDA, got {modelled}"


def test_every_layout_lies_on_each_tier_and_against_another() -> None:
    pairs = {(config.layout, config.host.layout) for config in OF_HOST if config.host}
    for tier, layouts in zip(("device", "host"), zip(*pairs, strict=True), strict=True):
        assert set(layouts) == set(Layout), f"{tier}: expected each of {list(Layout)}, got {sorted(set(layouts))}"
    assert all(device is not host for device, host in pairs), f"expected unlike layouts, got {sorted(pairs)}"


def test_a_load_is_below_the_threshold_in_some_configurations() -> None:
    found = {kind(config): threshold(config) / config.page_size for config in OF_HOST if threshold(config)}
    expected = {"full": 2, "full+swa+mamba+indexer": 2}
    assert found == expected, f"expected thresholds of two pages in {expected}, got {found}"


@pytest.mark.parametrize("config", OF_HOST, ids=lambda config: config.name)
def test_no_pool_is_as_large_on_the_host_as_on_the_device(config: CacheConfig) -> None:
    assert config.host, "chosen for it"
    shares = {name: config.host.capacity_tokens[name] / size for name, size in config.capacity_tokens.items()}
    assert all(share < 1 for share in shares.values()), f"expected smaller pools on the host, got {shares}"


def test_no_two_configurations_share_a_store() -> None:
    stores = [store_of(config) for config in OF_STORAGE]
    assert None not in stores, "each standard configuration has a store that a test can look into"
    assert len({id(store) for store in stores}) == len(stores), f"{len(stores)} configurations share a store"


class Everything(FlatCache):
    """Declares every capability."""

    capabilities = frozenset(Capability)


def _checks(*ids: str, **choices: Any) -> Checks:
    checks: Checks = clause(*ids, **choices).args[0]
    return checks


def _names(*ids: str, **choices: Any) -> list[str]:
    return [config.name for config in select(_checks(*ids, **choices), Everything, STANDARD).configurations]


def test_a_clause_that_needs_nothing_runs_over_all_of_lru() -> None:
    expected = [one.name for one in OF_LRU]
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
    return threshold(config) > 0


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


ROWS = [
    (pool, *row)
    for pool, rows in ((OF_LRU, CHOICES), (OF_HOST, OF_HOST_CHOICES), (OF_STORAGE, OF_STORAGE_CHOICES))
    for row in rows.values()
]


@pytest.mark.parametrize(
    ("pool", "names", "fits"),
    ROWS,
    ids=[*CHOICES, *(f"{one} on a host" for one in OF_HOST_CHOICES), *OF_STORAGE_CHOICES],
)
def test_a_test_runs_where(pool: list[CacheConfig], names: list[str], fits: Any) -> None:
    expected = [one.name for one in pool if fits(one)]
    assert 0 < len(expected) < len(pool), f"the choice leaves some of {len(pool)}, but not all: {expected}"
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
