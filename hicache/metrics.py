"""Counts of the work that the cache did. Counts, unlike times, are the same on every machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Running totals since the cache was opened.

    `nodes_visited`: by match and insert. `bytes_compared`: of keys. `pages_hashed`: by the hash chain.
    `nodes_locked`: lock counts that lock and unlock changed. `candidates_popped`: looked at by evictions.
    `states_copied`: by copy-on-write. `bytes_backed_up`, `bytes_loaded`: by operations that arrived, over all layers
    and pools. `backups_refused`: for lack of host space. `bytes_persisted`, `bytes_fetched`: to and from
    storage, in whole operations. `persists_failed`, `prefetches_limited`, `prefetches_cut`: not taken by storage; above
    the rate limit; ended before they had brought all.
    """

    nodes_visited: int = 0
    bytes_compared: int = 0
    pages_hashed: int = 0
    nodes_locked: int = 0
    candidates_popped: int = 0
    states_copied: int = 0
    bytes_backed_up: int = 0
    bytes_loaded: int = 0
    backups_refused: int = 0
    bytes_persisted: int = 0
    bytes_fetched: int = 0
    persists_failed: int = 0
    prefetches_limited: int = 0
    prefetches_cut: int = 0
