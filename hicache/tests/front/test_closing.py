"""A cache that is closed has no thread left, whatever happened inside; one that could not be opened has none either."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hicache import HostConfig, StorageConfig, UnifiedRadixCache, open_cache
from hicache.errors import ConfigurationError
from hicache.tests.front.prompts import KV_ONLY, PAGE, PROMPT, insert_prompt, load_prompt_back

CAPACITY = 8 * PAGE


def _open(root: Path, **options: object) -> UnifiedRadixCache:
    return open_cache(
        page_size=PAGE,
        capacity_tokens=CAPACITY,
        model=KV_ONLY,
        host=HostConfig({"full": CAPACITY}),
        storage=StorageConfig(
            "file", model="org/name@1", options={"root": str(root), **options}, prefetch_threshold=PAGE
        ),
    )


def _threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("hicache"))


def test_a_context_manager_ends_all_threads(tmp_path: Path) -> None:
    with _open(tmp_path) as cache:
        insert_prompt(cache)
        cache.drain()
        cache.evict("full", CAPACITY)
        load_prompt_back(cache)
        assert cache.prefetch(cache.key(PROMPT[::-1])) is not None, "the prompt is as long as the threshold"
        cache.drain()
        expected = ["hicache-backup", "hicache-load", "hicache-storage-read", "hicache-storage-write"]
        assert _threads() == expected, f"expected {expected} after a job of each kind, found {_threads()}"
    assert _threads() == [], f"after the cache was closed there are {_threads()}"


def test_an_exception_passes_and_leaves_no_thread(tmp_path: Path) -> None:
    def fail_inside() -> None:
        with _open(tmp_path) as cache:
            insert_prompt(cache)
            cache.step()  # a backup is under way
            raise KeyError("of the caller")

    with pytest.raises(KeyError, match="of the caller"):
        fail_inside()
    assert _threads() == [], f"after an exception there are {_threads()}"


def test_a_cache_that_cannot_be_opened_leaves_no_thread(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'file' has no option 'rood', which is 'x'"):
        _open(tmp_path, rood="x")
    assert _threads() == [], f"after a refusal there are {_threads()}"


def test_a_cache_may_be_closed_twice(tmp_path: Path) -> None:
    with _open(tmp_path) as cache:
        cache.close()
    assert _threads() == [], f"after two closings there are {_threads()}"
