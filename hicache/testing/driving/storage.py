"""StorageTierVerbs: the scheduler's prefetches from storage, and the operator's attach, detach and clear."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from hicache.testing.driving.open_prefetch import OpenPrefetch
from hicache.testing.driving.prompts import aligned_count
from hicache.testing.driving.transfers import TransferVerbs
from hicache.testing.laws.storage import check_no_fetch
from hicache.testing.model import Model
from hicache.testing.snapshot import Snapshot
from hicache.testing.storage_verbs import PendingStorage
from hicache.testing.violation import violation
from hicache.types import Handle, Key, Pool, StopPolicy


class StorageTierVerbs(TransferVerbs):
    """Prefetches prompts and checks what each prefetch loaded. Advances storage requests, and restarts the cache."""

    def verb_done(self) -> None:
        for prefetch in self.prefetches.values():
            prefetch.gains.add(self._gain(prefetch))
        super().verb_done()

    def prefetch(self, key: Key) -> Handle | None:
        """Start to prefetch a prompt from storage; None, with no effect, when the prefetch is refused."""
        before = self.snapshot() if self.has_snapshot else None
        ticket = self.adapter.prefetch(key)
        if ticket is not None:
            self.prefetches[id(ticket)] = OpenPrefetch(ticket, key, self._expected_length(key), set())
        elif before is not None:
            self._require_as_before("FETCH-1", "a refused prefetch", before)
        self.verb_done()
        return ticket

    def check_prefetch(self, ticket: Handle) -> int | None:
        """The number of tokens that a prefetch loaded, checked against what a match gained; None while it runs."""
        prefetch = self.prefetches[id(ticket)]
        tokens = self.adapter.check_prefetch(ticket)
        if tokens is not None:
            del self.prefetches[id(ticket)]
            self._require_gain(prefetch, tokens)
        elif self.config.storage is not None and self.config.storage.stop_policy is StopPolicy.BEST_EFFORT:
            raise violation("FETCH-3", "check of a prefetch with best_effort", "a result at once", None)
        self.verb_done()
        return tokens

    def abort_prefetch(self, ticket: Handle) -> None:
        """Cancel a prefetch: no caller waits for it."""
        self.adapter.abort_prefetch(ticket)
        del self.prefetches[id(ticket)]
        self.verb_done()

    def attach_storage(self) -> bool:
        """Open the configured backend again; False when a backend is attached."""
        return self._operate("attach_storage", self.adapter.attach_storage)

    def detach_storage(self) -> bool:
        """Close the backend; False while requests are in flight, or when none is attached."""
        return self._operate("detach_storage", self.adapter.detach_storage)

    def clear_storage(self) -> bool:
        """Remove the cache's objects; False while requests are in flight."""
        return self._operate("clear_storage", self.adapter.clear_storage)

    def storage_keys(self, pool: Pool, key: Key) -> list[str]:
        """The object key of each whole page of a key in one pool; checks that they are distinct."""
        keys = list(self.adapter.storage_keys(pool, key))
        pages = aligned_count(key, self.config) // self.config.page_size
        if len(keys) != pages or len(set(keys)) != pages:
            raise violation("STORE-1", f"storage_keys of {pool.value}", f"{pages} distinct keys", keys)
        return keys

    def pending_storage(self) -> Sequence[PendingStorage]:
        """The unfinished requests to storage, oldest first."""
        pending = self.adapter.pending_storage()
        for one in pending:
            if not 0 <= one.batches_done < one.batches:
                raise violation("FETCH-3", "pending_storage", "fewer batches done than the request has", one)
        return pending

    def advance_storage(self, ticket: Handle) -> None:
        """Let storage do one more batch of a request."""
        self._move("advance_storage", lambda: self.adapter.advance_storage(ticket))
        self.verb_done()

    def complete_storage(self, ticket: Handle) -> None:
        """Let storage do all remaining batches of a request."""
        self._move("complete_storage", lambda: self.adapter.complete_storage(ticket))
        if any(one.ticket == ticket for one in self.pending_storage()):
            raise violation("FLOW-4", "complete_storage", "a finished request", "a pending one")
        self.verb_done()

    def advance_clock(self, seconds: float) -> None:
        """Advance the clock of the cache."""
        self.adapter.advance_clock(seconds)
        self.verb_done()

    def drain(self) -> None:
        """Wait until nothing is in flight; then no host slot belongs to a prefetch, unless a caller waits for one."""
        super().drain()
        if not self.prefetches and self.has_snapshot and self.config.storage is not None:
            check_no_fetch(self.snapshot())

    def restart(self) -> None:
        """Close the cache, with whatever is in flight, and open another one on the same storage."""
        self.adapter.close()
        self.open(type(self.adapter)(self.config))
        self.forget()
        self.running.clear()
        self.verb_done()

    def _operate(self, verb: str, act: Callable[[], bool]) -> bool:
        before = self.snapshot() if self.has_snapshot else None
        is_done = act()
        if before is not None:
            self._require_as_before("FLOW-12", f"{verb}, which answered {is_done}", before)
            marks = _marks(self.snapshot())
            if is_done and verb != "detach_storage" and any(marks):
                raise violation("FLOW-12", verb, "no node marked as stored", marks)
            if not is_done and marks != _marks(before):
                raise violation("FLOW-12", f"{verb}, which did nothing", f"marks {_marks(before)}", marks)
        self.verb_done()
        return is_done

    def _require_as_before(self, clause: str, place: str, before: Snapshot) -> None:
        """Check that host slots of prefetches and pins on the host are the same as before."""
        expected, actual = _held_for_storage(before), _held_for_storage(self.snapshot())
        if actual != expected:
            raise violation(clause, place, expected, actual)

    def _require_gain(self, prefetch: OpenPrefetch, tokens: int) -> None:
        # Several prefetches may end in one step and evict each other's pages, so that the gain of one is never visible.
        is_seen = self.has_snapshot and not self.prefetches
        gains = prefetch.gains | {self._gain(prefetch)}
        if is_seen and tokens not in gains:
            wanted = aligned_count(prefetch.key, self.config)
            place = f"a prefetch of {wanted} elements, {prefetch.before} of them cached before"
            raise violation("FLOW-10", place, f"one of the gains of a match, {sorted(gains)}", tokens)

    def _gain(self, prefetch: OpenPrefetch) -> int:
        return max(0, self._expected_length(prefetch.key) - prefetch.before)

    def _expected_length(self, key: Key) -> int:
        """The number of elements that a match of the key finds on both tiers, by the oracle."""
        if not self.has_snapshot:
            return 0
        config = self.config
        model = Model(
            components=config.components,
            page_size=config.page_size,
            sliding_window_size=config.sliding_window_size,
            bigram=config.bigram,
        )
        model.adopt(self.snapshot())
        return model.expected_match(key).best


def _marks(snapshot: Snapshot) -> list[frozenset[str]]:
    return [] if snapshot.storage is None else list(snapshot.storage.persisted or ())


def _held_for_storage(snapshot: Snapshot) -> str:
    """A description of the host slots of prefetches and of the pins on the host."""
    fetches = () if snapshot.storage is None else snapshot.storage.fetches
    slots = [{name: own.tolist() for name, own in one.host.items()} for one in fetches]
    return f"prefetches {slots}, pins {_host_pins(snapshot)}"


def _host_pins(snapshot: Snapshot) -> dict[str, int]:
    """The number of slots that the cache's own locks protect on the host, per lock: a split does not change it."""
    views = () if snapshot.host is None else snapshot.host.nodes
    pins: Counter[str] = Counter()
    for view in views:
        for name, count in view.host_pins.items():
            slots = view.slots[name]
            pins[name] += count * (0 if slots is None else len(slots))
    return dict(pins)
