"""Counters of the work that a cache did. Counts, unlike times, are the same on every machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Running totals since the cache was opened.

    `nodes_visited`: by match and insert. `bytes_compared`: of keys. `pages_hashed`: by the hash chain.
    `nodes_locked`: lock counts that lock and unlock changed. `candidates_popped`: queue entries that evictions looked
    at. `states_copied`: by copy-on-write. `bytes_backed_up`, `bytes_loaded`: by transfers that ended well, over all
    layers and pools. `backups_refused`: for lack of host space. `bytes_stored`, `bytes_prefetched`: written to and read
    from storage. `stores_failed`: nodes that storage did not take. `prefetches_limited`: refused above the limit of
    tokens under way. `prefetches_cut`: ended before all had come. `storage_errors`: calls of the storage backend that
    raised, or gave what is no answer, as of the last step.
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
    bytes_stored: int = 0
    bytes_prefetched: int = 0
    stores_failed: int = 0
    prefetches_limited: int = 0
    prefetches_cut: int = 0
    storage_errors: int = 0
