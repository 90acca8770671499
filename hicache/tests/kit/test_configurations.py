"""The standard configurations cover what an adapter declares, and nothing else."""

from __future__ import annotations

import pytest

from hicache.config import CacheConfig, EvictionPolicy, ExecutorKind, Layout, WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.configurations import QUICK, needs_of, quick_configurations, standard_configurations
from hicache.testing.storage.scripted import store_of
from hicache.types import StopPolicy

EVERYTHING = frozenset(Capability)
STANDARD = standard_configurations(EVERYTHING)
OF_DEVICE = [config for config in STANDARD if config.host is None]
OF_HOST = [config for config in STANDARD if config.host is not None and config.storage is None]
OF_STORAGE = [config for config in STANDARD if config.storage is not None]

KINDS = {"full", "full+swa", "full+mamba", "full+swa+mamba", "full+indexer", "full+swa+mamba+indexer"}


def kind(config: CacheConfig) -> str:
    return "+".join(config.components + config.sidecars)


def test_names_are_unique() -> None:
    names = [config.name for config in STANDARD]
    assert len(names) == len(set(names)) == 63, f"expected 63 names, each once, got {len(names)}: {sorted(names)}"
    assert len(OF_STORAGE) == 13, f"13 of them have storage, got {len(OF_STORAGE)}"
    assert len(OF_DEVICE) == 27, f"27 of them have no host tier, got {len(OF_DEVICE)}"


def test_the_product_covers_components_and_page_sizes() -> None:
    covered = {
        (kind(config), config.page_size)
        for config in OF_DEVICE
        if config.policy is EvictionPolicy.LRU and not config.bigram
    }
    expected = {(kind, 16) for kind in KINDS} | {("full+swa", 3)}
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
    expected = {(kind, 16) for kind in ("full", "full+swa", "full+mamba", "full+swa+mamba+indexer")}
    expected |= {("full", 1), ("full+swa+mamba+indexer", 1)}
    assert covered == expected, f"expected and covered differ in {sorted(expected ^ covered)}"


@pytest.mark.parametrize("policy", WritePolicy)
def test_every_write_policy_runs_on_one_and_on_all_components(policy: WritePolicy) -> None:
    kinds = {kind(config) for config in OF_HOST if config.host and config.host.write_policy is policy}
    assert kinds >= {"full", "full+swa+mamba+indexer"}, f"{policy.value}: got {sorted(kinds)}"


@pytest.mark.parametrize("executor", ExecutorKind)
def test_every_executor_runs_on_one_and_on_all_components(executor: ExecutorKind) -> None:
    found = [config for config in OF_HOST if config.host and config.host.executor is executor]
    kinds = {kind(config) for config in found}
    assert kinds >= {"full", "full+swa", "full+mamba", "full+swa+mamba+indexer"}, f"got {sorted(kinds)}"
    devices = {config.device for config in found}
    expected = {"cuda"} if executor is ExecutorKind.STREAMS else {"cpu"}
    assert devices == expected, f"{executor.value}: expected {expected}, got {devices}"


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


@pytest.mark.parametrize("policy", StopPolicy)
def test_every_stop_policy_runs_on_all_components(policy: StopPolicy) -> None:
    kinds = {kind(config) for config in OF_STORAGE if config.storage and config.storage.stop_policy is policy}
    assert "full+swa+mamba+indexer" in kinds, f"{policy.value}: got {sorted(kinds)}"


def test_no_two_configurations_share_a_store() -> None:
    stores = [store_of(config) for config in OF_STORAGE]
    assert None not in stores, "each standard configuration has a store that a test can look into"
    assert len({id(store) for store in stores}) == len(stores), f"{len(stores)} configurations share a store"


def threshold(config: CacheConfig) -> int:
    return config.host.load_back_threshold_tokens if config.host else 0
