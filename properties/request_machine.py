"""RequestMachine: requests are admitted, extended, cached in chunks, finished and aborted while slots run out."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, consumes, multiple, precondition, rule

from hicache.config import EvictionPolicy
from hicache.testing.adapter import Admission, Capability
from hicache.testing.models.tree import ExpectedMatch
from hicache.types import SHARED, Component, Handle, Key, Namespace

from .machine import CacheMachine
from .request_order import RequestOrder
from .small_caches import NAMESPACE, PAGES

REQUEST_TAIL = st.integers(1, 2)
"""Tokens after the last whole page of a prompt."""

CHUNK = st.integers(1, 6)
"""Tokens that are computed until the next checkpoint."""

FEW_PAGES = st.lists(st.integers(1, 3), max_size=2)
"""The whole pages of a prompt of which a small cache has room for several: equal ones are likely."""

FIRST_STRANGE_PAGE = 100
"""The number of a page that no other rule draws."""

DECODED = st.lists(st.integers(0, 9), min_size=1, max_size=4)


class RequestVerbs(CacheMachine):
    """The verbs of requests. The oracle allows the cache to cache anything that some request computed.

    The rules that all machines of requests have are those of this class. By the number of a request: `keys`, how many
    tokens are `computed`, and the `handles` of those that run. `preempted`: the one that is
    being preempted or resumed.
    """

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.keys: dict[int, Key] = {}
        self.computed: dict[int, int] = {}
        self.handles: dict[int, Handle] = {}
        self.preempted: Handle | None = None

    @rule(target=requests, pages=PAGES, tail=REQUEST_TAIL, namespace=NAMESPACE)
    def admit(self, pages: list[int], tail: int, namespace: Namespace) -> object:
        """Admit a prompt. It must be admitted if nothing else runs and it fits an empty cache."""
        number = self.start(self.key(pages, tail, namespace))
        return multiple() if number is None else number

    def admit_equal(self, number: int) -> object:
        """Admit the prompt of a request once more, also while that request runs: both may compute the same pages."""
        again = self.start(self.keys[number])
        return multiple() if again is None else again

    def admit_batch(self, pages: list[int], tail: int, tokens: int, ended: int) -> object:
        """Admit two equal prompts in one batch, and compute and cache a chunk of both. The last `ended` are aborted."""
        key = self.key(pages, tail, SHARED)
        numbers = [number for number in (self.start(key), self.start(key)) if number is not None]
        for number in numbers:
            self.checkpoint(number, tokens)
        for number in numbers[2 - ended :]:
            self.abort(number)
        return multiple(*numbers)

    @rule(number=requests, tokens=CHUNK)
    def checkpoint(self, number: int, tokens: int) -> None:
        """Compute and cache the next chunk of a prompt."""
        if not self.is_ready(number):
            return
        self.computed[number] = min(len(self.keys[number].tokens), self.computed[number] + tokens)
        self.driver.checkpoint(self.handles[number], self.computed[number])
        self.cached(number)

    @rule(number=requests, tokens=DECODED)
    def extend(self, number: int, tokens: list[int]) -> None:
        """Decode tokens. Without room the request is unchanged."""
        if not self.is_ready(number):
            return
        key = self.keys[number]
        self.computed[number] = len(key.tokens)
        longer = self.driver.key([*key.tokens.tolist(), *tokens], key.namespace)
        if self.grow(number, tokens, longer):
            self.keys[number] = longer

    @rule(number=consumes(requests))
    def finish(self, number: int) -> None:
        """Finish a request that is computed in full."""
        if self.is_ready(number):
            self.end(number, is_finished=True)

    @rule(number=consumes(requests))
    def abort(self, number: int) -> None:
        """Abort a request."""
        if number in self.handles:
            self.end(number, is_finished=False)

    @precondition(lambda self: Capability.PREEMPTION in self.adapter_type.capabilities)
    @rule(target=requests, number=consumes(requests), pages=FEW_PAGES)
    def preempt(self, number: int, pages: list[int]) -> object:
        """Preempt a request, serve another prompt, and resume the request, which has a new number then."""
        if not self.is_ready(number):
            return number if number in self.handles else multiple()
        handle = self.handles[number]
        self.preempted = handle
        self.end(number, is_finished=False)
        self.preempted = None
        other = self.start(self.key(pages, 1, SHARED))
        if other is not None:
            self.checkpoint(other, len(self.keys[other].tokens))
            self.end(other, is_finished=True)
        self.preempted = handle
        again = self.start(self.keys[number])
        self.preempted = None
        if again is None:
            self.driver.abort(handle)
        return multiple() if again is None else again

    # Hooks for subclasses.

    def admission_of(self, key: Key) -> Admission | None:
        """Admit a prompt, or resume the request that was preempted."""
        return self.driver.admit(key) if self.preempted is None else self.driver.resume(self.preempted)

    def start(self, key: Key) -> int | None:
        """Admit a request; its number, or None when it does not fit."""
        before = self.reported()
        known, admission = self.ask(key)
        if admission is None:
            assert self.handles or not self._fits_empty(key), (
                f"REQ-5: nothing else runs and {len(key.tokens)} tokens fit an empty cache: expected to be admitted"
            )
            self.require_served(before, 0)
            return None
        number = len(self.keys)
        self.keys[number], self.computed[number] = key, admission.cached_tokens + admission.copied_tokens
        self.require_cached(number, known, admission)
        self.require_served(before, admission.cached_tokens)
        self.handles[number] = admission.request
        return number

    def require_served(self, before: Mapping[str, int] | None, tokens: int) -> None:
        """EVENT-3: what was reported before, and how many cached tokens a request was given since."""
        if before is not None:
            after = self.adapter.reported_metrics()
            hit = sum(after[name] - before[name] for name in ("match_device", "match_host"))
            assert hit == tokens, f"EVENT-3: a request was given {tokens} cached tokens, and {hit} were counted"

    def ask(self, key: Key) -> tuple[ExpectedMatch, Admission | None]:
        """Admit a request. Also returns the hit that the oracle expects."""
        if self.blocks is not None:
            # The driver compares the hit of an admission with the oracle of blocks: a request that runs alone may have
            # to do without its hit.
            admission = self.admission_of(key)
            hit = 0 if admission is None else admission.cached_tokens
            self.sync()
            return ExpectedMatch(hit, hit, {}), admission
        found = len(key.tokens) - self.driver.geometry.recomputed_tokens
        known = self.model.expected_match(Key(key.tokens[:found], key.namespace))
        admission = self.admission_of(key)
        self.sync()
        return known, admission

    def grow(self, number: int, tokens: list[int], longer: Key) -> bool:
        """Give a request slots for more tokens; False without room. `longer`: its key with them."""
        self.permit(number)
        is_granted = self.driver.extend(self.handles[number], tokens) is not None
        self.sync()
        return is_granted

    def require_cached(self, number: int, known: ExpectedMatch, admission: Admission) -> None:
        """MATCH-1: a request got all tokens that are cached of its prompt."""
        given = admission.cached_tokens
        assert given == known.anchor, f"MATCH-1: expected {known.anchor} cached tokens, got {given}"

    def is_ready(self, number: int) -> bool:
        """Whether a request runs and can be computed."""
        return number in self.handles

    def give_back(self) -> None:
        """Abort every request: no lock and no slot is left (FLOW-7, as far as it concerns the device)."""
        for number in list(self.handles):
            self.end(number, is_finished=False)
        if self.blocks is not None:
            used = [block for block in self.driver.block_snapshot().blocks if block.references]
            assert not used, f"REQ-2: every request has ended: expected no block with references, got {used}"
            return
        locked = [node for node in self.driver.snapshot().nodes if any(node.locks.values())]
        held = {component: len(slots) for component, slots in self.driver.ledger.held().items() if len(slots)}
        assert not locked, f"REQ-2: every request has ended: expected no locked node, got {len(locked)}"
        assert not held, f"REQ-2: every request has ended: expected no held slots, got {held}"

    def end(self, number: int, is_finished: bool) -> None:
        """Finish or abort a request."""
        handle = self.handles.pop(number)
        if is_finished:
            self.computed[number] = len(self.keys[number].tokens)
            self.driver.finish(handle)
        elif handle is self.preempted:
            self.driver.preempt(handle)
        else:
            self.driver.abort(handle)
        self.cached(number)

    def cached(self, number: int) -> None:
        """A request may have cached what it computed."""
        self.permit(number)
        self.sync()

    def permit(self, number: int) -> None:
        """Allow that a request cached any part of its prompt. Of blocks the driver knows what was computed."""
        if self.blocks is None:
            self.model.permit(self.keys[number])

    # Internal.

    def _fits_empty(self, key: Key) -> bool:
        geometry = self.driver.geometry
        return geometry.fits(
            geometry.blocks_of(self.driver.slot_tokens(len(key.tokens))),
            geometry.in_blocks(self.config.capacity_tokens),
        )


class RequestMachine(RequestVerbs):
    """Requests on one tier. `order`: what an admission may evict, or None where the oracle does not know it."""

    requests = RequestVerbs.requests
    order: RequestOrder | None = None

    def opened(self, data: st.DataObject) -> None:
        is_known = self.components == (Component.FULL,) and self.config.policy is EvictionPolicy.LRU
        if is_known and not self.departs("EVICT-2", "MATCH-10"):
            self.order = RequestOrder(self.config, self._is_cached, spares=not self.departs("EVICT-1"))

    # The first two are used most: they end in the situations that the others begin with.

    def serve(self, pages: list[int], tail: int, is_finished: bool) -> object:
        """Admit a prompt, compute it in full and end it."""
        number = self.start(self.key(pages, tail, SHARED))
        if number is None:
            return multiple()
        self.checkpoint(number, len(self.keys[number].tokens))
        self.end(number, is_finished)
        return number

    def press(self, missing: int) -> None:
        """A request takes all free pages and some more, shares nothing with any prompt, and is aborted."""
        pages = self._free_pages() + missing
        first = FIRST_STRANGE_PAGE + len(self.keys)
        number = self.start(self.key([first, *[first + 1] * (pages - 1)], 0, SHARED)) if pages else None
        if number is not None:
            self.end(number, is_finished=False)

    serve_one = rule(target=requests, pages=FEW_PAGES, tail=REQUEST_TAIL, is_finished=st.booleans())(serve)
    press_alone = rule(missing=st.integers(0, 3))(press)

    @rule(first=st.integers(1, 3), second=st.integers(4, 6), missing=st.integers(1, 2))
    def serve_in_turn(self, first: int, second: int, missing: int) -> None:
        """Serve a long prompt and another one, use the beginning of the first again, and take some of their pages."""
        for pages in ([first, second], [second], [first]):
            self.serve(pages, 1, is_finished=True)
        self.press(missing)

    @rule(
        pages=st.lists(st.integers(1, 3), min_size=1, max_size=2),
        is_first_last=st.booleans(),
        missing=st.integers(1, 2),
    )
    def serve_twice(self, pages: list[int], is_first_last: bool, missing: int) -> None:
        """Compute two equal prompts side by side, end them in either order, take some pages, and ask for the prompt."""
        key = self.key(pages, 1, SHARED)
        numbers = [number for number in (self.start(key), self.start(key)) if number is not None]
        for number in numbers:
            self.checkpoint(number, len(key.tokens))
        for number in reversed(numbers) if is_first_last else numbers:
            self.end(number, is_finished=True)
        self.press(missing)
        # The driver compares what is found with what is cached, in any copy.
        self.driver.lookup(key)

    admit_equal = rule(target=requests, number=requests)(RequestVerbs.admit_equal)
    admit_batch = rule(target=requests, pages=FEW_PAGES, tail=REQUEST_TAIL, tokens=CHUNK, ended=st.integers(0, 2))(
        RequestVerbs.admit_batch
    )

    @rule(data=st.data(), pages=st.integers(1, 8))
    def evict(self, data: st.DataObject, pages: int) -> None:
        """Evict pages of one component. A cache without the verb evicts when it is short of slots."""
        if Capability.VERBS not in self.adapter_type.capabilities:
            return
        component = data.draw(st.sampled_from(self.components), label="component")
        self.driver.evict(component, self.slots_of(component, pages))
        self.sync()
        if self.order is not None:
            self.order.require_evictions(f"evict({pages} pages)", needed=pages, free=0)

    # Overridden hooks.

    def ask(self, key: Key) -> tuple[ExpectedMatch, Admission | None]:
        free = self._free_pages()
        known, admission = super().ask(key)
        if self.order is None:
            return known, admission
        if admission is None:
            self.order.refused(key)
            return known, admission
        self.order.admitted(len(self.keys), key, admission.cached_tokens)
        needed = (len(admission.table) - admission.cached_tokens) // self.config.page_size
        self.order.require_evictions(f"admission of {len(key.tokens)} tokens", needed, free)
        return known, admission

    def grow(self, number: int, tokens: list[int], longer: Key) -> bool:
        free, running = self._free_pages(), self.driver.running[id(self.handles[number])]
        known = running.slot_tokens
        is_granted = super().grow(number, tokens, longer)
        if self.order is not None and not is_granted:
            self.order.refused(self.keys[number])
        elif self.order is not None:
            self.order.extended(number, longer)
            page, ahead = self.config.page_size, self.driver.geometry.lookahead
            before, after = (-(-(count + ahead) // page) for count in (known, running.slot_tokens))
            needed = after - before
            self.order.require_evictions(f"extension to {len(longer.tokens)} tokens", needed, free)
        return is_granted

    def cached(self, number: int) -> None:
        super().cached(number)
        if self.order is not None:
            self.order.cached_by(number)
            if number not in self.handles:
                self.order.ended(number)

    def give_back(self) -> None:
        """Also look up every prompt: what is cached is found, also after other evictions."""
        super().give_back()
        for key in self.keys.values():
            self.driver.lookup(key)

    # Internal.

    def _is_cached(self, key: Key) -> bool:
        aligned = self.driver.aligned(key)
        if self.blocks is not None:
            return self.blocks.expected_hit(key, aligned) == aligned
        return self.model.expected_match(key).anchor == aligned

    def _free_pages(self) -> int:
        return self.adapter.sizes()[Component.FULL].free // self.config.page_size
