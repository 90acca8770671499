"""The black-box machines: they call the verbs of one door, and look at nothing but their answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import ClassVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, consumes, multiple, precondition, rule

from hicache.testing.adapter import Admission, CacheAdapter, Capability
from hicache.testing.driving.prompts import cut
from hicache.testing.geometry import Publish
from hicache.testing.models.tree import ExpectedMatch
from hicache.testing.violation import violation
from hicache.types import NO_SLOTS, SHARED, Component, Handle, Key, MatchResult, Namespace, Slots

from .machine import CacheMachine
from .request_machine import CHUNK, FEW_PAGES, FIRST_STRANGE_PAGE, REQUEST_TAIL, RequestVerbs
from .slot_log import Met, SlotLog
from .small_caches import NAMESPACE, PAGES, TAIL

FULL, SWA, MAMBA = (component.value for component in Component)

CALLED = frozenset(
    {
        *(Capability.VERBS, Capability.REQUESTS, Capability.RESET, Capability.TABLES, Capability.BYTES),
        Capability.PREEMPTION,
        *(Capability.PAGED, Capability.NAMESPACES, Capability.BIGRAM, Capability.POLICIES),
        *(Capability.SWA, Capability.MAMBA, Capability.INDEXER, Capability.SIDECARS, Capability.GROUPS),
    }
)
"""The capabilities of which the machines make use. All others they hide."""

Prompt = tuple[list[int], Namespace, int, int]

PROMPT = st.tuples(PAGES.filter(len), NAMESPACE, st.integers(0, 3), st.integers(1, 5))
"""Pages, a namespace, an earlier prompt to begin with (0: none), and how many of its pages."""

MAX_PAGES, READERS = 6, 3
"""Of a prompt, and locks at a time."""


@cache
def unseen(adapter: type[CacheAdapter]) -> type[CacheAdapter]:
    """The adapter without what shows the inside of its cache."""
    names = {"__module__": adapter.__module__, "__qualname__": adapter.__qualname__, "__doc__": adapter.__doc__}
    return type(adapter.__name__, (adapter,), names | {"capabilities": adapter.capabilities & CALLED})


class BlackBoxMachine(CacheMachine):
    """Opens a cache without its snapshot. `met`: counts what the search meets."""

    met: ClassVar[Counter[Met]]

    def class_opened(self, data: st.DataObject) -> type[CacheAdapter]:
        return unseen(self.adapter_type)

    def sync(self) -> None:
        """There is nothing to look at."""


class BlackBoxVerbs(BlackBoxMachine):
    """Verbs in any order. `locked`: the keys of what each lock protects, by the number of the lock."""

    locks = Bundle("locks")

    def __init__(self) -> None:
        super().__init__()
        self.prompts: list[tuple[list[int], Namespace]] = []
        self.keys: dict[tuple[Namespace, bytes], Key] = {}
        self.receipts: dict[int, Handle] = {}
        self.locked: dict[int, Key] = {}
        self.serial = 0
        self.held: list[Slots] = []

    def opened(self, data: st.DataObject) -> None:
        paged = [component for component in self.components if component != MAMBA]
        self.logs = {component: SlotLog(self.config, "LOCK-5", self.met) for component in paged}

    # Rules.

    @rule(target=locks, prompt=PROMPT, tail=TAIL, is_locked=st.booleans())
    def put(self, prompt: Prompt, tail: int, is_locked: bool) -> object:
        """A request matches, locks, allocates the rest, computes it and inserts it. `is_locked`: it keeps the lock."""
        key = self._key(*prompt, tail)
        found = self._match(key)
        lock = self._lock(found.device_anchor, cut(key, len(found.device_indices), self.config), found.device_indices)
        fresh = self._allocate(self.driver.aligned(key) - len(found.device_indices))
        kept = None if fresh is None else self._insert(key, found.device_indices, fresh, is_locked=is_locked)
        self._unlock(lock)
        return multiple() if kept is None else kept

    @rule(prompt=PROMPT, tail=TAIL)
    def put_unmatched(self, prompt: Prompt, tail: int) -> None:
        """A request computes all of a prompt, as if nothing of it were cached: what is cached has duplicates then."""
        key = self._key(*prompt, tail)
        fresh = self._allocate(self.driver.aligned(key))
        if fresh is not None:
            self._insert(key, NO_SLOTS, fresh, is_locked=False)

    @rule(prompt=PROMPT, tail=TAIL)
    def match(self, prompt: Prompt, tail: int) -> None:
        """What a match finds was inserted for this prompt, and was not handed out since."""
        self._match(self._key(*prompt, tail))

    @precondition(lambda self: len(self.receipts) < READERS)
    @rule(target=locks, prompt=PROMPT)
    def lock(self, prompt: Prompt) -> int:
        """A request locks what it matches."""
        return self._lock_prompt(self._key(*prompt, 0))

    @rule(lock=consumes(locks))
    def unlock(self, lock: int) -> None:
        """A request releases its lock. What the other locks protect is still there."""
        self._unlock(lock)
        self._look_at_locked()

    @precondition(lambda self: self.can(SWA, Capability.EARLY_UNLOCK))
    @rule(lock=locks)
    def unlock_window(self, lock: int) -> None:
        """A request has left its window: FULL alone is still there, and no match need find it."""
        if lock in self.locked:
            self.receipts[lock] = self.driver.unlock_window(self.receipts[lock])
            self.logs[SWA].release(f"lock {lock}")
            del self.locked[lock]
            self._look_at_locked()

    @rule(pages=st.sampled_from([1, 1, 2, 3, 8]), data=st.data())
    def evict(self, pages: int, data: st.DataObject) -> None:
        """Evict pages of one component, and look at what is locked."""
        component = data.draw(st.sampled_from(self.components), label="component")
        tokens = self.slots_of(component, pages)
        result = self.driver.evict(component, tokens)
        if any(result.freed.values()):
            self.logs[FULL].evicted()
        self._look_at_locked()
        is_all = component == FULL and result.freed[FULL] < tokens and not result.refused and not self.receipts
        if is_all and not self.departs("EVICT-1"):
            self._require_nothing(f"evict({FULL}, {tokens}), which freed {result.freed[FULL]}", "EVICT-1")

    @precondition(lambda self: not self.held)
    @rule(pages=st.integers(1, 4), prompt=PROMPT)
    def compute(self, pages: int, prompt: Prompt) -> None:
        """A caller computes a prompt, and has not inserted it yet."""
        slots = self._allocate(pages * self.config.page_size)
        if slots is not None:
            self._write(self._key(*prompt, 0), slots, 0)
            self.held.append(slots)

    @precondition(lambda self: self.held)
    @rule()
    def free(self) -> None:
        """The caller frees what it computed, and no look-up finds it."""
        self._free(self.held.pop())

    @rule(first=st.integers(1, 3), second=st.integers(4, 6), pages=st.integers(1, 2), is_shared=st.booleans())
    def contend(self, first: int, second: int, pages: int, is_shared: bool) -> None:
        """A prompt is locked, others match a part of it and another one, and a caller takes every slot that is left.

        `pages`: how much of it is locked. `is_shared`: another request locks the same, and has released it by then.
        """
        for prompt in ([second], [first, second]):
            self.put((prompt, SHARED, 0, 0), 0, is_locked=False)
        locks = [self._lock_prompt(self._key([first, second][:pages], SHARED, 0, 0, 0)) for _ in range(1 + is_shared)]
        for lock in locks[1:]:
            self._unlock(lock)
        for prompt in ([first], [second]):
            self.match((prompt, SHARED, 0, 0), 0)
        self.press()
        self._unlock(locks[0])

    @rule(first=st.integers(1, 3), second=st.integers(4, 6))
    def compute_twice(self, first: int, second: int) -> None:
        """Two requests compute the same page, and both insert it, before a caller takes every slot that is left."""
        self.put(([first], SHARED, 0, 0), 0, is_locked=False)
        self.put_unmatched(([first, second], SHARED, 0, 0), 0)
        self.press()

    @rule()
    def press(self) -> None:
        """A caller takes every free slot, and frees them: no look-up finds what was in them."""
        taken = list(self._all_pages())
        self._look()
        for slots in taken:
            self._free(slots)
        self._look()

    @precondition(lambda self: self.keys)
    @rule()
    def reset(self) -> None:
        """The cache is emptied. What callers hold stays theirs. Nothing without RESET."""
        if Capability.RESET not in self.adapter_type.capabilities:
            return
        self.driver.reset()
        self.receipts.clear()
        self.locked.clear()
        for component, log in self.logs.items():
            log.reset(self._held()[component].tolist())
        self._require_nothing("a reset", "EVICT-9")

    def give_back(self) -> None:
        """Free and unlock everything: then every slot can be allocated, and nothing is found that was in them."""
        self._look()
        while self.held:
            self.free()
        self.press()
        for lock in list(self.receipts):
            self._unlock(lock)
        most = min(self.config.capacity_tokens[component] for component in self.logs)
        everything = self._allocate(most)
        if everything is None and not self.departs("EVICT-1"):
            raise violation("POOL-3", f"allocate({most})", "every slot, as all are free", None)
        self._look()

    # The verbs, each with what is known of its answer.

    def _match(self, key: Key) -> MatchResult:
        found = self.driver.match(key)
        slots, held, elements = found.device_indices, self._held(), self.driver.elements(key)
        place = f"match of {elements} elements"
        self.logs[FULL].read(key, slots, place, held=held[FULL].tolist())
        self.logs[FULL].found(key, len(slots), place)
        if SWA in self.logs:
            start = self._window_start(len(slots))
            partners = self.driver.adapter.partners(slots[start:])
            self.logs[SWA].read(key, partners, f"the window of a {place}", start, held[SWA].tolist())
        return found

    def _lock_prompt(self, key: Key) -> int:
        found = self._match(key)
        prefix = cut(key, len(found.device_indices), self.config)
        return self._lock(found.device_anchor, prefix, found.device_indices)

    def _lock(self, handle: Handle, prefix: Key, slots: Slots) -> int:
        self.serial += 1
        self.receipts[self.serial] = self.driver.lock(handle)
        self.locked[self.serial] = prefix
        for component, own in self._read_by_lock(slots).items():
            self.logs[component].protect(f"lock {self.serial}", own)
        return self.serial

    def _unlock(self, lock: int) -> None:
        # A reset has made receipts invalid.
        if lock in self.receipts:
            for log in self.logs.values():
                log.release(f"lock {lock}")
            self.driver.unlock(self.receipts.pop(lock))
            self.locked.pop(lock, None)

    def _allocate(self, tokens: int) -> Slots | None:
        before, place = self._held(), f"allocate({tokens})"
        slots = self.driver.allocate(tokens)
        if slots is not None:
            for component, own in self._paired(slots).items():
                self.logs[component].hand_out(own, place, before[component].tolist())
        return slots

    def _free(self, slots: Slots) -> None:
        for component, own in self._paired(slots).items():
            self.logs[component].forget(own.tolist())
        self.driver.free(slots)

    def _write(self, key: Key, slots: Slots, start: int) -> None:
        self.driver.write(key, slots, start)
        for component, own in self._paired(slots).items():
            self.logs[component].write(key, own, start)

    def _insert(self, key: Key, shared: Slots, fresh: Slots, *, is_locked: bool) -> int | None:
        """Compute and insert what is missing. Returns the number of the lock on it, or None."""
        self._write(key, fresh, len(shared))
        state = self.state_of(key)
        pairs = self._paired(fresh)
        result = self.driver.insert(key, np.concatenate((shared, fresh)), shared=len(shared), state=state)
        for component, own in pairs.items():
            first, end = (max(0, length - len(shared)) for length in (result.prefix_length, result.accepted_length))
            self.logs[component].keep(own[first:end])
        if state is not None and not result.state_adopted:
            self.driver.free_state(state)
        if not is_locked or len(self.receipts) > READERS or not result.accepted_length:
            return None
        # The lock protects what was accepted. Until the match its slots are not known.
        prefix = cut(key, result.accepted_length, self.config)
        lock = self._lock(result.node, prefix, NO_SLOTS)
        found = self._find_locked(prefix)
        for component, own in self._read_by_lock(found.device_indices).items():
            self.logs[component].protect(f"lock {lock}", own)
        return lock

    def take_state(self) -> int | None:
        return self.driver.allocate_state()

    # What is found.

    def _look_at_locked(self) -> None:
        for prefix in list(self.locked.values()):
            self._find_locked(prefix)

    def _find_locked(self, prefix: Key) -> MatchResult:
        found, expected = self._match(prefix), self.driver.elements(prefix)
        if len(found.device_indices) < expected:
            place = f"match of {expected} locked elements"
            raise violation("LOCK-5", place, "all of them", f"{len(found.device_indices)} of them")
        return found

    def _look(self) -> None:
        """Match every prompt that was ever matched, and what is locked."""
        self._look_at_locked()
        for key in list(self.keys.values()):
            self.driver.verify_state(key, self._match(key))

    def _require_nothing(self, place: str, clause: str) -> None:
        for key in list(self.keys.values()):
            found = len(self.driver.match(key).device_indices)
            if found:
                raise violation(clause, f"match after {place}", "nothing cached", f"{found} elements")

    def _all_pages(self) -> Iterator[Slots]:
        """Allocate page by page, as long as there is one."""
        while (slots := self._allocate(self.config.page_size)) is not None:
            yield slots

    # Slots.

    def _held(self) -> Mapping[str, Slots]:
        return self.driver.ledger.held()

    def _paired(self, slots: Slots) -> dict[str, Slots]:
        """By component the slots of these FULL slots: SWA is 0 where there is none."""
        own = {FULL: slots}
        if SWA in self.logs:
            own[SWA] = self.driver.adapter.partners(slots)
        return own

    def _read_by_lock(self, slots: Slots) -> dict[str, Slots]:
        """By component the slots that a lock on the end of this prefix protects."""
        return {
            component: own if component == FULL else own[self._window_start(len(slots)) :]
            for component, own in self._paired(slots).items()
        }

    def _window_start(self, elements: int) -> int:
        return max(0, elements - (self.config.sliding_window_size or 0))

    def _key(self, pages: list[int], namespace: Namespace, place: int, kept: int, tail: int) -> Key:
        """The key of a new prompt, or of one that goes on as an earlier one begins."""
        if place and self.prompts:
            earlier, namespace = self.prompts[-1 - place % len(self.prompts)]
            pages = [*earlier[:kept], *pages][:MAX_PAGES]
        self.prompts.append((pages, namespace))
        key = self.key(pages, tail, namespace)
        self.keys[key.namespace, key.tokens.tobytes()] = key
        return key


class BlackBoxRequests(BlackBoxMachine, RequestVerbs):
    """Requests in any order."""

    requests = RequestVerbs.requests

    def opened(self, data: st.DataObject) -> None:
        self.log = SlotLog(self.config, "POOL-2", self.met)

    admit_equal = rule(target=requests, number=requests)(RequestVerbs.admit_equal)
    admit_batch = rule(target=requests, pages=FEW_PAGES, tail=REQUEST_TAIL, tokens=CHUNK, ended=st.integers(0, 2))(
        RequestVerbs.admit_batch
    )

    @rule(target=requests, pages=PAGES, tail=REQUEST_TAIL, is_finished=st.booleans())
    def serve(self, pages: list[int], tail: int, is_finished: bool) -> object:
        """Admit a prompt, compute it in full, and end it."""
        number = self.start(self.key(pages, tail, SHARED))
        if number is None:
            return multiple()
        self.checkpoint(number, len(self.keys[number].tokens))
        self.end(number, is_finished)
        return number

    @rule(first=st.integers(1, 3), tail=REQUEST_TAIL, is_finished=st.booleans())
    def contend(self, first: int, tail: int, is_finished: bool) -> None:
        """Two requests read what a third one computed, one of them ends, and a caller takes every slot that is left."""
        # A state is cached where a chunk ends with a page.
        self.serve([first], 0, is_finished=True)
        key = self.key([first], tail, SHARED)
        numbers = [number for number in (self.start(key), self.start(key)) if number is not None]
        for number in numbers[1:]:
            self.end(number, is_finished)
        self.press()
        for number in numbers[:1]:
            self.finish(number)

    @rule(first=st.integers(1, 3), tail=REQUEST_TAIL)
    def compute_twice(self, first: int, tail: int) -> None:
        """Two requests compute equal prompts side by side, before a caller takes every slot that is left."""
        key = self.key([first], tail, SHARED)
        numbers = [number for number in (self.start(key), self.start(key)) if number is not None]
        for number in numbers:
            self.checkpoint(number, len(key.tokens))
        self.press()
        for number in numbers:
            self.finish(number)

    @rule(first=st.integers(1, 3), second=st.integers(4, 6))
    def outgrow(self, first: int, second: int) -> None:
        """A request begins with the oldest page of a full cache, and needs more pages."""
        self.serve([first], 0, is_finished=True)
        self.serve([second] * (self._pages - 1), 0, is_finished=True)
        number = self.start(self.key([first, second], 1, SHARED))
        if number is not None:
            self.abort(number)

    @rule()
    def press(self) -> None:
        """A request takes all free slots, shares nothing with any prompt, and is aborted."""
        self._press()
        self._look()

    @precondition(lambda self: not self.handles)
    @rule()
    def reset(self) -> None:
        """The cache is emptied. Nothing without RESET."""
        if Capability.RESET in self.adapter_type.capabilities:
            self.driver.reset()
            self.log.reset(())
            self._look()

    def give_back(self) -> None:
        """End every request: then the longest prompt that fits an empty cache is admitted."""
        self._look()
        for number in list(self.handles):
            self.end(number, is_finished=number % 2 == 0)
        self._look()
        self._press()
        self._look()

    # Overridden hooks.

    def ask(self, key: Key) -> tuple[ExpectedMatch, Admission | None]:
        place = f"admission of {len(key.tokens)} tokens"
        self._lookup(key)
        admission = self.admission_of(key)
        if admission is None:
            return ExpectedMatch(0, 0, {}), None
        hit, reached = admission.cached_tokens, admission.cached_tokens + admission.copied_tokens
        self.log.read(key, admission.table[:hit], place)
        self.log.found(key, reached, place)
        self.log.hand_out(self._own(key, admission.table, hit), place, admission.table[:hit].tolist())
        self.log.write(key, admission.table[hit:reached], hit)
        self.log.protect(f"request {len(self.keys)}", _present(admission.table))
        self._scheduled(key, admission.table)
        return ExpectedMatch(hit, hit, {}), admission

    @rule(number=requests, tokens=CHUNK)
    def checkpoint(self, number: int, tokens: int) -> None:
        """Compute and cache the next chunk of a prompt. The table may have other slots then."""
        if not self.is_ready(number):
            return
        before = self._table(number)
        self._compute(number, min(len(self.keys[number].tokens), self.computed[number] + tokens))
        super().checkpoint(number, tokens)
        computed = self.computed[number]
        self._renewed(number, self.keys[number], before, computed, f"table after {computed} computed tokens")

    def grow(self, number: int, tokens: list[int], longer: Key) -> bool:
        before, computed = self._table(number), len(self.keys[number].tokens)
        self._compute(number, computed)
        is_granted = super().grow(number, tokens, longer)
        if is_granted:
            self._renewed(number, longer, before, computed, f"extension to {len(longer.tokens)} tokens")
            self._scheduled(longer, self._table(number))
        return is_granted

    def end(self, number: int, is_finished: bool) -> None:
        if is_finished:
            self._compute(number, len(self.keys[number].tokens))
        super().end(number, is_finished)
        self.log.release(f"request {number}")

    # Internal.

    def _renewed(self, number: int, key: Key, before: Slots, computed: int, place: str) -> None:
        """The table of a request may be another one. Its slots after the computed tokens have no other owner."""
        after, elements = self._table(number), self.driver.elements(self._upto(number, computed))
        self.log.read(self.keys[number], after[:elements], place)
        own = self._own(key, after, elements)
        self.log.hand_out(own[~np.isin(own, before)], place, after[:elements].tolist())
        self.log.protect(f"request {number}", _present(after))

    def _own(self, key: Key, table: Slots, start: int) -> Slots:
        """The slots from `start` on, but those of blocks that are merged early: they have what is computed there."""
        rest = table[start:]
        merged = self.log.has(key, rest, start) if self.driver.geometry.merges_early else np.zeros(len(rest), np.bool_)
        if self.driver.geometry.shares_uncomputed:
            for number in self.handles:
                merged |= self._shared_with(number, key)[start : start + len(rest)] == rest
        return _present(rest[~merged])

    def _shared_with(self, number: int, key: Key) -> Slots:
        """The slots that a running request may share with a prompt: of whole blocks of equal tokens; 0 elsewhere."""
        other, table = self.keys[number], self._table(number)
        common = min(len(key.tokens), len(other.tokens))
        differ = np.flatnonzero(key.tokens[:common] != other.tokens[:common])
        whole = (differ[0] if len(differ) else common) // self.config.page_size * self.config.page_size
        shared = np.zeros(
            max(len(table), len(key.tokens) + self.driver.geometry.lookahead + self.config.page_size), np.int64
        )
        shared[:whole] = table[:whole] * (other.namespace == key.namespace)
        return shared

    def _scheduled(self, key: Key, table: Slots) -> None:
        """Where tokens are cached when they are scheduled, they are computed in the same step."""
        if self.driver.geometry.publish is Publish.SCHEDULED:
            self.log.write(key, table)
            self.log.keep(table[: len(key.tokens)])

    def _compute(self, number: int, tokens: int) -> None:
        """The slots of the first tokens are written, and may be cached by what comes next."""
        table, ahead = np.split(self._table(number), [tokens])
        self.log.write(self._upto(number, tokens), table)
        self.log.keep(table)
        if tokens == len(self.keys[number].tokens):
            self.log.forget(ahead[: self.driver.geometry.lookahead].tolist())

    def _upto(self, number: int, tokens: int) -> Key:
        key = self.keys[number]
        return Key(key.tokens[:tokens], key.namespace)

    @property
    def _pages(self) -> int:
        return self.config.capacity_tokens[FULL] // self.config.page_size

    def _table(self, number: int) -> Slots:
        return self.driver.running[id(self.handles[number])].table

    def _lookup(self, key: Key) -> None:
        self.log.found(key, self.driver.lookup(key), f"lookup of {len(key.tokens)} tokens")

    def _look(self) -> None:
        for key in self.keys.values():
            self._lookup(key)

    def _press(self) -> None:
        """Admit and abort the longest uncached prompt that is admitted."""
        first = FIRST_STRANGE_PAGE + len(self.keys)
        for count in range(self._pages, 0, -1):
            number = self.start(self.key([first, *[first + 1] * (count - 1)], 0, SHARED))
            if number is not None:
                self.end(number, is_finished=False)
                return


def _present(table: Slots) -> Slots:
    """The slots of a table, without the places where it has none."""
    slots: Slots = table[table != 0]
    return slots
