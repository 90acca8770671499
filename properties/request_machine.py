"""RequestMachine: requests that start, grow, are cached in chunks, finish and abort while slots run out."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, consumes, multiple, rule

from hicache.testing.adapter import Admission
from hicache.testing.model import ExpectedMatch
from hicache.types import Component, Handle, Key, Namespace

from .machine import CacheMachine
from .tiny import NAMESPACE, PAGES


class RequestMachine(CacheMachine):
    """Drives the life of requests. What is cached is left to the cache, as long as some request computed it."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.keys: dict[int, Key] = {}
        self.computed: dict[int, int] = {}
        self.handles: dict[int, Handle] = {}

    @rule(target=requests, pages=PAGES, tail=st.integers(1, 2), namespace=NAMESPACE)
    def admit(self, pages: list[int], tail: int, namespace: Namespace) -> object:
        """A prompt arrives; it starts if there is room, and must start when nothing else runs and it fits."""
        number = self.start(self.key(pages, tail, namespace))
        return multiple() if number is None else number

    @rule(number=requests, tokens=st.integers(1, 6))
    def checkpoint(self, number: int, tokens: int) -> None:
        """The next chunk of a prompt is computed and cached."""
        if not self.is_ready(number):
            return
        self.computed[number] = min(len(self.keys[number].tokens), self.computed[number] + tokens)
        self.driver.checkpoint(self.handles[number], self.computed[number])
        self._cached(number)

    @rule(number=requests, tokens=st.lists(st.integers(0, 9), min_size=1, max_size=4))
    def extend(self, number: int, tokens: list[int]) -> None:
        """The request decodes; when there is no room it goes on as it was."""
        if not self.is_ready(number):
            return
        key = self.keys[number]
        self.computed[number] = len(key.tokens)
        if self.driver.extend(self.handles[number], tokens) is not None:
            self.keys[number] = self.driver.key([*key.tokens.tolist(), *tokens], key.namespace)
        self.sync()

    @rule(number=consumes(requests))
    def finish(self, number: int) -> None:
        """All is computed, and the request ends."""
        if self.is_ready(number):
            self.end(number, is_finished=True)

    @rule(number=consumes(requests))
    def abort(self, number: int) -> None:
        """The client is gone."""
        if number in self.handles:
            self.end(number, is_finished=False)

    @rule(data=st.data(), pages=st.integers(1, 8))
    def evict(self, data: st.DataObject, pages: int) -> None:
        """Room is made in one component."""
        component = data.draw(st.sampled_from(self.components), label="component")
        self.driver.evict(component, self.slots_of(component, pages))
        self.sync()

    # For those who inherit.

    def start(self, key: Key) -> int | None:
        """Admit a request; its number, or None when it does not fit."""
        known, admission = self.ask(key)
        if admission is None:
            assert self.handles or not self._fits_empty(key), f"REQ-5: {len(key.tokens)} tokens fit an empty cache"
            return None
        number = len(self.keys)
        self.keys[number], self.computed[number] = key, admission.cached_tokens
        self.require_cached(number, known, admission)
        self.handles[number] = admission.request
        return number

    def ask(self, key: Key) -> tuple[ExpectedMatch, Admission | None]:
        """Ask for an admission; with what the request may find: the last token is never taken from the cache."""
        known = self.model.expected_match(Key(key.tokens[:-1], key.namespace))
        admission = self.driver.admit(key)
        self.sync()
        return known, admission

    def require_cached(self, number: int, known: ExpectedMatch, admission: Admission) -> None:
        """A request was given all that is cached of it."""
        given = admission.cached_tokens
        assert given == known.anchor, f"MATCH-1: {known.anchor} tokens are cached, {given} given"

    def is_ready(self, number: int) -> bool:
        """Whether a request runs, and can be computed."""
        return number in self.handles

    def give_back(self) -> None:
        """End every request: then all is given back (FLOW-7, in the part that one tier has)."""
        for number in list(self.handles):
            self.end(number, is_finished=False)
        locked = [node for node in self.driver.snapshot().nodes if any(node.locks.values())]
        held = {component: len(slots) for component, slots in self.driver.ledger.held().items() if len(slots)}
        assert not locked, f"REQ-2: every request has ended, {len(locked)} nodes are locked"
        assert not held, f"REQ-2: every request has ended, {held} slots are held"

    def end(self, number: int, is_finished: bool) -> None:
        """Let a request end in one way or the other."""
        handle = self.handles.pop(number)
        if is_finished:
            self.driver.finish(handle)
        else:
            self.driver.abort(handle)
        self._cached(number)

    # Inside.

    def _cached(self, number: int) -> None:
        self.model.permit(self.keys[number])
        self.sync()

    def _fits_empty(self, key: Key) -> bool:
        page = self.config.page_size
        needed = -(-len(key.tokens) // page) * page
        return all(size >= needed for c, size in self.config.capacity_tokens.items() if c != Component.MAMBA)
