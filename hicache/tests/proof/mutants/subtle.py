"""Caches with one defect each that shows in few situations: ROWS names for each a conformance test of the quick run."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import wraps
from types import ModuleType
from typing import Any, ClassVar
from unittest.mock import patch

import hicache.cache
from hicache import keys
from hicache.components import base, component_tree
from hicache.components.base import Insertion, TreeComponent
from hicache.components.component_tree import ComponentTree
from hicache.components.full import FullComponent
from hicache.config import CacheConfig, HostConfig, StorageConfig, Topology, read_table
from hicache.keys import RadixKey, chain_seed, encode_namespace, hash_pages
from hicache.metrics import Counters
from hicache.parallel.group import Group
from hicache.request import Request, RequestManager
from hicache.storage.keys import StorageKeys
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.tests.proof.mutants.accuracy.transfers import OtherParts
from hicache.tests.proof.mutants.order import OtherComponent
from hicache.tests.proof.mutants.rows import Row
from hicache.tiers import controller, evict, prefetch, storage_io, store
from hicache.tiers.evict import _WriteBackEviction
from hicache.tiers.load_back import LoadBackManager, LoadBackTicket
from hicache.tiers.prefetch import HostInsertion, PrefetchManager, PrefetchOperation
from hicache.tiers.transfer import Transfer
from hicache.transfer.executors import Executor, StepExecutor
from hicache.transfer.job import CopyJob, CopyWorker, JobT, LayeredCopier
from hicache.transfer.queue import TransferQueue
from hicache.tree import eviction, hashes
from hicache.tree.node import FULL, Node, is_any_locked
from hicache.tree.radix import RadixTree
from hicache.types import SHARED, Component, Key, MatchResult, Namespace, Slots, TransferKind


class OtherCalls(ReferenceAdapter):
    """The reference with other functions in the place of some, while one of its verbs runs.

    `calls`: a module, a name in it, and what stands there.
    """

    calls: ClassVar[tuple[tuple[ModuleType, str, object], ...]]

    def __init_subclass__(cls) -> None:
        for name, verb in inspect.getmembers(ReferenceAdapter, inspect.isfunction):
            if not name.startswith("_"):
                setattr(cls, name, _within(cls, verb))


def _within(cls: type[OtherCalls], verb: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(verb)
    def replaced(self: OtherCalls, *arguments: Any, **named: Any) -> Any:
        with ExitStack() as entered:
            for call in cls.calls:
                entered.enter_context(patch.object(*call))
            return verb(self, *arguments, **named)

    return replaced


# Names.


class _ReadableNames(StorageKeys):
    @classmethod
    def of(cls, config: CacheConfig) -> StorageKeys:
        assert config.storage is not None, "names are those of a cache with storage"
        readable = re.sub(r"[^A-Za-z0-9_-]+", "-", config.storage.model)
        return StorageKeys.of(replace(config, storage=replace(config.storage, model=readable)))


class ModelsByReadableName(OtherParts):
    """Names a model in storage by letters, digits and hyphens alone, so that org/m is org-m."""

    parts = ((storage_io, "StorageKeys", _ReadableNames),)


class _NoFingerprint(StorageKeys):
    @classmethod
    def of(cls, config: CacheConfig) -> StorageKeys:
        assert config.storage is not None, "names are those of a cache with storage"
        return StorageKeys.of(replace(config, storage=replace(config.storage, model_fingerprint=None)))


class ModelsByNameAndShape(OtherParts):
    """Names a model in storage by its name and its shape alone, without its RoPE and its revision."""

    parts = ((storage_io, "StorageKeys", _NoFingerprint),)


def _short_seed(namespace: Namespace) -> bytes:
    return chain_seed(namespace)[:2]


class ShortSeed(OtherCalls):
    """Seeds the hashes of a namespace with 16 bits."""

    calls = tuple((module, "chain_seed", _short_seed) for module in (hicache.cache, hashes, prefetch))


class _ShortEdges(RadixTree):
    def _edge(self, parent: Node, key: RadixKey, offset: int) -> bytes:
        edge = super()._edge(parent, key, offset)
        if parent.parent is not None:
            return edge
        encoded = encode_namespace(key.namespace)
        return (hashlib.sha256(encoded).digest()[:2] if encoded else b"") + edge[len(encoded) :]


class ShortNamespaces(OtherParts):
    """Finds a namespace below the root by 16 bits of its hash."""

    parts = ((component_tree, "RadixTree", _ShortEdges),)


class HashesOfTokens(ReferenceAdapter):
    """Counts the pages of a prompt of pairs by its tokens, so that the last one may lack a pair."""

    def page_hashes(self, key: Key) -> Sequence[str]:
        config = self.cache.config
        if not config.bigram:
            return super().page_hashes(key)
        whole = RadixKey.of(key.tokens, key.namespace, 1, bigram=True)
        data = whole.data[: len(key.tokens) // config.page_size * config.page_size * 2 * keys.TOKEN_BYTES]
        found = hash_pages(data, self.cache.tree.radix.bytes_per_page, chain_seed(key.namespace))
        return [digest.hex() for digest in found]


# Hits.


class CheckpointIsAHit(ReferenceAdapter):
    """Counts each checkpoint of a request as a hit, as its match after the insert."""

    def checkpoint(self, request: Any, computed_tokens: int) -> Any:
        before = request.shared_tokens
        table = super().checkpoint(request, computed_tokens)
        if request.shared_tokens > before:
            self.cache.match(self.cache.key(request.tokens[:computed_tokens], request.namespace), chunked=False)
        return table


# Hashes.


class _NoHashesAtSplit(RadixTree):
    def split(self, node: Node, pages: int) -> Node:
        node.hashes = node.hashes or []
        return super().split(node, pages)


class NoHashesAtSplit(OtherParts):
    """Takes hashes that were not computed yet for an empty list when it splits a node. Events compute them before."""

    parts = ((component_tree, "RadixTree", _NoHashesAtSplit),)

    def sanity_check(self) -> None:
        """Look at nothing: the reference checks its hashes, another cache does not."""


def _from_its_parent(node: Node, bytes_per_page: int, counters: Counters) -> list[bytes]:
    if node.hashes is None and node.parent is not None:
        previous = node.parent.last_hash() or chain_seed(node.namespace)
        node.hashes = hash_pages(node.key, bytes_per_page, previous)
        counters.pages_hashed += len(node.hashes)
    return list(node.hashes or ())


class HashesFromTheParent(OtherCalls):
    """Begins the chain anew at a node whose parent has no hashes yet. Events compute those of the parent before."""

    calls = tuple((module, "node_hashes", _from_its_parent) for module in (hashes, base, store))


# Nodes.


class _UnsaltedSplit(RadixTree):
    def split(self, node: Node, pages: int) -> Node:
        upper = super().split(node, pages)
        if upper.parent is self.root and upper.namespace != SHARED:
            del self.root.children[upper.edge]
            upper.edge = upper.key[: self.bytes_per_page]
            self.root.children[upper.edge] = upper
        return upper


class UnsaltedSplit(OtherParts):
    """Links the first part of a split node below the root without its namespace."""

    parts = ((component_tree, "RadixTree", _UnsaltedSplit),)


class _SharedSplit(RadixTree):
    def split(self, node: Node, pages: int) -> Node:
        upper = super().split(node, pages)
        upper.namespace = SHARED
        return upper


class SharedSplit(OtherParts):
    """Forgets the namespace of the first part of a split node, which only its events and its hashes show."""

    parts = ((component_tree, "RadixTree", _SharedSplit),)


class _UncopiedWindows(_WriteBackEviction):
    def _needs_backup(self, node: Node) -> bool:
        return not node.device_children and super()._needs_backup(node)


class UncopiedWindows(OtherCalls):
    """Copies only what evicts a whole node: with write_back an inner node loses its window or state for good."""

    calls = ((evict, "_WriteBackEviction", _UncopiedWindows),)


class _LeavesByEvicted(FullComponent):
    def is_host_candidate(self, node: Node) -> bool:
        if any(child.device[FULL].value is None for child in node.children.values()):
            return False
        return node.host[FULL].value is not None and not is_any_locked(node.host)


class LeavesByEvicted(OtherComponent):
    """Takes a node for a leaf of the host when none of its children has left the device, copies or not."""

    component = _LeavesByEvicted


class _PrunesUnderHostLocks(ComponentTree):
    def prune_and_requeue(self, node: Node) -> None:
        while node.parent and not node.children and not is_any_locked(node.device) and self._is_unmatchable(node):
            for tier in self._full_last:
                tier.drop_locked(node)
            node = self._remove(node)
        super().prune_and_requeue(node)


class PrunesUnderHostLocks(OtherParts):
    """Removes ancestors that no match can end at also where a host lock holds them."""

    parts = ((hicache.cache, "ComponentTree", _PrunesUnderHostLocks),)


class _EvictsUnderHostLocks(ComponentTree):
    def evict_host(self, node: Node, target: TreeComponent) -> None:
        if node.children or node.device[FULL].value is not None or is_any_locked(node.device):
            super().evict_host(node, target)
            return
        for tier in self._full_last:
            tier.drop_locked(node)
        self.prune_and_requeue(self._remove(node))


class EvictsUnderHostLocks(OtherParts):
    """Removes a node that is on the host alone with any component of it, also where a host lock holds another one."""

    parts = ((hicache.cache, "ComponentTree", _EvictsUnderHostLocks),)


# Order.


class _UsesBehindASplit(ComponentTree):
    split_at: int | None = None

    def used_at(self, insertion: Insertion) -> int:
        """When what is behind the split counts as used."""
        return insertion.now

    def insert(self, key: RadixKey, insertion: Insertion) -> tuple[Node, int]:
        self.split_at = self.used_at(insertion)
        try:
            return super().insert(key, insertion)
        finally:
            self.split_at = None

    def _on_split(self, upper: Node, lower: Node) -> None:
        super()._on_split(upper, lower)
        if self.split_at is not None:
            for component in self.components[1:]:
                lower.last_access_time[component.index] = self.split_at
                component.device.queue.move_forward(lower)


class UsesBehindASplit(OtherParts):
    """An insert that splits a node counts as a use of the window and the state behind the split too."""

    parts = ((hicache.cache, "ComponentTree", _UsesBehindASplit),)


class _ForgetsBehindASplit(_UsesBehindASplit):
    def used_at(self, insertion: Insertion) -> int:
        """When what is behind the split counts as used."""
        return 0


class ForgetsBehindASplit(OtherParts):
    """The window and the state behind a split by an insert count as never used."""

    parts = ((hicache.cache, "ComponentTree", _ForgetsBehindASplit),)


class _RaisesBehind(ComponentTree):
    def insert(self, key: RadixKey, insertion: Insertion) -> tuple[Node, int]:
        node, end = super().insert(key, insertion)
        for child in node.children.values():
            child.priority = max(child.priority, insertion.priority)
        return node, end


class RaisesBehind(OtherParts):
    """A later insert raises the priority of what continues it too."""

    parts = ((hicache.cache, "ComponentTree", _RaisesBehind),)


class _UsesAtTheEnd(LoadBackManager):
    def _finish(self, transfer: Transfer) -> None:
        super()._finish(transfer)
        self._tree.touch(transfer.nodes[-1], self._tree.tick())


class UsesAtTheEnd(OtherParts):
    """The end of a load-back counts as a use of what it brought."""

    parts = ((hicache.cache, "LoadBackManager", _UsesAtTheEnd),)


class _NeverUsed(HostInsertion):
    def insert_host(self, now: int) -> Mapping[str, Slots]:
        return super().insert_host(0)


class ArrivesUnused(OtherCalls):
    """What a prefetch makes on the host counts as never used."""

    calls = ((prefetch, "HostInsertion", _NeverUsed),)


# Transfers.


class _OneLayerEarly(LoadBackManager):
    def wait_layer(self, ticket: LoadBackTicket, layer: int) -> bool:
        return super().wait_layer(ticket, layer - 1)


class OneLayerEarly(OtherParts):
    """Lets a reader go on when the layer before its own has arrived."""

    parts = ((hicache.cache, "LoadBackManager", _OneLayerEarly),)


class _WaitsForTheFirst(LoadBackManager):
    def wait_layer(self, ticket: LoadBackTicket, layer: int) -> bool:
        return self._controller.wait_layer(ticket.transfers[0], layer)


class WaitsForTheFirst(OtherParts):
    """Lets a reader go on when the layer has arrived of the first transfer of its load-back."""

    parts = ((hicache.cache, "LoadBackManager", _WaitsForTheFirst),)


class _CountsFailedLayers(LoadBackManager):
    def _layers_of(self, transfer: Transfer, layers: int) -> int:
        return layers if transfer.phase.has_ended else super()._layers_of(transfer, layers)


class CountsFailedLayers(OtherParts):
    """Says that each layer has arrived of a transfer that has failed, to the other load-backs that wait for it."""

    parts = ((hicache.cache, "LoadBackManager", _CountsFailedLayers),)


class _TakesWindowsFromReaders(LoadBackManager):
    def _install_part(self, transfer: Transfer, name: str, node: Node, part: Slots) -> bool:
        took = super()._install_part(transfer, name, node, part)
        self._pools.unpair(transfer.sharing)
        return took


class TakesWindowsFromReaders(OtherParts):
    """Moves a loaded window to the slots that an insert brought, while readers use those of the load-back."""

    parts = ((hicache.cache, "LoadBackManager", _TakesWindowsFromReaders),)


class _LooksAtCurrentPages(LoadBackManager):
    def has_partners(self, ticket: LoadBackTicket) -> bool:
        ticket.given = self._pages_past(ticket.node, ticket.anchor_end)
        return super().has_partners(ticket)


class LooksAtCurrentPages(OtherParts):
    """Looks for the window of a load-back at the pages of the tree, which an insert may have changed since."""

    parts = ((hicache.cache, "LoadBackManager", _LooksAtCurrentPages),)


class _CopiesStatesAgain(RequestManager):
    def wait_layer(self, request: Request, layer: int) -> bool:
        request.layers_read = 0
        return super().wait_layer(request, layer)


class CopiesStatesAgain(ReferenceAdapter):
    """Each wait for a layer copies the state that was loaded once more, over what was computed from it."""

    def __init__(self, config: CacheConfig, groups: Mapping[str, Group] | None = None) -> None:
        super().__init__(config, groups)
        self._requests = _CopiesStatesAgain(self.cache)


class _WaitsForNoLayer(StepExecutor[JobT]):
    def wait_layer(self, number: int, layer: int) -> bool:
        return True


class WaitsForNoLayer(ReferenceAdapter):
    """Its executor lets a reader go on before its data has arrived."""

    def _open_copies(self, kind: TransferKind, copier: LayeredCopier) -> Executor[CopyJob]:
        opened = super()._open_copies(kind, copier)
        if isinstance(opened, StepExecutor):
            opened = self._copies[kind] = _WaitsForNoLayer(CopyWorker(copier), self._failing)
        return opened


class _KeepsNoState(RequestManager):
    def _has_read_all(self, request: Request) -> bool:
        return False


class KeepsNoState(ReferenceAdapter):
    """Gives a request the cached state at the end of its load-back, over what it has computed meanwhile."""

    def __init__(self, config: CacheConfig, groups: Mapping[str, Group] | None = None) -> None:
        super().__init__(config, groups)
        self._requests = _KeepsNoState(self.cache)


class _BringsNoState(RequestManager):
    def wait_layer(self, request: Request, layer: int) -> bool:
        return request.ticket is not None and self._cache.wait_layer(request.ticket, layer)


class BringsNoState(ReferenceAdapter):
    """Lets a request read layers of which its own state has nothing."""

    def __init__(self, config: CacheConfig, groups: Mapping[str, Group] | None = None) -> None:
        super().__init__(config, groups)
        self._requests = _BringsNoState(self.cache)


class _ReportsWhatWasRead(PrefetchManager):
    def _usable_so_far(self, operation: PrefetchOperation) -> int:
        return operation.length if operation.job is None else super()._usable_so_far(operation)

    def _insert(self, operation: PrefetchOperation, length: int) -> Node:
        best = super()._insert(operation, length)
        operation.came = operation.length if operation.came else 0
        return best


class ReportsWhatWasRead(OtherParts):
    """Reports the pages that storage gave of a prefetch that timed out while a node before them is being copied."""

    parts = ((hicache.cache, "PrefetchManager", _ReportsWhatWasRead),)


class _ReadsAllFirst(PrefetchManager):
    def _part_ends(self, wanted: int) -> tuple[int, ...]:
        return (wanted,)


class ReadsAllFirst(OtherParts):
    """Reads all pages of KV of a long prompt before its windows and states, of which a cut leaves nothing."""

    parts = ((hicache.cache, "PrefetchManager", _ReadsAllFirst),)


class _ReadsHostKv(PrefetchManager):
    def _pin_on_host(self, operation: PrefetchOperation) -> None:
        """It counts on nothing."""


class ReadsHostKv(OtherParts):
    """Reads the KV again that the host has without its state, into slots of its own."""

    parts = ((hicache.cache, "PrefetchManager", _ReadsHostKv),)


class _PinsNoHostKv(PrefetchManager):
    def _pin_on_host(self, operation: PrefetchOperation) -> None:
        super()._pin_on_host(operation)
        self._unpin(operation.host_pin)
        operation.host_pin = None


class PinsNoHostKv(OtherParts):
    """Counts on KV of the host that may be evicted until the rest has come."""

    parts = ((hicache.cache, "PrefetchManager", _PinsNoHostKv),)


class _CountsNoHostKv(PrefetchManager):
    def _usable_so_far(self, operation: PrefetchOperation) -> int:
        before, operation.on_host = operation.on_host, 0
        usable = super()._usable_so_far(operation)
        operation.on_host = before
        return usable


class CountsNoHostKv(OtherParts):
    """A prefetch that is cut keeps nothing past KV that it has not read itself."""

    parts = ((hicache.cache, "PrefetchManager", _CountsNoHostKv),)


class _ShortensFullAlone(PrefetchManager):
    def _length_with_room(
        self, operation: PrefetchOperation, wanted: Mapping[str, int], missing: Mapping[str, int]
    ) -> int:
        if self._evictor.available(Component.FULL) >= missing[Component.FULL]:
            return 0
        return super()._length_with_room(operation, wanted, missing)


class ShortensFullAlone(OtherParts):
    """Prefetches nothing when the host has too little room for a window."""

    parts = ((hicache.cache, "PrefetchManager", _ShortensFullAlone),)


class _EndsAtOnce(TransferQueue[JobT]):
    def end(self, job: JobT) -> None:
        if not self.stop(job):
            self._complete.pop(job.number, None)
            del self._running[job.number]


class CopiesAfterAReset(OtherParts):
    """A reset does not wait for a copy that runs on a thread, whose target it frees."""

    parts = ((controller, "TransferQueue", _EndsAtOnce),)


class IgnoresUnknownKeys(ReferenceAdapter):
    """A key that no field has is passed over below the top level, and the default holds."""

    @classmethod
    def read_config(cls, source: str) -> CacheConfig:
        table = read_table(source)
        known = {name: {one.name for one in fields(kind)} for name, kind in PARTS.items()}
        for name in known.keys() & table.keys():
            part = table[name]
            table[name] = {key: part[key] for key in part if key in known[name]} if isinstance(part, dict) else part
        return super().read_config(json.dumps(table))


class OtherSelectiveDefault(ReferenceAdapter):
    """write_through_selective backs up one request later than documented where a configuration says nothing."""

    @classmethod
    def read_config(cls, source: str) -> CacheConfig:
        table = read_table(source)
        if "host" in table:
            table["host"].setdefault("selective_hits", 2)
        return super().read_config(json.dumps(table))


class ProtectsOneHitLater(OtherCalls):
    """SLRU protects a node at the third request for it."""

    calls = ((eviction, "SLRU_PROTECTED_HITS", 2),)


class WritesNoBackend(ReferenceAdapter):
    """What is written of a configuration lacks the I/O backend, so that the default is read."""

    @classmethod
    def config_table(cls, config: CacheConfig) -> Mapping[str, Any]:
        table = dict(super().config_table(config))
        host = {name: value for name, value in table.get("host", {}).items() if name != "io_backend"}
        return table | ({"host": host} if host else {})


PARTS = {"host": HostConfig, "storage": StorageConfig, "topology": Topology}

STORE, ISOLATION, KEYS, BACKUP = "test_store.py::", "test_isolation.py::", "test_keys.py::", "test_backup.py::"
PREFETCH, LOAD, REQUEST_LOADS = "test_prefetch.py::", "test_load_back.py::", "test_request_loads.py::"
SPLIT, TIERS, EVICT = "test_split.py::", "test_evict_tiers.py::", "test_evict.py::"


class HostHitsReportedAsDevice(ReferenceAdapter):
    """The metrics count what a match found on the host as found on the device."""

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        found = super().match(key, chunked=chunked)
        if not chunked:
            self.cache.counters.traffic.tokens_matched_device += found.host_hit_length
            self.cache.counters.traffic.tokens_matched_host -= found.host_hit_length
        return found


ROWS = (
    Row(
        slug="models-by-name-and-shape",
        source="vllm#56311",
        clauses=("STORE-1",),
        adapter=ModelsByNameAndShape,
        test=f"{STORE}test_models_of_one_name_and_shape_read_nothing_of_each_other",
        told="STORE-1: the model",
    ),
    Row(
        slug="models-by-readable-name",
        source="ours",
        clauses=("STORE-1",),
        adapter=ModelsByReadableName,
        test=f"{STORE}test_models_with_similar_names_read_nothing_of_each_other",
        told="STORE-1",
    ),
    Row(
        slug="seed-of-16-bits",
        source="ours",
        clauses=("SEC-1", "KEY-4"),
        adapter=ShortSeed,
        test=f"{ISOLATION}test_thousands_of_namespaces_have_no_page_hash_in_common",
        told="SEC-1",
    ),
    Row(
        slug="namespaces-by-16-bits",
        source="ours",
        clauses=("SEC-1", "KEY-2"),
        adapter=ShortNamespaces,
        test=f"{ISOLATION}test_thousands_of_namespaces_find_nothing_of_each_other",
        told="SEC-1",
    ),
    Row(
        slug="hashes-of-tokens-for-pairs",
        source="ours",
        clauses=("KEY-3",),
        adapter=HashesOfTokens,
        test=f"{KEYS}test_a_prompt_of_pairs_has_a_hash_for_each_whole_page",
        told="KEY-3",
    ),
    Row(
        slug="a-checkpoint-is-a-hit",
        source="ours",
        clauses=("HOST-1", "EVICT-2"),
        adapter=CheckpointIsAHit,
        test=f"{BACKUP}test_a_request_in_chunks_is_one_hit",
        told="HOST-1",
    ),
    Row(
        slug="no-hashes-at-a-split",
        source="ours",
        clauses=("KEY-5", "KEY-6"),
        adapter=NoHashesAtSplit,
        test=f"{STORE}test_without_events_a_node_that_is_split_before_it_is_stored_has_the_keys_of_its_pages",
        told="IndexError",
    ),
    Row(
        slug="hashes-from-the-parent",
        source="ours",
        clauses=("KEY-6", "KEY-4"),
        adapter=HashesFromTheParent,
        test=f"{STORE}test_without_events_a_prefetch_past_new_nodes_asks_for_the_keys_of_its_pages",
        told="KEY-6",
    ),
    Row(
        slug="a-split-without-its-salt",
        source="ours",
        clauses=("INS-8", "KEY-2"),
        adapter=UnsaltedSplit,
        test=f"{SPLIT}test_both_parts_keep_their_namespace",
        told="KEY-2",
    ),
    Row(
        slug="a-split-that-is-shared",
        source="ours",
        clauses=("INS-8", "KEY-2"),
        adapter=SharedSplit,
        test=f"{SPLIT}test_both_parts_keep_their_namespace",
        told="KEY-2",
    ),
    Row(
        slug="windows-dropped-uncopied",
        source="ours",
        clauses=("EVICT-7", "FLOW-8"),
        adapter=UncopiedWindows,
        test=f"{TIERS}test_with_write_back_an_inner_node_loses_nothing_without_a_copy",
        told="FLOW-8",
    ),
    Row(
        slug="host-leaves-by-evicted",
        source="ours",
        clauses=("EVICT-8", "EVICT-5"),
        adapter=LeavesByEvicted,
        test=f"{TIERS}test_copies_of_device_data_leave_the_host_from_the_leaves_up",
        told="EVICT-[58]",
    ),
    Row(
        slug="pruned-under-a-host-lock",
        source="ours",
        clauses=("EVICT-6", "LOCK-5"),
        adapter=PrunesUnderHostLocks,
        test=f"{TIERS}test_an_ancestor_that_is_locked_on_the_host_stays_without_a_state",
        told="LOCK-5",
    ),
    Row(
        slug="evicted-under-a-host-lock",
        source="ours",
        clauses=("LOCK-5", "EVICT-8"),
        adapter=EvictsUnderHostLocks,
        test=f"{TIERS}test_a_host_lock_holds_a_node_that_loses_what_came_after_the_lock",
        told="LOCK-5",
    ),
    Row(
        slug="used-behind-a-split",
        source="ours",
        clauses=("INS-8", "EVICT-10"),
        adapter=UsesBehindASplit,
        test=f"{EVICT}test_an_insert_that_splits_a_node_leaves_the_window_behind_it_as_recent_as_it_was",
        told="INS-8",
    ),
    Row(
        slug="forgotten-behind-a-split",
        source="ours",
        clauses=("INS-8", "EVICT-10"),
        adapter=ForgetsBehindASplit,
        test=f"{EVICT}test_an_insert_that_splits_a_node_leaves_the_state_behind_it_as_recent_as_it_was",
        told="INS-8",
    ),
    Row(
        slug="a-priority-for-all-behind",
        source="ours",
        clauses=("EVICT-2",),
        adapter=RaisesBehind,
        test=f"{EVICT}test_an_insert_that_ends_inside_a_node_raises_the_priority_of_its_first_part",
        told="EVICT-2",
    ),
    Row(
        slug="used-at-the-end-of-a-load-back",
        source="ours",
        clauses=("EVICT-12",),
        adapter=UsesAtTheEnd,
        test=f"{TIERS}test_the_end_of_a_load_is_no_use",
        told="EVICT-12",
    ),
    Row(
        slug="a-prefetch-arrives-unused",
        source="ours",
        clauses=("EVICT-12",),
        adapter=ArrivesUnused,
        test=f"{TIERS}test_what_a_prefetch_brought_was_used_when_it_came",
        told="EVICT-12",
    ),
    Row(
        slug="one-layer-early",
        source="ours",
        clauses=("HOST-6",),
        adapter=OneLayerEarly,
        test=f"{LOAD}test_a_reader_that_waits_for_a_layer_reads_it",
        told="HOST-6",
    ),
    Row(
        slug="waits-for-the-first-transfer",
        source="ours",
        clauses=("HOST-6", "FLOW-6"),
        adapter=WaitsForTheFirst,
        test=f"{LOAD}test_a_reader_waits_for_all_transfers_that_its_load_shares",
        told="HOST-6",
    ),
    Row(
        slug="waits-for-no-layer",
        source="ours",
        clauses=("HOST-6",),
        adapter=WaitsForNoLayer,
        test=f"{LOAD}test_a_reader_that_waits_for_a_layer_reads_it",
        told="HOST-6",
    ),
    Row(
        slug="a-request-waits-for-no-layer",
        source="ours",
        clauses=("REQ-7", "HOST-6"),
        adapter=WaitsForNoLayer,
        test=f"{REQUEST_LOADS}test_a_request_reads_each_layer_that_it_waited_for",
        told="HOST-6",
    ),
    Row(
        slug="no-state-while-it-loads",
        source="ours",
        clauses=("REQ-7", "HOST-6"),
        adapter=BringsNoState,
        test=f"{REQUEST_LOADS}test_a_request_reads_each_layer_that_it_waited_for",
        told="HOST-6",
    ),
    Row(
        slug="layers-of-a-failed-transfer",
        source="ours",
        clauses=("HOST-6", "FLOW-6"),
        adapter=CountsFailedLayers,
        test="test_flow_overlaps.py::test_if_the_shared_part_fails_both_loads_fail_and_nothing_below_it_is_cached",
        told="HOST-6",
    ),
    Row(
        slug="a-window-taken-from-readers",
        source="ours",
        clauses=("HOST-6",),
        adapter=TakesWindowsFromReaders,
        test=f"{LOAD}test_a_load_keeps_its_window_in_its_own_slots_until_it_is_claimed",
        told="MATCH-3",
    ),
    Row(
        slug="a-window-of-other-pages",
        source="ours",
        clauses=("HOST-6",),
        adapter=LooksAtCurrentPages,
        test=f"{LOAD}test_a_load_keeps_its_window_in_its_own_slots_until_it_is_claimed",
        told="HOST-6",
    ),
    Row(
        slug="a-loaded-state-copied-again",
        source="ours",
        clauses=("REQ-7", "HOST-6"),
        adapter=CopiesStatesAgain,
        test=f"{REQUEST_LOADS}test_what_a_request_computed_while_it_loaded_stays",
        told="HOST-6",
    ),
    Row(
        slug="the-cached-state-at-the-end",
        source="ours",
        clauses=("REQ-7", "REQ-3"),
        adapter=KeepsNoState,
        test=f"{REQUEST_LOADS}test_what_a_request_computed_while_it_loaded_stays",
        told="REQ-3",
    ),
    Row(
        slug="a-prefetch-reports-what-was-read",
        source="ours",
        clauses=("FLOW-10", "FETCH-4"),
        adapter=ReportsWhatWasRead,
        test=f"{PREFETCH}test_a_prefetch_past_an_insert_that_is_being_backed_up_reports_what_is_found",
        told="FLOW-10",
    ),
    Row(
        slug="kv-of-the-whole-prompt-first",
        source="ours",
        clauses=("FETCH-10",),
        adapter=ReadsAllFirst,
        test="test_prefetch_end.py::test_a_cut_prefetch_keeps_the_longest_prefix_of_which_all_has_come",
        told="FETCH-10",
    ),
    Row(
        slug="reads-kv-of-the-host",
        source="ours",
        clauses=("FETCH-11",),
        adapter=ReadsHostKv,
        test=f"{PREFETCH}test_a_prefetch_reads_only_the_state_of_kv_that_is_on_the_host",
        told="FETCH-11",
    ),
    Row(
        slug="counts-on-kv-that-may-leave",
        source="ours",
        clauses=("FETCH-11",),
        adapter=PinsNoHostKv,
        test=f"{PREFETCH}test_kv_that_a_prefetch_counts_on_stays_on_the_host_until_it_ends",
        told="FETCH-11",
    ),
    Row(
        slug="a-cut-forgets-kv-of-the-host",
        source="ours",
        clauses=("FETCH-11", "FETCH-10"),
        adapter=CountsNoHostKv,
        test="test_prefetch_end.py::test_a_cut_prefetch_keeps_kv_of_the_host_whose_state_has_come",
        told="FETCH-10",
    ),
    Row(
        slug="no-room-for-a-window",
        source="ours",
        clauses=("FETCH-1",),
        adapter=ShortensFullAlone,
        test=f"{PREFETCH}test_without_room_for_a_window_a_prefetch_brings_a_prefix_that_is_shorter_than_it",
        told="FETCH-1",
    ),
    Row(
        slug="a-copy-after-a-reset",
        source="ours",
        clauses=("EVICT-9", "FLOW-1"),
        adapter=CopiesAfterAReset,
        test="test_reset.py::test_a_load_that_a_reset_meets_changes_nothing_after_it",
        told="REQ-3",
    ),
    Row(
        slug="ignores-unknown-keys",
        source="ours",
        clauses=("CONF-7",),
        adapter=IgnoresUnknownKeys,
        test="test_config_files.py::test_an_unknown_key_is_refused_with_the_one_most_like_it",
        told=r"CONF-7: topology\.",
    ),
    Row(
        slug="another-default-of-selective-hits",
        source="ours",
        clauses=("HOST-1",),
        adapter=OtherSelectiveDefault,
        test="test_defaults.py::test_selective_backs_up_at_the_second_request_by_default",
        told="HOST-1: after request 2",
    ),
    Row(
        slug="slru-protects-one-hit-later",
        source="ours",
        clauses=("EVICT-2",),
        adapter=ProtectsOneHitLater,
        test="test_evict.py::test_leaves_are_evicted_in_the_order_of_the_policy",
        told="EVICT-2: slru",
    ),
    Row(
        slug="writes-no-io-backend",
        source="ours",
        clauses=("CONF-6",),
        adapter=WritesNoBackend,
        test="test_config_files.py::test_what_is_written_is_read_as_an_equal_configuration",
        told="CONF-6",
    ),
    Row(
        slug="host-hits-reported-as-device-hits",
        source="ours",
        clauses=("EVENT-3",),
        adapter=HostHitsReportedAsDevice,
        test="test_flow_transfers.py::test_metrics_equal_what_the_verbs_answered",
        told="EVENT-3: after the matches",
    ),
)
