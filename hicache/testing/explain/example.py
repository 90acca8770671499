"""The example of `hicache explain`: its configurations, its steps, and what must be cached after each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hicache.config import CacheConfig, ExecutorKind, HostConfig, Layout, StorageConfig, read_table
from hicache.errors import InvariantError
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.configurations import needs_of
from hicache.testing.driving.driver import Driver
from hicache.testing.driving.patterns import elements_of
from hicache.testing.explain.drawing import (
    ARRIVING,
    FREE,
    HERE,
    STORED_ONLY,
    Drawing,
    DrawnRow,
    StoredPages,
    TreeRows,
    pool_lines,
)
from hicache.testing.hybrid_model import TINY_MODEL
from hicache.testing.storage.scripted import BACKEND, store_of
from hicache.testing.violation import violation
from hicache.types import (
    COMPONENT_POOL,
    SHARED,
    Component,
    Handle,
    Key,
    MatchResult,
    Slots,
    StopPolicy,
    StorageKind,
    Tier,
    TransferKind,
)

PAGE_SIZE = 4
"""Tokens in a page. In the example a token is a word."""

ON_HOST = CacheConfig(
    {Component.FULL.value: 32, Component.SWA.value: 32, Component.MAMBA.value: 4},
    components=tuple(component.value for component in Component),
    page_size=PAGE_SIZE,
    sliding_window_size=16,
    mamba_chunk_size=PAGE_SIZE,
    model=TINY_MODEL,
    host=HostConfig(
        {Component.FULL.value: 48, Component.SWA.value: 48, Component.MAMBA.value: 6},
        layout=Layout.PAGE_FIRST,
        load_back_threshold_tokens=0,
        executor=ExecutorKind.STEPPED,
    ),
)
IN_STORAGE = replace(
    ON_HOST,
    storage=StorageConfig(
        BACKEND,
        model="example",
        model_fingerprint="no model",
        options={"store": "example"},
        prefetch_threshold=0,
        stop_policy=StopPolicy.WAIT_COMPLETE,
        executor=ExecutorKind.STEPPED,
    ),
)
_TABLE = read_table(Path(__file__).parent / "steps.toml")
TITLE: str = _TABLE["title"]
INTRODUCTION = " ".join(_TABLE["introduction"].split())
CAT, EAT, DRINK, SLEEP, COUNT = (_TABLE["texts"][name] for name in ("CAT", "EAT", "DRINK", "SLEEP", "COUNT"))
ASKED = f"{CAT} {EAT}"


@dataclass(frozen=True, slots=True)
class ExampleStep:
    """One step. `clauses`: those that it shows. `nodes`: for each row that must be drawn its text, signs and locks."""

    title: str
    text: str
    clauses: tuple[str, ...]
    nodes: tuple[tuple[str, str, frozenset[str]], ...]


def _step(row: Mapping[str, Any]) -> ExampleStep:
    nodes = tuple(
        (" ".join(_TABLE["texts"][name] for name in names.split()), signs, frozenset(filter(None, locks.split(", "))))
        for names, signs, locks in row["nodes"]
    )
    return ExampleStep(row["title"], " ".join(row["text"].split()), tuple(row["clauses"]), nodes)


@dataclass(frozen=True, slots=True)
class Part:
    """Steps that run one after the other on one cache. `run`: does one step at a time."""

    config: CacheConfig
    steps: tuple[ExampleStep, ...]
    run: Callable[[Example], Iterator[None]]

    def lacks(self, adapter: type[CacheAdapter]) -> list[Capability]:
        """The capabilities that the steps need and the adapter does not declare."""
        needs = needs_of(self.config) | {Capability.SNAPSHOT}
        return [capability for capability in Capability if capability in needs - adapter.capabilities]


@dataclass(frozen=True, slots=True, eq=False)
class ExampleRequest:
    """A running request. `slots`: of its whole prompt; the first `shared` belong to the tree. `state`: its own slot."""

    key: Key
    slots: Slots
    shared: int
    state: int
    receipt: Handle


class Example:
    """The cache of the example behind the driver, which checks every law after each call. Prompts are texts."""

    def __init__(self, adapter: CacheAdapter, config: CacheConfig) -> None:
        self.driver = Driver(adapter, config)
        self._store = store_of(config)
        if self._store is not None:
            self._store.empty()
        self._tokens: dict[str, int] = {}
        self._prompts: dict[bytes, None] = {}
        self._fetched = b""
        self._marks: dict[bytes, str] = {}

    def key(self, text: str) -> Key:
        """A key with one token for each word."""
        return self.driver.key([self._tokens.setdefault(word, len(self._tokens)) for word in text.split()])

    def drawing(self) -> Drawing:
        """Draw the cache, with the marks of the last match, and remove the marks. InvariantError without a host."""
        snapshot, pending = self.driver.snapshot(), tuple(self.driver.pending())
        if snapshot.host is None:
            raise violation("POOL-1", "snapshot", "a host tier", None)
        stored = None
        if self._store is not None:
            is_writing = any(one.kind is StorageKind.STORE for one in pending)
            page_bytes = self.driver.config.key_bytes_per_page
            stored = StoredPages(tuple(self._prompts), self._fetched, self._stored, is_writing, page_bytes)
        marks, self._marks = self._marks, {}
        rows = TreeRows(snapshot, snapshot.host, self._pages, stored, marks).rows()
        pools = pool_lines(snapshot, snapshot.host, PAGE_SIZE)
        tiers = (Tier.DEVICE, Tier.HOST, *([Tier.STORAGE] if stored else ()))
        return Drawing(tiers, marks.get(b"", ""), tuple(rows), pending, tuple(pools))

    def put(self, text: str) -> None:
        """Run a whole request: compute its prompt and insert it."""
        self._prompts[_bytes(self.key(text))] = None
        self.driver.put(self.key(text))

    def match(self, text: str, *, anchor: str, best: str) -> MatchResult:
        """Match a prompt. The device anchor must be the end of `anchor`, and the best match the end of `best`."""
        found, expected, path = self.driver.match(self.key(text)), len(anchor.split()), _bytes(self.key(best))
        if len(found.device_indices) != expected:
            raise violation("MATCH-5", f"device indices of {text!r}", f"{expected} tokens", len(found.device_indices))
        snapshot = self.driver.snapshot()
        on_host = sum(
            node.end - node.start
            for number, node in enumerate(snapshot.nodes)
            if node.slots[Component.FULL] is None and path.startswith(snapshot.prefix(number))
        )
        if found.host_hit_length != on_host:
            raise violation("MATCH-12", f"host hit of {text!r}", f"{on_host} tokens", found.host_hit_length)
        self._marks = {_bytes(self.key(anchor)): "◀ device anchor", path: "◀ best match"}
        return found

    def load(self, text: str, found: MatchResult) -> Handle:
        """Start to load back what a match found on the host, and copy half of the layers."""
        load = self.driver.load_back(self.key(text), found)
        if load is None:
            raise violation("HOST-4", f"load-back of {text!r}", "a load, as there is room for it", None)
        self.copy_half()
        return load.ticket

    def begin(self, text: str) -> ExampleRequest:
        """Start a request: lock the prefix of its prompt on the device, and allocate slots for the rest."""
        key = self.key(text)
        found = self.driver.match(key, chunked=True)
        receipt = self.driver.lock(found.device_anchor)
        shared = len(found.device_indices)
        fresh = self.driver.allocate(len(key.tokens) - shared)
        state = self.driver.fork_state(found.device_anchor)
        if fresh is None or state is None:
            raise violation("EVICT-1", f"a request for {text!r}", "room for its tokens and a state", (fresh, state))
        return ExampleRequest(key, np.concatenate((found.device_indices, fresh)), shared, state, receipt)

    def cache(self, request: ExampleRequest) -> Handle:
        """Compute the rest of the prompt, insert it, and move the lock to its end. Returns the new lock."""
        self._prompts[_bytes(request.key)] = None
        self.driver.write(request.key, request.slots[request.shared :], request.shared)
        self.driver.write_state(request.key, request.state)
        result = self.driver.insert(request.key, request.slots, shared=request.shared, state=request.state)
        if not result.state_adopted:
            raise violation("INS-7", "insert of a request", "its state to be taken", result)
        receipt = self.driver.lock(result.node)
        self.driver.unlock(request.receipt)
        return receipt

    def copy_half(self) -> None:
        """Start all queued transfers, and copy half of the layers of each."""
        self.driver.step()
        self._advance(*TransferKind)

    def write_half(self) -> None:
        """Finish all transfers, and write half of the batches that follow them to storage."""
        self.driver.step()
        self.driver.complete_all()
        self.driver.step()
        self._require_pending("FETCH-9", "a write", StorageKind.STORE)
        self._advance(StorageKind.STORE)

    def prefetch(self, text: str) -> Handle:
        """Start a prefetch. Storage reports the length of the prefix, and reads half of the batches."""
        ticket = self.driver.prefetch(self.key(text))
        if ticket is None:
            raise violation("FETCH-1", f"prefetch of {text!r}", "a ticket: storage may have what the tree lacks", None)
        self._fetched = _bytes(self.key(text))
        self.driver.step()
        for query in self.driver.pending(StorageKind.QUERY):
            self.driver.complete(query.ticket)
        self.driver.step()
        self._require_pending("FETCH-4", f"what is read of {text!r}", StorageKind.PREFETCH)
        self._advance(StorageKind.PREFETCH)
        return ticket

    def finish_prefetch(self, ticket: Handle, text: str) -> None:
        """Finish a prefetch. It must have brought exactly this text."""
        self.driver.drain()
        self._fetched = b""
        brought, expected = self.driver.check_prefetch(ticket), len(text.split())
        if brought != expected:
            raise violation("FETCH-4", f"prefetch of {text!r}", f"{expected} tokens", brought)

    def _require_pending(self, clause: str, place: str, kind: StorageKind) -> None:
        if not self.driver.pending(kind):
            raise violation(clause, place, f"a request of the kind {kind.value} to storage", self.driver.pending())

    def _advance(self, *kinds: TransferKind | StorageKind) -> None:
        for one in self.driver.pending(*kinds):
            for _ in range(one.units // 2 - one.units_done):
                self.driver.advance(one.ticket)

    def _pages(self, segment: bytes) -> tuple[str, ...]:
        known = list(self._tokens)
        words = [known[token] for token in np.frombuffer(segment, dtype="<i4").tolist()]
        return tuple(" ".join(words[first : first + PAGE_SIZE]) for first in range(0, len(words), PAGE_SIZE))

    def _stored(self, component: str, prefix: bytes) -> list[bool]:
        assert self._store is not None, "asked for with storage alone"
        key = Key(np.frombuffer(prefix, dtype="<i4").astype(np.int32), SHARED)
        return self._store.readable(self.driver.storage_keys(COMPONENT_POOL[component], key))


def _bytes(key: Key) -> bytes:
    return elements_of(key, bigram=False)


def _on_host(example: Example) -> Iterator[None]:
    """The steps on device and host, in the order of steps.toml."""
    driver = example.driver
    example.put(ASKED)
    example.copy_half()
    yield
    driver.drain()
    yield
    example.put(CAT)
    example.copy_half()
    ben = example.begin(f"{CAT} {SLEEP}")
    yield
    driver.unlock(example.cache(ben))
    driver.drain()
    example.put(COUNT)
    driver.drain()
    yield
    found = example.match(f"{ASKED} {DRINK}", anchor=CAT, best=ASKED)
    yield
    ticket = example.load(ASKED, found)
    yield
    driver.drain()
    ann = example.begin(f"{ASKED} {DRINK}")
    driver.claim(ticket)
    yield
    example.cache(ann)
    driver.drain()
    driver.evict(Component.SWA, len(CAT.split()))
    yield
    found = example.match(f"{CAT} {SLEEP} And when it rains?", anchor="", best=f"{CAT} {SLEEP}")
    example.load(f"{CAT} {SLEEP}", found)
    yield
    driver.evict_host(Component.FULL, len(f"{COUNT} {DRINK}".split()))
    yield
    driver.reset()
    yield


def _in_storage(example: Example) -> Iterator[None]:
    """The steps with storage, in the order of steps.toml."""
    driver = example.driver
    example.put(ASKED)
    example.write_half()
    yield
    driver.drain()
    yield
    example.put(COUNT)
    driver.drain()
    driver.evict(Component.FULL, len(ASKED.split()))
    driver.evict_host(Component.FULL, len(ASKED.split()))
    yield
    prefetch = example.prefetch(f"{ASKED} {DRINK}")
    yield
    example.finish_prefetch(prefetch, ASKED)
    found = example.match(f"{ASKED} {DRINK}", anchor="", best=ASKED)
    yield
    ticket = example.load(ASKED, found)
    yield
    driver.drain()
    ann = example.begin(f"{ASKED} {DRINK}")
    driver.claim(ticket)
    driver.unlock(example.cache(ann))
    driver.drain()
    yield
    driver.restart()
    yield


HOST_PART = Part(ON_HOST, tuple(map(_step, _TABLE["host"])), _on_host)
STORAGE_PART = Part(IN_STORAGE, tuple(map(_step, _TABLE["storage"])), _in_storage)
"""Every adapter needs what the first part needs. The second is left out for an adapter without storage."""


def parts_of(adapter: type[CacheAdapter]) -> tuple[Part, ...]:
    """The parts that an adapter can run; none without what the first one needs."""
    if HOST_PART.lacks(adapter):
        return ()
    return (HOST_PART,) if STORAGE_PART.lacks(adapter) else (HOST_PART, STORAGE_PART)


def run_example(adapter: type[CacheAdapter]) -> Iterator[tuple[int, ExampleStep, Drawing]]:
    """Run all steps that the adapter can, each part on a new cache, and draw the cache after each. Numbers start at 1.

    Raises InvariantError with the step if a law is violated or the cache does not do what the step says, and
    ConfigurationError if the cache cannot be opened.
    """
    number = 0
    for part in parts_of(adapter):
        example = Example(adapter(part.config), part.config)
        try:
            running = part.run(example)
            for step in part.steps:
                number += 1
                try:
                    next(running)
                    drawing = example.drawing()
                    require_step(step, drawing)
                except InvariantError as error:
                    raise InvariantError(f"step {number}, {step.title!r}: {error}") from error
                yield number, step, drawing
        finally:
            example.driver.adapter.close()


def require_step(step: ExampleStep, drawing: Drawing) -> None:
    """Raise InvariantError unless the drawing has exactly the rows of the step."""
    expected, texts = [text for text, _, _ in step.nodes], [" ".join(row.pages) for row in drawing.rows]
    if texts != expected:
        raise violation(step.clauses[0], "nodes of the tree", expected, texts)
    for row, (text, signs, locks) in zip(drawing.rows, step.nodes, strict=True):
        if not _agrees(row, signs, locks):
            found = f"{row.signs} locked by {', '.join(row.locks) or 'nothing'}"
            raise violation(
                step.clauses[0], repr(text), f"{signs} locked by {', '.join(sorted(locks)) or 'nothing'}", found
            )
    in_tree = any(STORED_ONLY not in locks for _, _, locks in step.nodes)
    bars = [set(bar[2:]) for _, *bars in drawing.pools for bar in bars]
    if not in_tree and any(bar != {FREE} for bar in bars):
        raise violation(step.clauses[0], "pools without a tree", "every page free", drawing.pools)


def _agrees(row: DrawnRow, signs: str, locks: frozenset[str]) -> bool:
    """A cache may hold other locks on the host, and storage may have taken some pools of a write, but not all."""
    found = row.signs
    if Tier.STORAGE in row.cells and ARRIVING in found[-3:]:
        taken = (
            want if (want, sign) == (ARRIVING, HERE) else sign
            for want, sign in zip(signs[-3:], found[-3:], strict=True)
        )
        found = f"{found[:-3]}{''.join(taken)}"
    others = set(row.locks) - locks
    return found == signs and locks <= set(row.locks) and all(one.startswith("host ") for one in others)
