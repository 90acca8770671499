"""SEC-3, KEY-2: another salt finds nothing of a prompt, on either tier or in a transfer between them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import SHARED, MatchResult, Namespace, TransferKind

from .scenario import evict_all, evict_host, key_of, put_on_both, put_on_host, tier_hits
from .transfers import STAGES, Stage, queue_load, transfer_views
from .tree_view import residency

WHOLE = (1, 2, 3)
OTHERS = (
    Namespace(lora=None, salt="other", tenant=None),
    Namespace(lora="other", salt=None, tenant=None),
    Namespace(lora=None, salt=None, tenant="other"),
    Namespace(lora=None, salt="", tenant=None),
)
HOST = [Capability.HOST, Capability.NAMESPACES]


def require_nothing(found: MatchResult, namespace: Namespace) -> None:
    """A match found nothing on either tier."""
    hits = len(found.device_indices), found.host_hit_length, *found.component_host_hit_lengths.values()
    assert not any(hits), f"SEC-3: another salt, {namespace}, sees hits on the device and the host: {hits}"


@clause("SEC-3", "KEY-2", needs=HOST, page_sizes=[16])
@pytest.mark.parametrize("scene", [put_on_both, put_on_host], ids=["on both tiers", "on the host"])
def test_another_salt_finds_nothing_on_either_tier(driver: Driver, scene: Callable[..., None]) -> None:
    scene(driver, WHOLE)
    for namespace in OTHERS:
        key = driver.key(driver.prompt(WHOLE), namespace)
        found = driver.match(key)
        require_nothing(found, namespace)
        assert driver.load_back(key, found) is None, f"SEC-3: something was loaded for {namespace}"
    assert sum(tier_hits(driver, WHOLE)) == 3, (
        f"SEC-3: with the same salt all of it is there: expected 3, got {tier_hits(driver, WHOLE)}"
    )


@clause("SEC-3", "FLOW-6", needs=[Capability.NAMESPACES], page_sizes=[16])
@STAGES
def test_another_salt_finds_nothing_of_a_load_under_way(driver: Driver, stage: Stage) -> None:
    put_on_host(driver, WHOLE)
    load = queue_load(driver, WHOLE)
    stage(driver, TransferKind.LOAD)
    for namespace in OTHERS:
        key = driver.key(driver.prompt(WHOLE), namespace)
        require_nothing(driver.match(key), namespace)
        driver.put(key)
        under_way = len(transfer_views(driver, TransferKind.LOAD))
        driver.match(key)
        assert len(transfer_views(driver, TransferKind.LOAD)) == under_way, f"SEC-3: {namespace} changed what is loaded"
    driver.drain()
    assert driver.claim(load.ticket) is not None, "FLOW-10: nothing failed: expected the slots of the load, got None"


@clause("KEY-2", "SEC-3", needs=HOST, page_sizes=[16])
def test_each_namespace_has_its_own_host_copies(driver: Driver) -> None:
    other = driver.key(driver.prompt(WHOLE), OTHERS[0])
    put_on_host(driver, WHOLE)
    for _ in range(2):
        driver.put(other)
    driver.drain()
    evict_all(driver)
    for namespace in (SHARED, OTHERS[0]):
        there = tier_hits(driver, WHOLE, namespace)
        assert there == (0, 3), f"KEY-2: three pages of {namespace} are on the host: expected (0, 3), got {there}"
    driver.load(other)
    found = tier_hits(driver, WHOLE, OTHERS[0]), tier_hits(driver, WHOLE)
    assert found == ((3, 0), (0, 3)), f"KEY-2: only {OTHERS[0]} was loaded, got {found}"
    receipt = driver.lock_host(driver.match(key_of(driver, WHOLE), chunked=True).best_match)
    evict_all(driver)
    evict_host(driver)
    assert not residency(driver.snapshot(), driver.config), "EVICT-1: nothing is locked on the device"
    found = tier_hits(driver, WHOLE), tier_hits(driver, WHOLE, OTHERS[0])
    assert found == ((0, 3), (0, 0)), f"KEY-2: a host lock of one namespace holds no other, got {found}"
    driver.unlock_host(receipt)


@clause("SEC-2", needs=[Capability.HOST], page_sizes=[16])
def test_prompts_whose_hashes_collide_do_not_find_each_other_on_the_host(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = hashlib.sha256
    monkeypatch.setattr(hashlib, "sha256", lambda _=b"", **__: real(b"the same for all"))
    put_on_host(driver, WHOLE)
    for prompt in ([4, 5, 6], [4, 2, 3], [2, 1, 3]):
        assert tier_hits(driver, prompt) == (0, 0), (
            f"SEC-2: {prompt} found {tier_hits(driver, prompt)} of another prompt"
        )
    put_on_host(driver, [4, 2, 3])
    found = tier_hits(driver, WHOLE), tier_hits(driver, [4, 2, 3])
    assert found == ((0, 3), (0, 3)), f"SEC-2: each finds its own three pages, got {found}"
