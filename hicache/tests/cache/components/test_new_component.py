"""COMP-1, COMP-3 from inside: what a component must bring, and that one more needs one registration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pytest

from hicache.cache import UnifiedRadixCache
from hicache.components.base import ComponentTier, Insertion, Tail, TreeComponent, Validator, has_value
from hicache.components.component_tree import REGISTRY
from hicache.config import CacheConfig
from hicache.errors import ConfigurationError
from hicache.events import EventLog
from hicache.keys import RadixKey
from hicache.metrics import Counters
from hicache.pools.device import DevicePools
from hicache.stacks import pool_specs
from hicache.testing.hybrid_model import TINY_MODEL
from hicache.tree.invariants import check_invariants
from hicache.tree.node import FULL, Node
from hicache.types import SHARED, InsertResult, Slots

SCALES = "scales"


class ScalesComponent(TreeComponent):
    """Scales of quantised KV, which the package does not have: they live in FULL's own slots.

    A node is valid with its scales. They need no allocation, as they have FULL's page numbers.
    """

    name: ClassVar[str] = SCALES

    def is_candidate(self, node: Node) -> bool:
        data = node.device[self.index]
        return not data.lock_ref and data.value is not None

    def is_host_candidate(self, node: Node) -> bool:
        data = node.host[self.index]
        return not data.lock_ref and data.value is not None

    def validator(self, *, device_only: bool) -> Validator:
        return has_value(self.index, device_only=device_only)

    def needed(self, node: Node) -> list[Tail]:
        return [(step, step.pages) for step in node.path()]

    def overlap(self, node: Node, insertion: Insertion) -> None:
        """A node that exists keeps what it has."""

    def commit(self, node: Node, insertion: Insertion) -> None:
        pages = node.device[FULL].value
        assert pages is not None, "FULL commits first"
        self.device.install(node, pages.copy())

    def install_loaded(self, node: Node, pages: Slots) -> bool:
        self.device.install(node, pages)
        return True

    def split(self, upper: Node, lower: Node) -> None:
        for tier in self.tiers:
            tier.split(upper, lower)
            tier.data(upper).lock_ref = tier.data(lower).lock_ref
            tier.queue.offer(upper)

    def acquire(self, node: Node, tier: ComponentTier) -> int:
        tier.inc_lock_ref(node)
        return 0

    def release(self, node: Node, mark: int, tier: ComponentTier) -> None:
        tier.dec_lock_ref(node)

    def touch(self, node: Node, now: int) -> None:
        node.last_access_time[self.index] = now

    def free_on_device(self, pages: Slots) -> None:
        """They are freed with FULL's slots."""


HOOKS = sorted(TreeComponent.__abstractmethods__)
DEFAULTS = ("cut_before_overlap", "leaf_cuts", "order", "refuses_leaf", "use_brings_eviction_nearer")
PAGE_SIZE = 2


@pytest.fixture
def config() -> CacheConfig:
    """FULL and the new component."""
    return CacheConfig(
        components=("full", SCALES),
        page_size=PAGE_SIZE,
        capacity_tokens={"full": 16 * PAGE_SIZE, SCALES: 16 * PAGE_SIZE},
        events=True,
        model=TINY_MODEL,
    )


@pytest.fixture
def cache(config: CacheConfig, monkeypatch: pytest.MonkeyPatch) -> Iterator[UnifiedRadixCache]:
    """A cache with the new component: one entry in the registry is all that it takes."""
    monkeypatch.setitem(REGISTRY, SCALES, ScalesComponent)
    opened = UnifiedRadixCache.open(config)
    yield opened
    check_invariants(opened.tree.radix.root)


def key_of(cache: UnifiedRadixCache, pages: list[int]) -> RadixKey:
    """A key of these pages."""
    return cache.key(np.repeat(np.array(pages, dtype=np.int32), PAGE_SIZE), SHARED)


def insert(cache: UnifiedRadixCache, pages: list[int]) -> InsertResult:
    """Cache a prompt that was computed alone."""
    slots = cache.allocate(len(pages) * PAGE_SIZE)
    assert slots is not None, f"there is room for {pages}"
    return cache.insert(key_of(cache, pages), slots, None, 0)


def hit_pages(cache: UnifiedRadixCache, pages: list[int]) -> int:
    """How many pages of a prompt hit."""
    return len(cache.match(key_of(cache, pages), chunked=False).device_indices) // PAGE_SIZE


@pytest.mark.parametrize("hook", HOOKS)
def test_a_component_that_lacks_a_hook_cannot_be_created(hook: str, config: CacheConfig) -> None:
    pools = DevicePools(config, pool_specs(config))
    arguments = (1, config, pools, None, EventLog(enabled=False), Counters())
    assert ScalesComponent(*arguments).name == SCALES, "with all hooks it can be created"
    incomplete = type("Incomplete", (ScalesComponent,), {hook: getattr(TreeComponent, hook)})
    with pytest.raises(TypeError, match=hook):
        incomplete(*arguments)


@pytest.mark.parametrize("hook", [*HOOKS, *DEFAULTS])
@pytest.mark.parametrize("component", [*REGISTRY.values(), ScalesComponent], ids=lambda component: component.name)
def test_a_hook_refuses_an_argument_that_it_does_not_know(component: type[TreeComponent], hook: str) -> None:
    with pytest.raises(TypeError, match="prefetch_token"):
        getattr(component, hook)(None, prefetch_token=1)


def test_an_unregistered_component_is_refused(config: CacheConfig) -> None:
    with pytest.raises(ConfigurationError, match=r"\['scales'\] are unknown; known: \['full', 'mamba', 'swa'\]"):
        UnifiedRadixCache.open(config)


def test_a_new_component_is_split_locked_and_evicted_like_the_others(cache: UnifiedRadixCache) -> None:
    insert(cache, [1, 2, 3])
    insert(cache, [1, 2, 4])
    assert [hit_pages(cache, pages) for pages in ([1, 2, 3], [1, 2, 4], [1, 2])] == [3, 3, 2], "both branches hit"
    receipt = cache.lock(cache.match(key_of(cache, [1, 2, 3]), chunked=False).device_anchor)
    assert cache.sizes()[SCALES].protected == PAGE_SIZE, f"one node is locked, sizes are {cache.sizes()}"
    freed = cache.evict("full", 100).freed
    assert freed["full"] == PAGE_SIZE, f"the branch without a lock goes with all it has, freed {freed}"
    cache.evict(SCALES, 100)
    held = [hit_pages(cache, pages) for pages in ([1, 2, 3], [1, 2])]
    assert held == [3, 0], f"the path has lost its scales, its locked end has them; hits {held}"
    cache.unlock(receipt)
    cache.evict(SCALES, 100)
    evictable = {name: size.evictable for name, size in cache.sizes().items()}
    assert evictable == {"full": 0, SCALES: 0}, f"the leaf and the tombstone above it go, evictable is {evictable}"


def test_a_new_component_can_refuse_a_match(cache: UnifiedRadixCache) -> None:
    node: Node = insert(cache, [1, 2]).node
    insert(cache, [1, 2, 3])
    cache.tree.by_name[SCALES].device.drop(node)
    assert hit_pages(cache, [1, 2]) == 0, "the node lacks what the new component needs"
    assert hit_pages(cache, [1, 2, 3]) == 3, "the longer prompt has it at its end"
