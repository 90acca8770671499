"""COMP-1 to COMP-3, as far as an adapter shows them: which configurations are refused, and that all others work."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from hicache.config import SINGLE_RANK, CacheConfig, EvictionPolicy, Layout
from hicache.errors import ConfigurationError
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.configurations import ALL_POLICIES
from hicache.testing.contract import clause
from hicache.testing.hybrid_model import TINY_MODEL, reshaped

from .scenario import FULL, Scenario
from .snapshot_values import snapshot_values

CACHE: Mapping[str, Any] = {
    "components": ("full", "swa", "mamba"),
    "page_size": 4,
    "capacity_tokens": {"full": 32, "swa": 16, "mamba": 4},
    "sliding_window_size": 6,
    "mamba_chunk_size": 8,
    "policy": EvictionPolicy.LRU,
    "bigram": False,
    "events": False,
    "layout": Layout.LAYER_FIRST,
    "device": "cpu",
    "model": TINY_MODEL,
    "topology": SINGLE_RANK,
    "host": None,
    "storage": None,
}
"""The fields of a valid CacheConfig."""

INVALID: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "no component": ({"components": (), "capacity_tokens": {}}, "components"),
    "SWA without FULL": ({"components": ("swa",), "capacity_tokens": {"swa": 16}}, "full"),
    "MAMBA without FULL": ({"components": ("mamba",), "capacity_tokens": {"mamba": 4}}, "full"),
    "one component twice": ({"components": ("full", "swa", "mamba", "swa")}, "components"),
    "an unknown component": ({"components": ("full", "cross"), "capacity_tokens": {"full": 32, "cross": 8}}, "cross"),
    "SWA without a window": ({"sliding_window_size": None}, "sliding_window_size"),
    "a window of nothing": ({"sliding_window_size": 0}, "sliding_window_size"),
    "a negative window": ({"sliding_window_size": -4}, "sliding_window_size"),
    "MAMBA without a chunk": ({"mamba_chunk_size": None}, "mamba_chunk_size"),
    "a chunk of nothing": ({"mamba_chunk_size": 0}, "mamba_chunk_size"),
    "pages of nothing": ({"page_size": 0}, "page_size"),
    "a page size that is a bool": ({"page_size": True}, "page_size"),
    "a component without a capacity": ({"capacity_tokens": {"full": 32, "swa": 16}}, "capacity_tokens"),
    "a capacity for nobody": ({"components": ("full", "swa")}, "capacity_tokens"),
    "a capacity of nothing": ({"capacity_tokens": {"full": 32, "swa": 0, "mamba": 4}}, "capacity_tokens"),
    "a page that is cut off": ({"capacity_tokens": {"full": 32, "swa": 18, "mamba": 4}}, "capacity_tokens"),
    "no room for a state": ({"capacity_tokens": {"full": 32, "swa": 16, "mamba": 0}}, "capacity_tokens"),
    "a model that lacks the states of a component": ({"model": reshaped(TINY_MODEL, mamba_layers=0)}, "mamba"),
}
"""Changes that make the configuration invalid, and a word that the error must contain."""


@clause("COMP-2")
@pytest.mark.parametrize(("changes", "word"), INVALID.values(), ids=INVALID.keys())
def test_a_configuration_that_makes_no_sense_is_refused(
    adapter_type: type[CacheAdapter], changes: Mapping[str, Any], word: str
) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        adapter_type(CacheConfig(**{**CACHE, **changes}))
    assert word in str(refusal.value), f"COMP-2: expected {word!r} in the error for {changes}, got {refusal.value}"


VERBS_OF: Mapping[Capability, tuple[str, ...]] = {
    Capability.SWA: ("partners", "release_window"),
    Capability.MAMBA: ("allocate_state", "free_state", "fork_state"),
    Capability.BYTES: ("layers", "slot_bytes", "write", "read"),
    Capability.SNAPSHOT: ("snapshot",),
    Capability.SIZES: ("sizes",),
    Capability.EVENTS: ("events",),
    Capability.HASHES: ("page_hashes",),
    Capability.LAYER_WAITS: ("wait_layer",),
    Capability.REQUEST_LAYERS: ("wait_request_layer",),
    Capability.REQUESTS: ("admit", "extend", "checkpoint", "finish", "abort"),
}


@clause("COMP-1")
def test_an_adapter_implements_the_verbs_of_its_capabilities(adapter_type: type[CacheAdapter]) -> None:
    verbs = {
        verb for capability, names in VERBS_OF.items() if capability in adapter_type.capabilities for verb in names
    }
    lacking = {verb for verb in verbs if getattr(adapter_type, verb) is getattr(CacheAdapter, verb)}
    assert not lacking, (
        f"COMP-1: {adapter_type.__name__} declares capabilities that need {sorted(lacking)}, and lacks them"
    )


def calls(driver: Scenario) -> dict[str, Callable[..., object]]:
    """Verbs with all their arguments, over one cached page."""
    adapter, key = driver.adapter, driver.key_of([1])
    driver.put_pages([1])
    found = driver.match(key)
    insert = partial(adapter.insert, key, found.device_indices, window_start=0, state=None, priority=0)
    return {
        "match": partial(adapter.match, key, chunked=False),
        "insert": partial(insert, shared=driver.config.page_size),
        "lock": partial(adapter.lock, found.device_anchor),
        "unlock": partial(adapter.unlock, driver.lock(found.device_anchor)),
        "evict": partial(adapter.evict, FULL, 1),
        "allocate": partial(adapter.allocate, driver.config.page_size),
        "step": adapter.step,
    }


@clause("COMP-1", needs=[Capability.SNAPSHOT], bigram=True)
def test_a_verb_refuses_an_argument_that_it_does_not_know(driver: Scenario) -> None:
    verbs = calls(driver)
    before = snapshot_values(driver.snapshot())
    for name, verb in verbs.items():
        inspect.signature(verb).bind()
        with pytest.raises(TypeError):
            verb(prefetch_token=1)
        assert snapshot_values(driver.snapshot()) == before, (
            f"COMP-1: {name} with an unknown argument changed the cache"
        )


@clause("COMP-3", policies=ALL_POLICIES, bigram=True)
def test_every_combination_serves_the_same_verbs(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    driver.insert_fresh([1, 2, 3])
    receipt = driver.lock_pages([1, 2, 3])
    driver.put_pages([4])
    driver.evict_all()
    hits = driver.hit_pages([1, 2, 3]), driver.hit_pages([4])
    assert hits == (3, 0), f"COMP-3: a locked prompt of 3 pages and an unlocked one: expected hits (3, 0), got {hits}"
    driver.unlock(receipt)
    driver.reset()
    assert driver.hit_pages([1, 2, 3]) == 0, "COMP-3: expected no hit after a reset"


@clause("COMP-3", needs=[Capability.SIZES], page_sizes=[16])
def test_components_may_be_named_in_any_order(driver: Scenario) -> None:
    other = driver.open_variant(components=driver.config.components[::-1])
    for each in (driver, other):
        each.put_pages([1, 2])
        each.put_pages([1, 2, 3])
        each.evict_all(FULL)
        each.put_pages([4])
    sizes = [dict(each.adapter.sizes()) for each in (driver, other)]
    assert sizes[0] == sizes[1], f"COMP-3: expected the same sizes with components in another order, got {sizes}"
    other.adapter.close()
