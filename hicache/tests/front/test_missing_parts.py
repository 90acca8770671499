"""Verbs of a tier or a component that a cache does not have say how to open a cache that has it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache import HostConfig, UnifiedRadixCache, open_cache
from hicache.errors import ConfigurationError
from hicache.tests.front.prompts import PAGE, PROMPT, insert_prompt

CAPACITY = 8 * PAGE

Verb = Callable[[UnifiedRadixCache], object]


HOST_VERBS: dict[str, Verb] = {
    "load_back": lambda cache: cache.load_back(cache.match(cache.key(PROMPT)).best_match),
    "load_phase": lambda cache: cache.load_phase(None),  # type: ignore[arg-type]
    "layers_done": lambda cache: cache.layers_done(None),  # type: ignore[arg-type]
    "wait_layer": lambda cache: cache.wait_layer(None, 0),  # type: ignore[arg-type]
    "claim": lambda cache: cache.claim(None),  # type: ignore[arg-type]
    "abandon": lambda cache: cache.abandon(None),  # type: ignore[arg-type]
    "lock_host": lambda cache: cache.lock_host(cache.match(cache.key(PROMPT)).best_match),
    "unlock_host": lambda cache: cache.unlock_host(cache.lock(cache.match(cache.key(PROMPT)).device_anchor)),
    "evict_host": lambda cache: cache.evict_host("full", PAGE),
    "host_sizes": lambda cache: cache.host_sizes(),
}

STORAGE_VERBS: dict[str, Verb] = {
    "prefetch": lambda cache: cache.prefetch(cache.key(PROMPT)),
    "check_prefetch": lambda cache: cache.check_prefetch(None),  # type: ignore[arg-type]
    "abort_prefetch": lambda cache: cache.abort_prefetch(None),  # type: ignore[arg-type]
    "attach_storage": lambda cache: cache.attach_storage(),
    "detach_storage": lambda cache: cache.detach_storage(),
    "clear_storage": lambda cache: cache.clear_storage(),
}

COMPONENT_VERBS: dict[str, tuple[Verb, str]] = {
    "evict": (lambda cache: cache.evict("swa", PAGE), "swa"),
    "evict_host": (lambda cache: cache.evict_host("swa", PAGE), "swa"),
    "allocate_state": (lambda cache: cache.allocate_state(), "mamba"),
    "free_state": (lambda cache: cache.free_state(1), "mamba"),
    "fork_state": (lambda cache: cache.fork_state(cache.match(cache.key(PROMPT)).device_anchor), "mamba"),
    "state_of": (lambda cache: cache.state_of(cache.match(cache.key(PROMPT)).device_anchor), "mamba"),
}


@pytest.mark.parametrize("verb", HOST_VERBS.values(), ids=HOST_VERBS)
def test_a_verb_of_the_host_tier_needs_one(verb: Verb) -> None:
    with open_cache(page_size=PAGE, capacity_tokens=CAPACITY) as cache:
        insert_prompt(cache)
        with pytest.raises(ConfigurationError, match=r"has no host tier: open the cache with host=HostConfig\("):
            verb(cache)


@pytest.mark.parametrize("verb", STORAGE_VERBS.values(), ids=STORAGE_VERBS)
@pytest.mark.parametrize("host", [None, HostConfig({"full": CAPACITY})], ids=["device", "host"])
def test_a_verb_of_the_storage_tier_needs_one(verb: Verb, host: HostConfig | None) -> None:
    expected = r"has no storage tier: open the cache with storage=StorageConfig\("
    with (
        open_cache(page_size=PAGE, capacity_tokens=CAPACITY, host=host) as cache,
        pytest.raises(ConfigurationError, match=expected),
    ):
        verb(cache)


@pytest.mark.parametrize(("verb", "component"), COMPONENT_VERBS.values(), ids=COMPONENT_VERBS)
def test_a_verb_of_a_component_needs_it(verb: Verb, component: str) -> None:
    with open_cache(page_size=PAGE, capacity_tokens=CAPACITY, host=HostConfig({"full": CAPACITY})) as cache:
        insert_prompt(cache)
        expected = rf"has no component '{component}': open the cache with components=\('full', '{component}'\)"
        with pytest.raises(ConfigurationError, match=expected):
            verb(cache)


def test_steps_of_a_cache_without_tiers_do_nothing() -> None:
    with open_cache(page_size=PAGE, capacity_tokens=CAPACITY) as cache:
        insert_prompt(cache)
        cache.step()
        cache.drain()
        assert cache.is_idle, "nothing is under way between tiers that are not there"
