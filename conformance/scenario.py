"""What a scheduler does with a cache, over prompts of whole pages that are named by numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytest

from hicache.config import CacheConfig, ExecutorKind, HostConfig, StorageConfig, WritePolicy
from hicache.testing.adapter import Admission, CacheAdapter, Capability, Pending
from hicache.testing.configurations import standard_configurations
from hicache.testing.driving.driver import Driver
from hicache.testing.driving.pools import component_of, pools_of, tokens_per_row, with_entry
from hicache.testing.driving.prompts import page_numbers
from hicache.testing.snapshot import HostNodeView, NodeView, Snapshot, StorageView, TransferView
from hicache.testing.storage.scripted import Store, store_of
from hicache.testing.stored import restorable_pages
from hicache.types import (
    NO_SLOTS,
    SHARED,
    Component,
    EvictResult,
    Handle,
    InsertResult,
    Key,
    LoadBack,
    Namespace,
    Pool,
    Slots,
    StopPolicy,
    StorageKind,
    Tier,
    TransferKind,
)

from .snapshot_values import (
    LockCounts,
    Pages,
    Place,
    lock_counts,
    prefixes,
    residency,
    snapshot_values,
    tokens_of_prefix,
)

Value = TypeVar("Value")

FULL, SWA, MAMBA = (component.value for component in Component)

FORWARD = (WritePolicy.WRITE_THROUGH, WritePolicy.WRITE_THROUGH_SELECTIVE)
"""The policies that back up before an eviction."""

TOMBSTONE = (1, 2)
"""The prefix that lacks the component."""

REFUSALS = (ValueError, LookupError, AssertionError)
"""The errors that count as a refusal. Those of this package are among them."""

COUNTER = {TransferKind.BACKUP: "bytes_backed_up", TransferKind.LOAD: "bytes_loaded"}


@dataclass(frozen=True, slots=True, eq=False)
class FreshInsert:
    """An insert of a prompt that shares no slot with the tree: the slots and the state it gave, and its result."""

    slots: Slots
    partners: Slots
    state: int | None
    result: InsertResult


class TierHits(NamedTuple):
    """Pages that are found on the device, and the pages after them that are on the host alone."""

    device: int
    host: int


class TierViews(NamedTuple):
    """One node: its view on the device and its view on the host."""

    node: NodeView
    host: HostNodeView


class Scenario(Driver):
    """A driver that takes prompts by their pages, and shows what the cache holds of them as plain values.

    Where a method of Driver takes a key or a handle, the method that takes pages ends with `_pages`.
    """

    # The configuration.

    @property
    def host_config(self) -> HostConfig:
        """The host tier of the configuration, which must have one."""
        assert self.config.host is not None, f"{self.config.name} has a host tier"
        return self.config.host

    @property
    def window_pages(self) -> int:
        """How many pages the window of one token covers, wholly or in part."""
        return -(-(self.config.sliding_window_size or 0) // self.config.page_size)

    def window_tokens(self, pages: int) -> int | None:
        """A window so many pages long in tokens; with several tokens in a page, half of the last; None without SWA."""
        return pages * self.config.page_size - self.config.page_size // 2 if self.has(SWA) else None

    def capacity_for(self, pages: int, states: int) -> dict[str, int]:
        """A capacity of so many pages of each component, and so many states."""
        return capacity_for(self.config, pages, states)

    # Prompts on the device and on the host.

    def key_of(self, pages: Sequence[int]) -> Key:
        """The prompt of these pages."""
        return self.key(self.prompt(pages))

    def put_pages(
        self, pages: Sequence[int], *, passed: int = 0, with_state: bool = True, priority: int = 0
    ) -> InsertResult:
        """Match a prompt, compute the rest and insert it. `passed`: the first pages are before the request's window."""
        window_start = passed * self.config.page_size
        return self.put(self.key_of(pages), window_start=window_start, with_state=with_state, priority=priority)

    def put_prefixes(self, pages: Sequence[int]) -> None:
        """Cache each prefix of a prompt, the shortest first, so that with MAMBA each has its state."""
        for count in range(1, len(pages) + 1):
            self.put_pages(pages[:count])

    def insert_fresh(self, pages: Sequence[int], *, passed: int = 0, with_state: bool = True) -> FreshInsert:
        """Insert a prompt from newly allocated slots only, as a request does whose match found nothing."""
        key, size = self.key_of(pages), self.config.page_size
        slots = self.allocate(len(pages) * size)
        assert slots is not None, f"the scenario needs free slots for {len(pages)} pages, got none"
        if passed and self.has(SWA):
            self.release_window(slots[: passed * size])
        partners = self.adapter.partners(slots) if self.has(SWA) else NO_SLOTS
        self.write(key, slots, 0)
        state = self.allocate_state() if with_state and self.has(MAMBA) else None
        if state is not None:
            self.write_state(key, state)
        result = self.insert(key, slots, shared=0, window_start=passed * size, state=state)
        if state is not None and not result.state_adopted:
            self.free_state(state)
        return FreshInsert(slots, partners, state, result)

    def use(self, pages: Sequence[int]) -> None:
        """A request uses a prompt: it matches the prompt, locks what is cached of it, and releases the lock."""
        self.unlock(self.lock(self.match(self.key_of(pages)).device_anchor))

    def find(self, pages: Sequence[int]) -> Handle:
        """The node at the end of a prompt that is cached in full on the device. The match is not counted as a hit."""
        found = self.match(self.key_of(pages), chunked=True)
        hit = len(found.device_indices) // self.config.page_size
        assert hit == len(pages), (
            f"MATCH-1: {tuple(pages)} is cached: expected {len(pages)} pages on the device, got {hit}"
        )
        return found.device_anchor

    def hit_pages(self, pages: Sequence[int], namespace: Namespace = SHARED) -> int:
        """Match a prompt, as a request that counts as a hit; the number of pages found on the device."""
        found = self.match(self.key(self.prompt(pages), namespace))
        return len(found.device_indices) // self.config.page_size

    def tier_hits(self, pages: Sequence[int], namespace: Namespace = SHARED) -> TierHits:
        """The pages of a prompt that are found on each tier. The match is not counted as a hit."""
        found = self.match(self.key(self.prompt(pages), namespace), chunked=True)
        size = self.config.page_size
        return TierHits(len(found.device_indices) // size, found.host_hit_length // size)

    def best_match(self, pages: Sequence[int]) -> Handle:
        """The node at the end of a prompt that is cached in full, on either tier.

        No match counts FULL data on the device past the anchor, where a state or a window is missing: a prompt with
        such data is treated as not cached in full.
        """
        found = self.match(self.key_of(pages), chunked=True)
        hit = (len(found.device_indices) + found.host_hit_length) // self.config.page_size
        assert hit == len(pages), (
            f"MATCH-1: {tuple(pages)} is cached on some tier: expected {len(pages)} pages, got {hit}"
        )
        return found.best_match

    def lock_pages(self, pages: Sequence[int]) -> Handle:
        """Lock a prompt that is cached in full on the device; returns the receipt."""
        return self.lock(self.find(pages))

    def evict_all(self, *components: str) -> None:
        """Evict from the device everything that can be evicted of these components, by default of all."""
        for component in components or self.config.components:
            self.evict(component, self.config.capacity_tokens[component])

    def evict_all_host(self, *components: str) -> None:
        """Evict from the host everything that can be evicted of these components, by default of all."""
        capacity_tokens = self.host_config.capacity_tokens
        for component in components or self.config.components:
            self.evict_host(component, capacity_tokens[component])

    def put_and_back_up(self, *prompts: Sequence[int]) -> None:
        """Cache prompts as often as the write policy needs to back them up; write_back backs up only at an eviction."""
        for pages in prompts:
            self.put_pages(pages)
            if self.has_policy(WritePolicy.WRITE_THROUGH_SELECTIVE):
                self.put_pages(pages)
        self.drain()

    def put_on_both(self, *prompts: Sequence[int]) -> None:
        """Cache prompts, in this order, so that all of their data is on the device and on the host."""
        if self.has_policy(WritePolicy.WRITE_BACK):
            self.put_on_host(*prompts)
            for pages in prompts:
                self.load(self.key_of(pages))
        else:
            self.put_and_back_up(*prompts)
        missing = _prefixes(prompts) - (self.device_slots(FULL).keys() & self.host_slots(FULL).keys())
        assert not missing, f"HOST-1: expected {prompts} on both tiers, {missing} is missing on one of them"

    def put_on_host(self, *prompts: Sequence[int]) -> None:
        """Cache prompts, in this order, and evict everything from the device: their data is on the host alone."""
        self.put_and_back_up(*prompts)
        self.evict_all()
        missing = _prefixes(prompts) - self.host_slots(FULL).keys()
        assert not missing, f"EVICT-7: expected {prompts} on the host, {missing} is missing"
        left = self.device_slots(FULL).keys()
        assert not left, f"EVICT-1: expected an empty device after all was evicted, got {left}"

    def has(self, component: str) -> bool:
        """Whether the cache under test has a component."""
        return component in self.config.components

    def has_policy(self, policy: WritePolicy) -> bool:
        """Whether the cache under test backs up to the host by this policy."""
        return self.config.host is not None and self.config.host.write_policy is policy

    def unit(self, component: str) -> int:
        """Slots of one page of a component; a state counts as a page of one slot."""
        return 1 if component == MAMBA else self.config.page_size

    def longer_prompt(self) -> list[int]:
        """A prompt that continues the tombstone by a whole window, so that it needs no SWA data at the tombstone."""
        return [*TOMBSTONE, *range(3, 3 + max(1, self.window_pages))]

    def make_tombstone(self, component: str) -> Handle:
        """Cache the longer prompt, and evict the component of the first two pages; returns their node."""
        self.put_pages(TOMBSTONE)
        handle = self.find(TOMBSTONE)
        self.put_pages(self.longer_prompt())
        self._make_gap(component)
        return handle

    def drop_on_device(self, component: str) -> None:
        """Cache the longer prompt on both tiers, and evict a component of its first two pages from the device."""
        self.put_on_both(TOMBSTONE, self.longer_prompt())
        self._make_gap(component)

    def evict_inner(self, component: str) -> EvictResult:
        """Evict a component from the device while the longer prompt is locked, so that the prefix alone loses it."""
        receipt = self.lock_pages(self.longer_prompt())
        result = self.evict(component, self.config.capacity_tokens[component])
        self.unlock(receipt)
        return result

    def evict_inner_from_host(self, component: str) -> None:
        """Evict a component from the host while the longer prompt is locked there: the prefix alone loses it."""
        receipt = self.lock_host(self.best_match(self.longer_prompt()))
        self.evict_all_host(component)
        self.unlock_host(receipt)

    def evicted_with(self, component: str) -> set[str]:
        """The components that an inner node loses with this one: itself, and those after it."""
        ranks = [FULL, SWA, MAMBA]
        return set(ranks[ranks.index(component) :]) & set(self.config.components)

    def recompute(self) -> None:
        """Another request computes the prefix again, and inserts all of its data."""
        self.insert_fresh(TOMBSTONE)
        self.find(TOMBSTONE)

    def run(self, pages: Sequence[int], tail: int = 0) -> None:
        """Run a request with this prompt from its admission to its end."""
        self.finish(self.admit_pages(pages, tail).request)

    def cached_pages(self, pages: Sequence[int], namespace: Namespace = SHARED) -> int:
        """How many pages of a prompt a request would find cached, if it may use all of them."""
        return self.lookup(self.key(self.prompt(pages), namespace)) // self.config.page_size

    def admit_pages(self, pages: Sequence[int], tail: int = 0) -> Admission:
        """Admit a request whose prompt is these pages and so many more tokens."""
        key, others = self.key([*self.prompt(pages), *range(tail)]), len(self.running)
        admission = self.admit(key)
        if admission is None and others and self.adapter.reserved_tokens(len(key.tokens)):
            pytest.skip(f"the output that {others} requests reserve leaves no room for a prompt of {len(pages)} pages")
        assert admission is not None, f"REQ-5: expected a prompt of {len(pages)} pages and {tail} tokens to be admitted"
        return admission

    def tokens_in_pages(self, pages: int) -> int:
        """The number of tokens that make so many whole pages."""
        return pages * self.config.page_size + int(self.config.bigram)

    def decode(self, admission: Admission, pages: Sequence[int]) -> None:
        """Compute all of a request's prompt, and extend it page by page."""
        size = self.config.page_size
        for page in pages:
            table = self.extend(admission.request, self.prompt([page])[-size:])
            assert table is not None, f"REQ-5: there is room for page {page}: expected a longer table, got None"

    def allocate_all(self) -> Slots:
        """Allocate every slot that is free or evictable in all pools at once."""
        sizes = [sizes for name, sizes in self.adapter.sizes().items() if name != MAMBA]
        count = min(size.free + size.evictable for size in sizes)
        slots = self.allocate(count)
        assert slots is not None, f"EVICT-1: {count} slots are free or evictable: expected them, got None"
        return slots

    def fill_device(self, first_page: int) -> Slots:
        """Allocate every slot that the device can give, and write other data there: pages from this one on."""
        slots = self.allocate_all()
        count = len(slots) // self.config.page_size
        self.write(self.key_of(range(first_page, first_page + count)), slots, 0)
        return slots

    @contextmanager
    def leave_only(self, component: str, count: int) -> Iterator[None]:
        """Limit the free pages or states of a component to `count` while the block runs.

        Everything evictable is evicted first. The other components keep what is left.
        """
        held, states = NO_SLOTS, list[int]()
        if component == MAMBA:
            states = self._allocate_states()
            self._free_states(states[:count])
            states = states[count:]
        else:
            held = self._allocate_full() if component == FULL else self.allocate_all()
            given = count * self.config.page_size
            self.free(held[:given])
            held = held[given:]
        try:
            yield
        finally:
            self.free(held)
            self._free_states(states)

    def open_variant(self, **changes: Any) -> Scenario:
        """A driver of an empty cache that differs in these fields of CacheConfig."""
        return _opened(type(self.adapter), replace(self.config, **changes))

    def open_with_window(self, pages: int) -> Scenario:
        """An empty cache whose window is so many pages long; with several tokens in a page, half of the last."""
        return self.open_variant(sliding_window_size=self.window_tokens(pages))

    @contextmanager
    def host_variant(self, *, host: Mapping[str, Any] | None = None, **changes: Any) -> Iterator[Scenario]:
        """A driver of an empty cache with these fields of CacheConfig and of HostConfig changed; closed at the end."""
        tier = replace(self.host_config, **(host or {}))
        other = self.open_variant(**changes, host=tier)
        try:
            yield other
            other.check()
        finally:
            other.adapter.close()

    def _make_gap(self, component: str) -> None:
        self.evict_inner(component)
        assert TOMBSTONE not in self.device_slots(component), (
            f"EVICT-3: {component} of {TOMBSTONE} was not locked: expected it to leave the device"
        )

    def _allocate_full(self) -> Slots:
        """Allocate every FULL slot, and give all SWA partners back."""
        taken = [self.allocate_all()]
        while self.has(SWA) and len(taken[-1]):
            self.release_window(taken[-1])
            taken.append(self.allocate_all())
        return np.concatenate(taken)

    def _allocate_states(self) -> list[int]:
        return list(iter(self.allocate_state, None))

    def _free_states(self, states: Sequence[int]) -> None:
        for state in states:
            self.free_state(state)

    # What the snapshot shows.

    def nodes(self) -> dict[Pages, NodeView]:
        """Every node of the shared namespace on the device, by the pages up to its end."""
        snapshot = self.snapshot()
        return {pages: snapshot.nodes[row] for pages, row in self._rows(snapshot)}

    def hits(self) -> dict[Pages, int | None]:
        """Requests that matched each node."""
        return {pages: node.hits for pages, node in self.nodes().items()}

    def tier_views(self) -> dict[Pages, TierViews]:
        """Every node of the shared namespace on both tiers, by the pages up to its end."""
        snapshot = self.snapshot()
        assert snapshot.host is not None, f"{self.config.name} has a host tier"
        host = snapshot.host.nodes
        return {pages: TierViews(snapshot.nodes[row], host[row]) for pages, row in self._rows(snapshot)}

    def device_slots(self, component: str) -> dict[Pages, tuple[int, ...]]:
        """What is cached of a component on the device: by prefix the slots of its last page, or of its state."""
        return self._of_component(residency(self.snapshot(), self.config), component)

    def host_slots(self, component: str) -> dict[Pages, tuple[int, ...]]:
        """What is cached of a component on the host: by prefix the host slots of its last page, or of its state."""
        return self._of_component(residency(self.snapshot(), self.config, Tier.HOST), component)

    def components_on_device(self, pages: Pages) -> set[str]:
        """The components that the device has at the end of some pages."""
        return {component for component in self.config.components if pages in self.device_slots(component)}

    def components_on_host(self, pages: Pages) -> set[str]:
        """The components that the host has at the end of some pages."""
        return {component for component in self.config.components if pages in self.host_slots(component)}

    def all_locks(self) -> LockCounts:
        """Locks on the device: those of receipts, of requests, and of the cache's own transfers."""
        return self._locks_by_pages(lambda snapshot, row: snapshot.nodes[row].locks)

    def locks_on_device(self) -> LockCounts:
        """Locks on the device that receipts and requests hold."""
        return self._locks_by_pages(lambda shown, row: _less(shown.nodes[row].locks, _host_view(shown, row).pins))

    def locks_on_host(self) -> LockCounts:
        """Locks on the host that receipts hold."""

        def locks_of(snapshot: Snapshot, row: int) -> Mapping[str, int]:
            view = _host_view(snapshot, row)
            return _less(view.locks, view.host_pins)

        return self._locks_by_pages(locks_of)

    def pins(self, tier: Tier) -> LockCounts:
        """Locks on a tier that the cache holds for its own transfers."""

        def locks_of(snapshot: Snapshot, row: int) -> Mapping[str, int]:
            view = _host_view(snapshot, row)
            return view.pins if tier is Tier.DEVICE else view.host_pins

        return self._locks_by_pages(locks_of)

    def free_device_slots(self) -> dict[str, int]:
        """How many device slots of each component are free."""
        return {component: len(pool.free) for component, pool in self.snapshot().pools.items()}

    def free_host_slots(self) -> dict[str, int]:
        """How many host slots of each component are free."""
        host = self.snapshot().host
        assert host is not None, f"{self.config.name} has a host tier"
        return {component: len(pool.free) for component, pool in host.pools.items()}

    def _pages(self, prefix: bytes) -> Pages:
        return page_numbers(tokens_of_prefix(prefix, bigram=self.config.bigram), self.config)

    def _rows(self, snapshot: Snapshot) -> Iterator[tuple[Pages, int]]:
        for row, node in enumerate(snapshot.nodes):
            if node.namespace == SHARED:
                yield self._pages(snapshot.prefix(row)), row

    def _by_pages(self, found: Mapping[Place, Value]) -> Iterator[tuple[str, Pages, Value]]:
        """The entries of the shared namespace, with their prefixes by pages."""
        for (component, namespace, prefix), value in found.items():
            if namespace == SHARED:
                yield component, self._pages(prefix), value

    def _of_component(self, found: Mapping[Place, tuple[int, ...]], component: str) -> dict[Pages, tuple[int, ...]]:
        own = {place: slots for place, slots in found.items() if place[0] == component}
        return {pages: slots for _, pages, slots in self._by_pages(own)}

    def _locks_by_pages(self, locks_of: Callable[[Snapshot, int], Mapping[str, int]]) -> LockCounts:
        found = lock_counts(self.snapshot(), self.config, locks_of)
        return Counter({(component, pages): count for component, pages, count in self._by_pages(found)})

    # Transfers under way.

    def queue_load(self, pages: Sequence[int]) -> LoadBack:
        """Request the load of a prompt that is on the host; it starts with the next step. Not counted as a hit."""
        key = self.key_of(pages)
        # FLOW-6 is about a load of the same chain that has not ended, HOST-4 about all others.
        under_way = [one.key for one in self.loads.values() if not one.phase.has_ended]
        overlaps = any(self._begin(other) == self._begin(key) for other in under_way)
        load, clause_id = self.load_back(key, self.match(key, chunked=True)), "FLOW-6" if overlaps else "HOST-4"
        assert load is not None, (
            f"{clause_id}: {tuple(pages)} is on the host and there is room: expected a load, got None"
        )
        return load

    def start_load(self, pages: Sequence[int]) -> LoadBack:
        """Request the load of a prompt that is on the host, and start it."""
        load = self.queue_load(pages)
        self.step()
        return load

    def pending_transfer(self, kind: TransferKind) -> Pending:
        """The only transfer of a kind that is pending."""
        found = self.pending(kind)
        assert len(found) == 1, f"FLOW-4: expected one pending {kind.value}, got {found}"
        return found[0]

    def transfer_views(self, kind: TransferKind) -> list[TransferView]:
        """What is queued or running of a kind, as the snapshot shows it: one view for each node."""
        host = self.snapshot().host
        assert host is not None, f"{self.config.name} has a host tier"
        return [one for one in host.transfers if one.kind is kind]

    def stack(self) -> dict[str, int]:
        """The number of layers of every pool that a prompt uses."""
        return {pool: self.adapter.layers(pool) for pool in component_of(self.config)}

    def slots_under_way(self, kind: TransferKind) -> dict[str, int]:
        """How many device slots of each component are read or written by transfers of a kind."""
        views = self.transfer_views(kind)
        return {name: sum(len(one.device.get(name, NO_SLOTS)) for one in views) for name in self.config.components}

    def match_prompt(self, pages: Sequence[int], requests: int = 1) -> None:
        """So many requests match a prompt and compute nothing."""
        for _ in range(requests):
            self.match(self.key_of(pages))

    def slot_bytes(self, slots: Mapping[str, int]) -> int:
        """Bytes of so many slots of each component."""
        return sum(
            count // tokens_per_row(self.config, pool) * self.adapter.slot_bytes(pool) * self.adapter.layers(pool)
            for component, count in slots.items()
            for pool in pools_of(self.config, component)
            if self.adapter.layers(pool)
        )

    def transfer_bytes(self, view: TransferView) -> int:
        """Bytes that a transfer moves."""
        return self.slot_bytes({component: len(slots) for component, slots in view.device.items()})

    def bytes_on_host(self) -> int:
        """Bytes of everything that is cached on the host."""
        return self.slot_bytes({name: _count(self.host_slots(name)) for name in self.config.components})

    def bytes_on_device(self) -> int:
        """Bytes of everything that is cached on the device."""
        return self.slot_bytes({name: _count(self.device_slots(name)) for name in self.config.components})

    def bytes_moved(self, kind: TransferKind) -> int:
        """Bytes that transfers of a kind have moved so far, by the cache's own counter."""
        return self.adapter.counters()[COUNTER[kind]]

    def _begin(self, key: Key) -> tuple[object, ...]:
        """The first page of a key."""
        return key.namespace, *key.tokens[: self.config.page_size].tolist()

    # Prompts in storage.

    def store(self) -> Store:
        """The scripted store that the cache's backend writes to."""
        found = store_of(self.config)
        assert found is not None, f"{self.config.name} keeps its pages where a test can see them"
        return found

    def storage_config(self) -> StorageConfig:
        """The storage tier of the configuration."""
        assert self.config.storage is not None, f"{self.config.name} has storage"
        return self.config.storage

    def storage_view(self) -> StorageView:
        """The storage tier as the cache shows it."""
        found = self.snapshot().storage
        assert found is not None, f"{self.config.name} has storage"
        return found

    def pools(self) -> list[str]:
        """The pools that have objects in storage."""
        return [*component_of(self.config)]

    def object_keys(self, pool: str, pages: Sequence[int], namespace: Namespace = SHARED) -> list[str]:
        """The full key of the object of each page of a prompt in one pool; for MAMBA of the state after the page."""
        return self.storage_keys(pool, self.key(self.prompt(pages), namespace))

    def stored_pages(self, pool: str, pages: Sequence[int]) -> list[int]:
        """The pages of a prompt, from 0, that have an object in a pool: with entries of several pages not all."""
        return [int(page) for page in with_entry(self.config, pool, np.arange(len(pages)))]

    def in_storage(self, pages: Sequence[int]) -> dict[str, list[bool]]:
        """Of each pool, which pages of a prompt can be read from storage."""
        return {pool: self.store().readable(self.object_keys(pool, pages)) for pool in self.pools()}

    def stored_components(self) -> dict[Pages, frozenset[str]]:
        """The components of each node that are marked as stored, by the pages up to the node's end."""
        given = self.storage_view().persisted
        assert given is not None, "FETCH-9: with MARKS a snapshot shows which components of each node are stored"
        shared = [node.namespace == SHARED for node in self.snapshot().nodes]
        marks = [mark for mark, is_shared in zip(given, shared, strict=True) if is_shared]
        return dict(zip(self.tier_views(), marks, strict=True))

    def shows_marks(self) -> bool:
        """Whether a snapshot shows which components of each node are stored."""
        return Capability.MARKS in self.adapter.capabilities

    def put_in_storage(self, *prompts: Sequence[int]) -> None:
        """Cache prompts, in this order, and evict them from the device, until storage has all of their data."""
        for pages in prompts:
            self.put_and_back_up(pages)
            self.evict_all()
            self.drain()
        for pages in prompts:
            missing = [page for page, is_there in enumerate(self.in_storage(pages)[Pool.KV]) if not is_there]
            assert not missing, f"FETCH-9: expected all of {tuple(pages)} in storage, pages {missing} are missing"

    def put_in_storage_alone(self, *prompts: Sequence[int]) -> None:
        """Cache prompts until storage has them, and start a new cache over the same store."""
        self.put_in_storage(*prompts)
        self.restart()

    def evict_both_tiers(self) -> None:
        """Evict everything from the device and from the host."""
        self.evict_all()
        self.drain()
        self.evict_all_host()
        assert not self.nodes(), f"EVICT-8: nothing is locked: expected an empty tree, got {self.nodes().keys()}"

    def begin_prefetch(self, pages: Sequence[int], namespace: Namespace = SHARED) -> Handle:
        """Start a prefetch of a prompt; returns its ticket."""
        ticket = self.prefetch(self.key(self.prompt(pages), namespace))
        assert ticket is not None, (
            f"FETCH-1: {tuple(pages)} is above the threshold and below the limit: expected a ticket, got None"
        )
        return ticket

    def prefetched_pages(self, ticket: Handle) -> int:
        """The number of pages that a prefetch brought; it must have ended."""
        tokens = self.check_prefetch(ticket)
        assert tokens is not None, (
            "FETCH-3: nothing is under way: expected the prefetch to have ended, but check_prefetch gives None"
        )
        return tokens // self.config.page_size

    def prefetch_pages(self, pages: Sequence[int], namespace: Namespace = SHARED) -> int:
        """Prefetch a prompt, and drain; the number of pages that the prefetch brought."""
        ticket = self.begin_prefetch(pages, namespace)
        self.drain()
        return self.prefetched_pages(ticket)

    def expected_pages(self, pages: Sequence[int], anchor: int = 0) -> int:
        """The number of pages past the anchor that a prefetch must bring, by the objects that can be read now."""
        present = {pool: there[anchor:] for pool, there in self.in_storage(pages).items()}
        return restorable_pages(present, self.window_pages)

    def pending_job(self, kind: StorageKind) -> Pending:
        """The only pending storage job of a kind."""
        found = self.pending(kind)
        assert len(found) == 1, f"FLOW-4: expected one pending {kind.value}, got {found}"
        return found[0]

    def complete_job(self, kind: StorageKind) -> None:
        """Complete the only pending storage job of a kind, and let a step take it over."""
        self.complete(self.pending_job(kind).ticket)
        self.step()

    def slots_held_by_prefetches(self) -> dict[str, int]:
        """Host slots that belong to prefetches, by component."""
        found = dict.fromkeys(self.config.components, 0)
        for one in self.storage_view().fetches:
            for component, slots in one.host.items():
                found[component] += len(slots)
        return {component: count for component, count in found.items() if count}

    @contextmanager
    def storage_variant(
        self,
        *,
        host: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        storage: Mapping[str, Any] | None = None,
        is_closed: bool = False,
        **changes: Any,
    ) -> Iterator[Scenario]:
        """A driver of an empty cache over the same store that differs in these fields of each tier; closed at the end.

        `is_closed`: the test closes the cache, and there is nothing to check afterwards.
        """
        tier = self.storage_config()
        below = replace(tier, **(extra or {}), **(storage or {}))
        other = self.open_variant(**changes, host=replace(self.host_config, **(host or {})), storage=below)
        try:
            yield other
            if not is_closed:
                other.check()
        finally:
            other.adapter.close()

    def long_prompt_variant(
        self, stop_policy: StopPolicy = StopPolicy.WAIT_COMPLETE, **storage: Any
    ) -> AbstractContextManager[Scenario]:
        """A cache with room for the long prompt on both tiers, and a prefetch limit that allows it."""
        tokens = dict.fromkeys(self.config.components, 320 * self.config.page_size)
        changes = {"limit_tokens": tokens["full"], "stop_policy": stop_policy, **storage}
        return self.storage_variant(host={"capacity_tokens": tokens}, capacity_tokens=tokens, storage=changes)

    # Checks.

    def require_idle(self, when: str) -> None:
        """FLOW-7: no request runs, no transfer is under way, nothing is locked, pinned or kept for a reader."""
        host = self.snapshot().host
        assert host is not None, f"{self.config.name} has a host tier"
        assert not self.running, f"FLOW-7: {when}: expected no running request, got {len(self.running)}"
        held = {"device": self.locks_on_device(), "host": self.locks_on_host()}
        assert not any(held.values()), f"FLOW-7: {when}: expected no locks, got {held}"
        pinned = {tier.value: self.pins(tier) for tier in (Tier.DEVICE, Tier.HOST)}
        assert not any(pinned.values()), f"FLOW-7: {when}: expected no pins of the cache's own transfers, got {pinned}"
        is_stepped = self.host_config.executor is ExecutorKind.STEPPED
        under_way = [*host.transfers, *(self.pending(*TransferKind) if is_stepped else ())]
        assert not under_way, f"FLOW-7: {when}: expected no transfer under way, got {under_way}"
        kept = {component: slots.tolist() for component, slots in host.kept.items() if len(slots)}
        assert not kept, f"FLOW-7: {when}: expected no slots kept for readers, got {kept}"
        if Capability.SIZES in self.adapter.capabilities:
            for tier in (Tier.DEVICE, Tier.HOST):
                protected = {name: sizes.protected for name, sizes in self.sizes(tier).items() if sizes.protected}
                assert not protected, f"FLOW-7: {when}: expected nothing protected on the {tier.value}, got {protected}"

    def require_all_evictable(self, when: str) -> None:
        """FLOW-7: after a drain the cache is idle, and eviction frees every slot of both tiers."""
        self.drain()
        self.require_idle(when)
        # With write_back the host may be full of what one call copied there, so that the rest goes with the next call.
        while self.evict(FULL, self.config.capacity_tokens[FULL]).victims:
            continue
        # What was copied there is then stored.
        self.drain()
        self.evict_all_host()
        left = self.nodes().keys()
        assert not left, f"FLOW-7: {when}: nothing is locked: expected an empty tree after eviction, got {left}"
        self.require_all_free(when)

    def require_all_free(self, when: str) -> None:
        """POOL-1: every slot of both tiers is free, and the size counters say so."""
        tiers = {
            Tier.DEVICE: (self.config.capacity_tokens, self.free_device_slots()),
            Tier.HOST: (self.host_config.capacity_tokens, self.free_host_slots()),
        }
        for tier, (capacity, free) in tiers.items():
            assert free == capacity, f"POOL-1: {when}: expected {capacity} free slots on the {tier.value}, got {free}"
            for name, sizes in self.sizes(tier).items() if Capability.SIZES in self.adapter.capabilities else ():
                counted = sizes.evictable, sizes.protected, sizes.free
                expected = 0, 0, capacity[name]
                assert counted == expected, (
                    f"FLOW-7: {when}: {name} on the {tier.value}: expected (evictable, protected, free) {expected}, "
                    f"got {sizes}"
                )

    def require_requests_released(self, when: str) -> None:
        """REQ-2: no request holds a lock or a slot: each slot of the device is free or can be evicted."""
        assert not self.running, f"REQ-2: {when}: expected no running request, got {len(self.running)}"
        left = self.all_locks()
        assert not left, f"REQ-2: {when}: expected no locks, got {left}"
        for component, sizes in self.adapter.sizes().items():
            capacity = self.config.capacity_tokens[component]
            assert sizes.free + sizes.evictable == capacity, (
                f"REQ-2: {when}: expected all {capacity} slots of {component} to be free or evictable, got {sizes}"
            )

    @contextmanager
    def refused(self, clause_id: str, mistake: str) -> Iterator[None]:
        """The block calls the adapter directly; it must raise and change nothing. Skips without REFUSALS."""
        if Capability.REFUSALS not in self.adapter.capabilities:
            pytest.skip(f"{type(self.adapter).__name__} does not declare REFUSALS: {Capability.REFUSALS.value}")
        before = snapshot_values(self.snapshot())
        try:
            yield
        except REFUSALS:
            after = snapshot_values(self.snapshot())
            assert after == before, (
                f"{clause_id}: {mistake} was refused, but the cache changed from {before} to {after}"
            )
            self.check()
        else:
            pytest.fail(f"{clause_id}: expected one of {REFUSALS} for {mistake}, but it was accepted")


def open_standard(adapter: type[CacheAdapter], name: str, **changes: Any) -> Scenario:
    """A driver of the standard configuration of this name, with these fields of CacheConfig changed."""
    config = next(config for config in standard_configurations(adapter.capabilities) if config.name == name)
    return _opened(adapter, replace(config, **changes))


def capacity_for(config: CacheConfig, pages: int, states: int) -> dict[str, int]:
    """A capacity of so many pages of each component, and so many states."""
    return {name: states if name == MAMBA else pages * config.page_size for name in config.components}


def _opened(adapter: type[CacheAdapter], config: CacheConfig) -> Scenario:
    listed = adapter.configurations()
    if listed is not None and config not in listed:
        pytest.skip(f"{adapter.__name__} lists its configurations, and {config} is not among them")
    return Scenario(adapter(config), config)


def _prefixes(prompts: Iterable[Sequence[int]]) -> set[Pages]:
    return {prefix for pages in prompts for prefix in prefixes(*pages)}


def _host_view(snapshot: Snapshot, row: int) -> HostNodeView:
    assert snapshot.host is not None, "the cache has a host tier"
    return snapshot.host.nodes[row]


def _less(counts: Mapping[str, int], own: Mapping[str, int]) -> dict[str, int]:
    return {component: count - own[component] for component, count in counts.items()}


def _count(found: Mapping[Pages, tuple[int, ...]]) -> int:
    return sum(map(len, found.values()))


PLACEMENTS = pytest.mark.parametrize(
    "place", [Scenario.put_on_both, Scenario.put_on_host], ids=["on both tiers", "on the host"]
)
"""Runs a test with prompts on both tiers, and with prompts on the host alone: `place(driver, *prompts)` caches them."""
