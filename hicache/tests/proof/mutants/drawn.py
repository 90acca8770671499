"""Ten caches with one defect each, drawn by a seed from the defects that were reported of SGLang's tiered caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np

import hicache.opening
import hicache.tiers.prefetch
from hicache.cache import UnifiedRadixCache
from hicache.components import component_tree
from hicache.components.base import TreeComponent
from hicache.components.component_tree import ComponentTree, Match
from hicache.components.full import FullComponent
from hicache.config import CacheConfig
from hicache.keys import RadixKey
from hicache.parallel.agree import Agreement
from hicache.parallel.group import Group
from hicache.pools.host import HostPools
from hicache.request import Request, RequestManager
from hicache.storage.base import StorageBackend
from hicache.testing.adapter import CacheAdapter
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.tiers.backup import BackupManager
from hicache.tiers.load_back import LoadBackManager, LoadBackTicket
from hicache.tiers.prefetch import Prefetch
from hicache.tiers.storage_worker import StorageWorker
from hicache.tiers.store import StorageWriter
from hicache.tiers.transfer import Transfer
from hicache.transfer.job import Answers, PageBatch, StorageJob, StoreBatch
from hicache.tree.node import FULL, Node
from hicache.types import Component, Pool, Slots, TransferPhase


class OtherParts(ReferenceAdapter):
    """The reference cache with other classes in the place of some of its parts.

    `parts`: by the name that `hicache.opening` knows them by, or `hicache.tiers.prefetch`.
    `components`: by the name of the component.
    """

    parts: ClassVar[Mapping[str, type]] = {}
    components: ClassVar[Mapping[str, type[TreeComponent]]] = {}

    def _open_cache(self, agreement: Agreement) -> UnifiedRadixCache:
        with ExitStack() as patched:
            for name, part in self.parts.items():
                module = hicache.opening if hasattr(hicache.opening, name) else hicache.tiers.prefetch
                patched.enter_context(patch.object(module, name, part))
            patched.enter_context(patch.dict(component_tree.REGISTRY, self.components))
            return super()._open_cache(agreement)


# The device.


class _FloorsTheFrontier(RequestManager):
    def _release_window(self, request: Request) -> None:
        if self._window is None or self._window >= self._page:
            super()._release_window(request)
            return
        passed = (request.computed_tokens - self._window) // self._page * self._page
        start = max(request.window_start, request.shared_tokens)
        if passed > start:
            self._cache.release_window(request.table[start:passed])
            request.window_start = passed


class FloorsTheFrontier(ReferenceAdapter):
    """Frees the SWA slots of every whole page of a request, where the window is smaller than a page.

    sglang#29860: what the window has passed was computed as floor(tokens - window) in whole pages. With pages larger
    than the window this reaches the end of the last whole page. The leaf that is inserted next has no SWA data.
    """

    def __init__(self, config: CacheConfig, groups: Mapping[str, Group] | None = None) -> None:
        super().__init__(config, groups)
        self._requests = _FloorsTheFrontier(self.cache)


# The host.


class _ReportsTheLastFragment(BackupManager):
    def _install(self, transfer: Transfer, component: TreeComponent, node: Node, *, is_done: bool) -> None:
        events = self._tree.events
        was_enabled, events.enabled = events.enabled, events.enabled and node is transfer.nodes[-1]
        try:
            super()._install(transfer, component, node, is_done=is_done)
        finally:
            events.enabled = was_enabled


class ReportsTheLastFragment(OtherParts):
    """Reports a backup for one node only. After a split the upper part gets its host copy without an event.

    sglang#27072: the write-through under way kept a single node. When the node was split before the acknowledgement,
    the event of the host tier named the pages of the suffix alone.
    """

    parts: ClassVar[Mapping[str, type]] = {"BackupManager": _ReportsTheLastFragment}


class _KeepsCopies(FullComponent):
    def is_host_candidate(self, node: Node) -> bool:
        return node.device[FULL].value is None and super().is_host_candidate(node)


class KeepsCopies(OtherParts):
    """Never evicts from the host what is on the device too.

    sglang#12875: a prefetch needs host memory that is full of copies of what is on the device. They could not be
    evicted, and so the prefetch failed.
    """

    components: ClassVar[Mapping[str, type[TreeComponent]]] = {Component.FULL.value: _KeepsCopies}


class _RefusesPending(LoadBackManager):
    def load_back(self, node: Node, threshold: int, quota: int | None) -> tuple[Slots, LoadBackTicket] | None:
        is_pending = any(step.device[FULL].transfer is not None for step in node.path())
        if node.alive and is_pending and not self._tree.is_write_back:
            return None
        return super().load_back(node, threshold, quota)


class RefusesPending(OtherParts):
    """Refuses a load-back of a path on which another one is pending, unless the policy is write_back.

    sglang#34519: nodes that are being loaded were marked as pending, so that write_back frees no host copy of them. The
    mark was also set with write_through, where nothing needs it, and there it stopped the requests behind it.
    """

    parts: ClassVar[Mapping[str, type]] = {"LoadBackManager": _RefusesPending}


class _NeverWaits(LoadBackManager):
    def layers_done(self, ticket: LoadBackTicket, layers: int) -> int:
        # Each kind of transfer may offer an event to wait for. Transfer offers none.
        events = [getattr(transfer, "load_back_event", None) for transfer in ticket.transfers]
        return layers if not any(events) else super().layers_done(ticket, layers)


class NeverWaits(OtherParts):
    """Says that every layer of a load-back has arrived, because the part that is asked has no such event.

    sglang#29819: the scheduler asked the cache by an optional hook whether a load-back had ended. One of the caches did
    not have the hook, which counted as yes.
    """

    parts: ClassVar[Mapping[str, type]] = {"LoadBackManager": _NeverWaits}


class _DeepestOnHost(ComponentTree):
    def match(self, key: RadixKey) -> Match:
        found = super().match(key)
        path: list[Node] = []
        for node in self.radix.walk(key) if self.has_host else ():
            if node.device[FULL].value is None and node.host[FULL].value is None:
                break
            path.append(node)
        return found._replace(path=path, best=path[-1]) if len(path) > found.anchor_steps else found


class DeepestOnHost(OtherParts):
    """Takes the deepest node with FULL data for the best match, whether the other components validate it or not.

    sglang#25088 (issue sglang#24869): a load-back began at the last node on the host in the place of the best match. Of
    the prefix that it promised, SWA and MAMBA lacked the end.
    """

    parts: ClassVar[Mapping[str, type]] = {"ComponentTree": _DeepestOnHost}


class _FreesWhatIsWritten(LoadBackManager):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._forgotten: set[Transfer] = set()

    def cancel(self, ticket: LoadBackTicket) -> None:
        super().cancel(ticket)
        for transfer in ticket.transfers:
            if transfer.phase is TransferPhase.RUNNING and not transfer.readers:
                for node in transfer.nodes:
                    for name in transfer.moves:
                        node.device[self._tree.by_name[name].index].transfer = None
                self.free_target(transfer)
                self._forgotten.add(transfer)

    def free_target(self, transfer: Transfer) -> None:
        if transfer not in self._forgotten:
            super().free_target(transfer)

    def _finish(self, transfer: Transfer) -> None:
        if transfer not in self._forgotten:
            super()._finish(transfer)


class FreesWhatIsWritten(OtherParts):
    """Frees the slots of an abandoned load-back while the copy still writes to them.

    sglang#36738: the scheduler freed slots of a finished request that the round under way still wrote to, and a
    load-back was given them: two writers on two CUDA streams, with no fence between them. This cache has no rounds, so
    here both writers are load-backs.
    """

    parts: ClassVar[Mapping[str, type]] = {"LoadBackManager": _FreesWhatIsWritten}


# Storage.


def _digests_of_numbers(data: bytes, elements_are_pairs: bool) -> None:
    numbers: list[Any] = np.frombuffer(data, dtype="<i4").tolist()
    elements: list[Any] = list(zip(numbers[::2], numbers[1::2], strict=True)) if elements_are_pairs else numbers
    b"".join(element.to_bytes(4, "little", signed=True) for element in elements)


class _WritesNumbers(StorageWriter):
    def offer(self, node: Node) -> None:
        if not node.is_root:
            _digests_of_numbers(node.key, self._tree.config.bigram)
        super().offer(node)


class _ReadsNumbers(Prefetch):
    def _hashes_past_anchor(self) -> list[str]:
        _digests_of_numbers(self.key.data, self._tree.config.bigram)
        return super()._hashes_past_anchor()


class HashesNumbers(OtherParts):
    """Hashes the pages of storage as if each element were a number. With bigram keys it is a pair, and this raises.

    sglang#12025 (issue sglang#11919): with EAGLE the elements of a key are pairs, and the hash of a page called
    `to_bytes` of each.
    """

    parts: ClassVar[Mapping[str, type]] = {"StorageWriter": _WritesNumbers, "Prefetch": _ReadsNumbers}


class _RemembersWrites(StorageWorker):
    def __init__(self, pools: HostPools, written: frozenset[str]) -> None:
        super().__init__(pools, written)
        self._existing: set[str] = set()

    def attach(self, backend: StorageBackend) -> None:
        super().attach(backend)
        self._existing.clear()

    def clear(self) -> bool:
        self._existing.clear()
        return super().clear()

    def _read(self, backend: StorageBackend, job: StorageJob, batch: PageBatch) -> int:
        moved = super()._read(backend, job, batch)
        self._existing.update(batch.keys[:moved])
        return moved

    def _store(self, backend: StorageBackend, job: StorageJob, batch: StoreBatch) -> int:
        if self._existing.issuperset(batch.keys):
            return len(batch.keys)
        stored = super()._store(backend, job, batch)
        self._existing.update(batch.keys[:stored])
        return stored


class RemembersWrites(OtherParts):
    """Never writes an object a second time, even after storage has said that it lacks the object.

    sglang#36386: a set of the keys that exist saved the question to storage. A prefetch that found a page missing did
    not remove its key from this set, so the page was never written again nor found.
    """

    parts: ClassVar[Mapping[str, type]] = {"StorageWorker": _RemembersWrites}


class _CountsKvAlone(Prefetch):
    def _count(self, job: StorageJob, answers: Answers) -> None:
        super()._count(job, answers)
        came = self.pages_read.get(Pool.KV, 0)
        self.pages_read = dict.fromkeys(self._jobs.prefix_pools, came)


class CountsKvAlone(OtherParts):
    """Publishes as many pages of a prefetch as there came of KV, although fewer came of the pools beside it.

    sglang#30057: a prefetch that ended early restored KV for pages whose index had not been read.
    """

    parts: ClassVar[Mapping[str, type]] = {"Prefetch": _CountsKvAlone}


@dataclass(frozen=True, slots=True)
class Drawn:
    """One defect. `source`: where it was seen. `clauses`: those that a reader expects to be named."""

    source: str
    adapter: type[CacheAdapter]
    clauses: tuple[str, ...]


DRAWN: Sequence[Drawn] = (
    Drawn("sglang#29860", FloorsTheFrontier, ("REQ-4", "REQ-3")),
    Drawn("sglang#27072", ReportsTheLastFragment, ("EVENT-1",)),
    Drawn("sglang#12875", KeepsCopies, ("EVICT-8",)),
    Drawn("sglang#34519", RefusesPending, ("FLOW-6",)),
    Drawn("sglang#29819", NeverWaits, ("HOST-6",)),
    Drawn("sglang#25088", DeepestOnHost, ("MATCH-1",)),
    Drawn("sglang#12025", HashesNumbers, ("KEY-3",)),
    Drawn("sglang#36386", RemembersWrites, ("STORE-3",)),
    Drawn("sglang#30057", CountsKvAlone, ("FETCH-5", "FETCH-4")),
    Drawn("sglang#36738", FreesWhatIsWritten, ("FLOW-1",)),
)
"""One for each defect."""
