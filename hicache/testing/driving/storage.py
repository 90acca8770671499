"""StorageTierVerbs: what a scheduler does with the storage tier: fetch what it has, and what an operator does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from hicache.testing.driving.fetching import Fetching
from hicache.testing.driving.prompts import aligned_count
from hicache.testing.driving.transfers import TransferVerbs
from hicache.testing.laws.storage import check_no_fetch
from hicache.testing.model import Model
from hicache.testing.snapshot import Snapshot
from hicache.testing.storage_verbs import PendingStorage
from hicache.testing.violation import violation
from hicache.types import Handle, Key, Pool, StopPolicy


class StorageTierVerbs(TransferVerbs):
    """Fetches prompts, and sees that each fetch brings what it says. Lets storage answer, and restarts the cache."""

    def verb_done(self) -> None:
        for fetch in self.fetches.values():
            fetch.gains.add(self._gain(fetch))
        super().verb_done()

    def prefetch(self, key: Key) -> Handle | None:
        """Bring what storage has of a prompt to the host; None, with nothing taken, when that is refused."""
        before = self.snapshot() if self.can_look else None
        ticket = self.adapter.prefetch(key)
        if ticket is not None:
            self.fetches[id(ticket)] = Fetching(ticket, key, self._reach(key), set())
        elif before is not None:
            self._require_as_before("FETCH-1", "a prefetch that was refused", before)
        self.verb_done()
        return ticket

    def check_prefetch(self, ticket: Handle) -> int | None:
        """The tokens that a prefetch brought, by which a match got more when it ended; None while it is waited for."""
        fetch = self.fetches[id(ticket)]
        tokens = self.adapter.check_prefetch(ticket)
        if tokens is not None:
            del self.fetches[id(ticket)]
            self._require_gain(fetch, tokens)
        elif self.config.storage is not None and self.config.storage.stop_policy is StopPolicy.BEST_EFFORT:
            raise violation("FETCH-3", "check of a prefetch with best_effort", "an answer at once", None)
        self.verb_done()
        return tokens

    def abort_prefetch(self, ticket: Handle) -> None:
        """Nobody waits for this prefetch any more."""
        self.adapter.abort_prefetch(ticket)
        del self.fetches[id(ticket)]
        self.verb_done()

    def attach_storage(self) -> bool:
        """Open the configured backend again; False when it is attached."""
        return self._operate("attach_storage", self.adapter.attach_storage)

    def detach_storage(self) -> bool:
        """Close the backend; False while anything is under way, or when none is attached."""
        return self._operate("detach_storage", self.adapter.detach_storage)

    def clear_storage(self) -> bool:
        """Remove the cache's objects; False while anything is under way."""
        return self._operate("clear_storage", self.adapter.clear_storage)

    def storage_keys(self, pool: Pool, key: Key) -> list[str]:
        """The object of each whole page of a key in one pool, each another one."""
        keys = list(self.adapter.storage_keys(pool, key))
        pages = aligned_count(key, self.config) // self.config.page_size
        if len(keys) != pages or len(set(keys)) != pages:
            raise violation("STORE-1", f"storage_keys of {pool.value}", f"{pages} keys, no two alike", keys)
        return keys

    def pending_storage(self) -> Sequence[PendingStorage]:
        """What storage was asked and has not answered, the oldest first."""
        pending = self.adapter.pending_storage()
        for one in pending:
            if not 0 <= one.batches_done < one.batches:
                raise violation("FETCH-3", "pending_storage", "fewer batches done than there are", one)
        return pending

    def advance_storage(self, ticket: Handle) -> None:
        """Let storage do one more batch."""
        self._move("advance_storage", lambda: self.adapter.advance_storage(ticket))
        self.verb_done()

    def complete_storage(self, ticket: Handle) -> None:
        """Let storage do all that is left of what it was asked."""
        self._move("complete_storage", lambda: self.adapter.complete_storage(ticket))
        if any(one.ticket == ticket for one in self.pending_storage()):
            raise violation("FLOW-4", "complete_storage", "an end", "it is still pending")
        self.verb_done()

    def advance_clock(self, seconds: float) -> None:
        """Let time pass for the cache."""
        self.adapter.advance_clock(seconds)
        self.verb_done()

    def drain(self) -> None:
        """Let all that is under way end, and take it over; then nothing is held for storage, unless somebody waits."""
        super().drain()
        if not self.fetches and self.can_look and self.config.storage is not None:
            check_no_fetch(self.snapshot())

    def restart(self) -> None:
        """Close the cache, with whatever is under way, and open another one over the same storage."""
        self.adapter.close()
        self.open(type(self.adapter)(self.config))
        self.forget()
        self.running.clear()
        self.verb_done()

    def _operate(self, verb: str, act: Callable[[], bool]) -> bool:
        before = self.snapshot() if self.can_look else None
        is_done = act()
        if before is not None:
            self._require_as_before("FLOW-12", f"{verb}, which answered {is_done}", before)
            marks = _marks(self.snapshot())
            if is_done and verb != "detach_storage" and any(marks):
                raise violation("FLOW-12", verb, "nothing that counts as persisted", marks)
            if not is_done and marks != _marks(before):
                raise violation("FLOW-12", f"{verb}, which did nothing", f"marks {_marks(before)}", marks)
        self.verb_done()
        return is_done

    def _require_as_before(self, clause: str, place: str, before: Snapshot) -> None:
        """No lock, no slot and no fetch more or less than there was."""
        fetches, pins = _fetches(before), _host_pins(before)
        after = self.snapshot()
        if _fetches(after) != fetches or _host_pins(after) != pins:
            raise violation(clause, place, f"{fetches} and pins {pins}", f"{_fetches(after)} and {_host_pins(after)}")

    def _require_gain(self, fetch: Fetching, tokens: int) -> None:
        # In one step several may end, and make room for each other, so that what one brought is never seen.
        is_seen = self.can_look and not self.fetches
        gains = fetch.gains | {self._gain(fetch)}
        if is_seen and tokens not in gains:
            wanted = aligned_count(fetch.key, self.config)
            place = f"a prefetch of {wanted} elements, of which {fetch.before} were there"
            raise violation("FLOW-10", place, f"one of {sorted(gains)}, by which a match got more", tokens)

    def _gain(self, fetch: Fetching) -> int:
        return max(0, self._reach(fetch.key) - fetch.before)

    def _reach(self, key: Key) -> int:
        """Elements of a key that a match gets on both tiers, by the oracle."""
        if not self.can_look:
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


def _fetches(snapshot: Snapshot) -> list[dict[str, list[int]]]:
    fetches = () if snapshot.storage is None else snapshot.storage.fetches
    return [{name: slots.tolist() for name, slots in fetch.host.items()} for fetch in fetches]


def _host_pins(snapshot: Snapshot) -> dict[str, int]:
    """How many slots the cache's own locks protect on the host, once for each lock: a split changes nothing."""
    views = () if snapshot.host is None else snapshot.host.nodes
    pins: Counter[str] = Counter()
    for view in views:
        for name, count in view.host_pins.items():
            slots = view.slots[name]
            pins[name] += count * (0 if slots is None else len(slots))
    return dict(pins)
