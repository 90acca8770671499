"""What an engine with allocators of its own needs of the cache: freed slots, slots of a path, backups, thresholds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hicache import CacheConfig, ExecutorKind, HostConfig, Namespace, UnifiedRadixCache, WritePolicy, open_cache
from hicache.errors import ArgumentError, ConfigurationError, StaleHandleError
from hicache.types import InsertResult, Slots

PAGE = 4
SIZES = {"full": 64, "swa": 64, "mamba": 8}


def config_of(*components: str, **options: Any) -> CacheConfig:
    return CacheConfig(
        {name: SIZES[name] for name in components},
        page_size=PAGE,
        components=components,
        sliding_window_size=2 * PAGE if "swa" in components else None,
        mamba_chunk_size=PAGE if "mamba" in components else None,
        **options,
    )


def tiered(policy: WritePolicy = WritePolicy.WRITE_THROUGH, **options: Any) -> CacheConfig:
    return config_of(
        "full", host=HostConfig({"full": 64}, write_policy=policy, executor=ExecutorKind.STEPPED, **options)
    )


def grow(cache: UnifiedRadixCache, pages: int, first: int = 0) -> tuple[Slots, InsertResult]:
    """Insert a prompt of so many pages; the slots it was given, and the result."""
    slots = cache.allocate(pages * PAGE)
    assert slots is not None, f"there is room for {pages} pages"
    state = cache.allocate_state() if "mamba" in cache.config.components else None
    result = cache.insert(cache.key([*range(first, first + pages * PAGE)]), slots, state)
    return slots, result


def sorted_freed(cache: UnifiedRadixCache) -> dict[str, list[int]]:
    return {name: sorted(slots.tolist()) for name, slots in cache.take_freed().items()}


def test_freed_slots_are_those_of_duplicates_and_of_evicted_nodes() -> None:
    with open_cache(config_of("full", "mamba")) as cache:
        assert sorted_freed(cache) == {"full": [], "mamba": []}, "nothing is noted before the first call"
        kept, result = grow(cache, 2)
        state = cache.slots_to(result.node, "mamba")
        twice, _ = grow(cache, 2)
        assert sorted_freed(cache)["full"] == twice.tolist(), f"the duplicates {twice.tolist()} became free"
        cache.evict("full", 2 * PAGE)
        freed = sorted_freed(cache)
    assert freed == {"full": kept.tolist(), "mamba": state.tolist()}, f"all of the evicted node, got {freed}"


def test_slots_that_a_caller_frees_are_named_once() -> None:
    with open_cache(config_of("full", "swa")) as cache:
        cache.take_freed()
        slots = cache.allocate(2 * PAGE)
        assert slots is not None, "the cache is empty"
        cache.release_window(slots[:PAGE])
        assert len(cache.take_freed()["swa"]) == PAGE, "the partners of one page became free"
        cache.free(slots)
        freed = sorted_freed(cache)
    assert freed["full"] == slots.tolist(), f"expected {slots.tolist()}, got {freed}"
    assert len(freed["swa"]) == PAGE, f"the partners of the other page became free, got {freed}"


def test_the_slots_of_a_path_by_component() -> None:
    with open_cache(config_of("full", "swa")) as cache:
        slots, result = grow(cache, 4)
        full, window = cache.slots_to(result.node), cache.slots_to(result.node, "swa")
        cache.evict("swa", PAGE)
        left = cache.slots_to(result.node, "swa")
    assert full.tolist() == slots.tolist(), f"expected {slots.tolist()}, got {full.tolist()}"
    assert (window > 0).all(), f"each slot has a partner, got {window.tolist()}"
    assert (left == 0).any(), f"an evicted window has no slots, got {left.tolist()}"
    assert set(left.tolist()) - {0} <= set(window.tolist()), f"others stay, got {left.tolist()}"


def test_reading_the_slots_of_a_path_is_no_use_of_it() -> None:
    with open_cache(config_of("full")) as cache:
        _, old = grow(cache, 2)
        _, new = grow(cache, 2, first=1000)
        cache.slots_to(old.node)
        cache.evict("full", 2 * PAGE)
        assert not old.node.alive, "the path that was read is the least recently used one still"
        assert new.node.alive, "the path that was used later stays"


def test_slots_of_an_unknown_component_and_of_a_lost_node() -> None:
    with open_cache(config_of("full")) as cache:
        _, result = grow(cache, 1)
        with pytest.raises(ConfigurationError, match="'swa'"):
            cache.slots_to(result.node, "swa")
        cache.reset()
        with pytest.raises(StaleHandleError):
            cache.slots_to(result.node)


def test_a_match_tells_how_far_full_goes_past_its_end() -> None:
    with open_cache(config_of("full", "mamba")) as cache:
        grow(cache, 2)
        grow(cache, 4)
        cache.evict("mamba", 1)
        found = cache.match(cache.key([*range(2 * PAGE)]))
    assert found.best_match.is_root, f"without a state nothing can be used, got {found}"
    assert found.full_kv_hit_length == 2 * PAGE, f"FULL is there for 2 pages, got {found.full_kv_hit_length}"


@pytest.mark.parametrize("policy", list(WritePolicy))
def test_a_node_is_backed_up_when_it_is_asked_for(policy: WritePolicy) -> None:
    with open_cache(tiered(policy, selective_hits=9)) as cache:
        cache.set_thresholds(backup_hits=9)
        _, result = grow(cache, 3)
        cache.drain()
        before = cache.host_sizes()["full"]
        assert cache.backup(result.node), "there is room on the host"
        cache.drain()
        after = cache.host_sizes()["full"]
        cache.evict("full", 3 * PAGE)
        found = cache.match(cache.key([*range(3 * PAGE)]))
    assert before.evictable + before.protected == 0, f"{policy} with 9 hits copies nothing by itself, got {before}"
    assert after.free == before.free - 3 * PAGE, f"three pages are on the host, got {after}"
    assert found.host_hit_length == 3 * PAGE, f"expected the path on the host, got {found}"


def test_a_backup_without_room_changes_nothing() -> None:
    with open_cache(config_of("full", host=HostConfig({"full": PAGE}, executor=ExecutorKind.STEPPED))) as cache:
        cache.set_thresholds(backup_hits=9)
        _, result = grow(cache, 3)
        assert not cache.backup(result.node), "three pages do not fit into one"
        cache.drain()
        assert cache.host_sizes()["full"].free == PAGE, "nothing was copied"


def test_a_threshold_of_load_backs_is_changed() -> None:
    with open_cache(tiered(load_back_threshold_tokens=0)) as cache:
        _, result = grow(cache, 2)
        cache.drain()
        cache.evict("full", 2 * PAGE)
        cache.set_thresholds(load_back_tokens=3 * PAGE)
        assert cache.load_back(result.node) is None, "two pages are fewer than three"
        cache.set_thresholds(load_back_tokens=2 * PAGE)
        assert cache.load_back(result.node) is not None, "two pages are enough now"


def test_thresholds_hold_after_a_verb_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with open_cache(tiered()) as cache:
        cache.set_thresholds(backup_hits=9)
        key = cache.key([*range(PAGE)])
        monkeypatch.setattr(cache.tree, "match", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.match(key)
        cache.reset()
        grow(cache, 2)
        cache.drain()
        assert cache.host_sizes()["full"].free == 64, "nothing has 9 hits"


def test_wrong_thresholds_are_refused() -> None:
    with open_cache(tiered()) as cache, pytest.raises(ArgumentError, match="backup_hits"):
        cache.set_thresholds(backup_hits=-1)
    with open_cache(config_of("full")) as cache, pytest.raises(ConfigurationError, match="host"):
        cache.set_thresholds(backup_hits=1)


def test_the_first_call_begins_to_note_freed_slots() -> None:
    with open_cache(config_of("full")) as cache:
        slots = cache.allocate(PAGE)
        assert slots is not None, "the cache is empty"
        cache.free(slots)
        freed = cache.take_freed()["full"]
        assert freed.dtype == np.int64, f"slots are int64, got {freed.dtype}"
        assert not len(freed), f"expected nothing, got {freed.tolist()}"


@pytest.mark.parametrize("bigram", [False, True])
def test_a_handle_says_what_it_stands_for(bigram: bool) -> None:
    with open_cache(config_of("full", bigram=bigram)) as cache:
        prompts = [[*range(2 * PAGE + bigram)], [*range(PAGE + bigram), *range(90, 90 + PAGE)]]
        nodes = []
        for tokens in prompts:
            key = cache.key(tokens, Namespace(lora="a"))
            slots = cache.allocate(cache.length(key))
            assert slots is not None, "both prompts fit"
            nodes.append(cache.insert(key, slots).node)
        leaves = [cache.describe(node) for node in nodes]
        assert leaves[0].parent is not None, "it is below the first page"
        fork = cache.describe(leaves[0].parent)
        assert fork.parent is not None, "it is below the root"
        root = cache.describe(fork.parent)
    expected = [tokens[PAGE:] for tokens in prompts]
    assert [leaf.tokens.tolist() for leaf in leaves] == expected, f"expected {expected}, got {leaves}"
    assert {(leaf.start, leaf.length) for leaf in leaves} == {(PAGE, PAGE)}, f"each has the second page, got {leaves}"
    assert set(fork.children) == set(nodes), f"both begin with the first page, got {fork}"
    assert (fork.start, fork.length, fork.namespace) == (0, PAGE, Namespace(lora="a")), f"got {fork}"
    assert (root.parent, root.length, root.tokens.size) == (None, 0, 0), f"the root is empty, got {root}"
