"""Witnesses: what the running test has seen the cache do: hits, loads, evictions, and the bytes that were read back.

A run that saw none of these has not shown that the cache works, even if no test failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from hicache.testing.report.run import WITNESSES
from hicache.testing.snapshot import BlockSnapshot

FOUND: Mapping[str, tuple[str, Callable[[Any], int]]] = {
    "match": ("hits", lambda answer: len(answer.device_indices) + answer.host_hit_length > 0),
    "admit": ("hits", lambda answer: answer is not None and answer.cached_tokens > 0),
    "load_back": ("loads", lambda answer: answer is not None),
    "resume": ("loads", lambda answer: answer is not None and answer.cached_tokens > 0),
    "check_prefetch": ("loads", bool),
    "evict": ("evictions", lambda answer: answer.victims),
    "evict_host": ("evictions", lambda answer: answer.victims),
    "read": ("bytes read back", lambda answer: answer.nbytes),
    "read_host": ("bytes read back", lambda answer: answer.nbytes),
}
"""What an answer of a method shows: the name, and how many. A cache of blocks evicts without a verb for it."""

PREFIX = "hicache."
"""How the report properties of a test with these counts begin."""


class Witnesses:
    """Collects the answers of the adapters of one process, until a test has ended."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, method: str, answer: object) -> None:
        """Count what an answer shows. A wrong answer shows nothing: the tests find it."""
        if method in FOUND:
            name, count = FOUND[method]
            try:
                self._counts[name] += count(answer)
            except (AttributeError, TypeError):
                return

    def add_snapshots(self, before: object, after: object) -> None:
        """Count the cached blocks that went between two snapshots."""
        if isinstance(before, BlockSnapshot) and isinstance(after, BlockSnapshot):
            self._counts["evictions"] += len(_cached(before) - _cached(after))

    def take(self) -> list[tuple[str, int]]:
        """The counts as report properties. They are then zero."""
        counts = [(f"{PREFIX}{name}", self._counts[name]) for name in WITNESSES]
        self._counts.clear()
        return counts


def _cached(snapshot: BlockSnapshot) -> set[object]:
    return {(one.component, one.number, one.namespace, one.prefix) for one in snapshot.blocks}


WITNESSED = Witnesses()
"""Those of this process."""
