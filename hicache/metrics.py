"""Counters of the work of a cache, Traffic, the same on every machine; and Liveness, how long verbs were blocked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Traffic:
    """Results of all matches, evictions and prefetches since the cache was opened.

    `tokens_matched_device`, `tokens_matched_host`, `tokens_missed`: of the keys of matches, by where they were found;
    they sum to the keys' whole pages. A repeated look-up (`chunked`) is not counted. `tokens_refused`: of those missed,
    what FULL has, by the component that cut the match; `admission`: what a request could not use of its match, because
    it was not loaded or no state was free for a copy. `tokens_prefetched`: that came.
    `device_evictions`, `host_evictions`: victims, which are nodes. `prefetches_started`: those under way, those that
    ended in one of the following ways, and those that were cut. `prefetches_completed`: they brought pages, and storage
    had no more. `prefetches_shortened`: the host had no room for all that storage has. `prefetches_missed`: storage had
    no page, or too few. `prefetches_aborted`: by the caller. `prefetches_dropped`: by a reset, a close, or a backend
    that does not answer.
    """

    tokens_matched_device: int = 0
    tokens_matched_host: int = 0
    tokens_missed: int = 0
    tokens_refused: Counter[str] = field(default_factory=Counter)
    tokens_prefetched: int = 0
    device_evictions: int = 0
    host_evictions: int = 0
    prefetches_started: int = 0
    prefetches_completed: int = 0
    prefetches_shortened: int = 0
    prefetches_missed: int = 0
    prefetches_aborted: int = 0
    prefetches_dropped: int = 0


@dataclass(slots=True)
class Counters:
    """Running totals since the cache was opened.

    `nodes_visited`: by match and insert. `bytes_compared`: of keys. `pages_hashed`: by the hash chain.
    `nodes_locked`: lock counts that lock and unlock changed. `candidates_popped`: queue entries that evictions looked
    at. `states_copied`: by copy-on-write. `bytes_backed_up`, `bytes_loaded`: by transfers that ended well, over all
    layers and pools. `backups_refused`: for lack of host space. `bytes_stored`, `bytes_prefetched`: written to and read
    from storage. `bytes_staged`: copied once more on that way, for a backend that has not accepted host memory, as of
    the last step. `stores_failed`: nodes that storage did not take. `prefetches_limited`: refused above the limit of
    tokens under way. `prefetches_cut`: by the stop policy, before all had come. `storage_errors`: calls of the
    storage backend that raised, or returned an invalid value, as of the last step. `traffic`: what came of matches,
    evictions and prefetches.
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
    bytes_staged: int = 0
    stores_failed: int = 0
    prefetches_limited: int = 0
    prefetches_cut: int = 0
    storage_errors: int = 0
    traffic: Traffic = field(default_factory=Traffic)


@dataclass(slots=True)
class Liveness:
    """How long the verbs that may wait have taken, since the cache was opened.

    `longest_s`: seconds of the longest call of a verb. `longest_verb`: its name, or empty. `abandoned`: the name of
    each storage backend that did not answer in time, in order.
    """

    longest_s: float = 0.0
    longest_verb: str = ""
    abandoned: list[str] = field(default_factory=list)

    def record(self, verb: str, seconds: float) -> None:
        """Count a call of a verb."""
        if seconds > self.longest_s:
            self.longest_s, self.longest_verb = seconds, verb
