"""The standard configurations cover what an adapter declares, and nothing else."""

from __future__ import annotations

import pytest

from hicache.config import EvictionPolicy
from hicache.testing.adapter import Capability
from hicache.testing.configurations import QUICK, needs_of, quick_configurations, standard_configurations

EVERYTHING = frozenset(Capability)


def test_names_are_unique() -> None:
    names = [config.name for config in standard_configurations(EVERYTHING)]
    assert len(names) == len(set(names)) == 39, f"expected 39 names, each once, got {len(names)}: {sorted(names)}"


def test_the_product_covers_components_and_page_sizes() -> None:
    covered = {
        ("+".join(config.components + config.sidecars), config.page_size)
        for config in standard_configurations(EVERYTHING)
        if config.policy is EvictionPolicy.LRU and not config.bigram
    }
    kinds = {"full", "full+swa", "full+mamba", "full+swa+mamba", "full+indexer", "full+swa+mamba+indexer"}
    expected = {(kind, page_size) for kind in kinds for page_size in (1, 3, 16, 64)}
    assert covered == expected, f"expected and covered differ in {sorted(expected ^ covered)}"


def test_windows_are_awkward() -> None:
    windows = [
        (config.sliding_window_size, config.page_size)
        for config in standard_configurations(EVERYTHING)
        if config.sliding_window_size is not None
    ]
    assert any(window % page for window, page in windows), f"no window ends inside a page: {windows}"
    assert any(window < page for window, page in windows), f"no window is shorter than a page: {windows}"
    assert any(window > page for window, page in windows), f"no window is longer than a page: {windows}"


@pytest.mark.parametrize("policy", EvictionPolicy)
def test_every_policy_runs_on_one_and_on_all_components(policy: EvictionPolicy) -> None:
    kinds = {config.components for config in standard_configurations(EVERYTHING) if config.policy is policy}
    expected = {("full",), ("full", "swa", "mamba")}
    assert kinds >= expected, f"{policy.value}: expected {expected}, got {kinds}"


def test_a_cache_that_declares_nothing_has_one_configuration() -> None:
    names = [config.name for config in standard_configurations(frozenset())]
    assert names == ["full/page1/lru"], f"expected the simplest configuration alone, got {names}"


@pytest.mark.parametrize("lacking", [Capability.SWA, Capability.MAMBA, Capability.PAGED, Capability.BIGRAM])
def test_what_is_not_declared_is_not_configured(lacking: Capability) -> None:
    found = standard_configurations(EVERYTHING - {lacking})
    assert found, f"without {lacking.name} something is left"
    wrong = [config.name for config in found if lacking in needs_of(config)]
    assert not wrong, f"{lacking.name} is not declared, but needed by {wrong}"


def test_a_quick_run_shows_every_kind_of_thing_once() -> None:
    quick = quick_configurations(EVERYTHING)
    assert {config.name for config in quick} == QUICK, f"names that do not exist: {QUICK ^ {one.name for one in quick}}"
    shown = frozenset[Capability]().union(*(needs_of(config) for config in quick))
    expected = frozenset().union(*(needs_of(config) for config in standard_configurations(EVERYTHING)))
    assert shown == expected, f"a quick run does not show {expected - shown}"
