"""RustTree: the nodes of SGLang's tree in Rust, as a tree in Python has them.

SGLang's own tests inspect this tree by calls that only a build with another feature has. Here it is read by the calls
of a release: what the tree prints, and what it specifies for the copies of a node. They show whether SWA and MAMBA are
locked on the device, but not how often, and nothing of the locks on the host: RustLocks counts these.
"""

from __future__ import annotations

import os
import re
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from hicache.engines.sglang.imports import import_from
from hicache.engines.sglang.pools import FULL, MAMBA, SWA
from hicache.engines.sglang.view import INDEX

LINE = re.compile(r" ((?:  )*)\[(\d+)\] (\d+) full_lock=(\d+)(?: \w+=(?:yes|no))+")
"""A node as the tree prints it: its depth as blanks, its number, its length in elements, and the locks of FULL."""

AFTER_WINDOW = frozenset({SWA, MAMBA})
"""The components that a release of the window unlocks."""


@dataclass(frozen=True, slots=True)
class HeldComponent:
    """The data of one component on one node, with the fields of a node in Python."""

    value: Any
    lock_ref: int
    host_value: Any
    host_lock_ref: int


@dataclass(frozen=True, slots=True)
class Lock:
    """A component that a receipt locks: the node, and the mark at which the lock ends; None at the root."""

    component: str
    on_host: bool
    node: int
    mark: int | None


class RustNode:
    """One node. `id`: its number. `parent`: None for the root. `start`: the position of its key, in elements."""

    def __init__(self, tree: RustTree, number: int, parent: RustNode | None, length: int, full_locks: int) -> None:
        self._tree = tree
        self._full_locks = full_locks
        self.id = number
        self.parent = parent
        self.children: dict[int, RustNode] = {}
        self.start: int = 0 if parent is None else parent.end
        self.end: int = self.start + length
        if parent is not None:
            parent.children[number] = self

    @cached_property
    def key(self) -> Any:
        """The node's part of the key, in SGLang's type."""
        core = self._tree.core
        extra_key, cache_salt = core.prefetch_anchor_info(self.id)
        shown = core.snapshot_buffer_backup(self.id, False)  # of a node on the device
        tokens = core.build_storage_backup_spec(self.id, False).token_ids if shown is None else shown.key.token_ids
        options = {"extra_key": extra_key, "is_bigram": core.is_eagle, "cache_salt": cache_salt}
        return _key_type()(array("q", tokens), **options)

    @cached_property
    def component_data(self) -> Mapping[int, HeldComponent]:
        """By SGLang's index of the component."""
        return {INDEX[name]: self._data(name) for name in self._tree.components}

    def _data(self, name: str) -> HeldComponent:
        tree, kind = self._tree, self._tree.kinds[name]
        value = tree.core.get_component_device_value(self.id, kind)
        counted = tree.counts[name, False, self.id]
        if name == FULL:
            counted = self._full_locks
        elif value is not None:
            counted = max(1, counted) if self._is_locked(kind) else 0
        return HeldComponent(value, counted, self._host_value(name), tree.counts[name, True, self.id])

    def _host_value(self, name: str) -> Any:
        core = self._tree.core
        if name == FULL:
            spec = core.build_storage_backup_spec(self.id, False)
            return None if spec is None else spec.host_value
        transfers = core.build_hicache_transfers(self._tree.kinds[name], self.id, _phase().BACKUP_STORAGE)
        return transfers[0].host_indices if transfers else None

    def _is_locked(self, kind: Any) -> bool:
        """Whether a component that the node has on the device is locked: to which of its sizes the tree adds a slot."""
        core = self._tree.core
        before = core.component_protected_size(kind)
        core.adjust_component_size(self.id, kind, 1)
        is_locked = core.component_protected_size(kind) > before
        core.adjust_component_size(self.id, kind, -1)
        return bool(is_locked)


class RustTree:
    """The tree at one moment. `kinds`: SGLang's type of each component."""

    def __init__(self, core: Any, kinds: Mapping[str, Any], locks: RustLocks) -> None:
        self.core = core
        self.kinds = kinds
        self.components = tuple(kinds)
        # Only of nodes with hashes the tree shows the rest. Storage would compute the same when it is attached.
        core.backfill_missing_hash_values()
        self.nodes: dict[int, RustNode] = {}
        path: list[RustNode] = []
        for line in printed(core.pretty_print).splitlines():
            if line.strip():
                path = self._read(line, path)
        self.root = next(iter(self.nodes.values()))
        self._locks = locks

    @cached_property
    def counts(self) -> Counter[tuple[str, bool, int]]:
        """How often each node is locked, by component and tier."""
        counts: Counter[tuple[str, bool, int]] = Counter()
        for lock, count in self._locks.held.items():
            counts.update({(lock.component, lock.on_host, node.id): count for node in self.covered(lock)})
        return counts

    def covered(self, lock: Lock) -> Iterator[RustNode]:
        """The nodes that a lock covers, from its node up."""
        node, start = self.nodes.get(lock.node), self._locks.starts.get(lock.mark, 0)
        while node is not None and node.parent is not None:
            yield node
            if lock.component == MAMBA or node.start <= start:
                return
            node = node.parent

    def _read(self, line: str, path: list[RustNode]) -> list[RustNode]:
        found = LINE.fullmatch(line)
        if found is None:
            raise ValueError(f"expected a node as SGLang's tree prints it, got {line!r}")
        above = path[: len(found[1]) // 2]
        node = RustNode(self, int(found[2]), above[-1] if above else None, int(found[3]), int(found[4]))
        self.nodes[node.id] = node
        return [*above, node]


class RustLocks:
    """The locks that a tree in Rust has given and not taken back. `starts`: by mark, where in the key its lock begins.

    The ranges are those of the tree in Python: SWA up to the node in which the window begins, MAMBA the node alone.
    """

    def __init__(self, core: Any, kinds: Mapping[str, Any], window: int | None) -> None:
        self.held: Counter[Lock] = Counter()
        self.starts: dict[int | None, int] = {}
        self._core = core
        self._kinds = kinds
        self._window = window or 0
        self._observe("inc_lock_ref", lambda result, *_, **__: self._take(result, on_host=False))
        self._observe("inc_host_lock_ref", lambda result, *_: self._take(result, on_host=True))
        self._observe("dec_lock_ref", self._release)
        self._observe(
            "dec_host_lock_ref", lambda _, __, params: self.held.subtract(self.locks_of(params, on_host=True))
        )
        self._observe("dec_swa_lock_only", self._release_window)
        self._observe("reset", lambda _: self.held.clear())

    def locks_of(self, params: Any, *, on_host: bool) -> list[Lock]:
        """The components that a receipt locks."""
        marks = params.component_host_lock_uuids if on_host else params.component_lock_uuids
        return [
            Lock(name, on_host, params.node_id, marks.get(kind))
            for name, kind in self._kinds.items()
            if kind not in params.skipped_lock_components and (name != FULL or not on_host or kind in marks)
        ]

    def _observe(self, name: str, record: Callable[..., object]) -> None:
        call = getattr(self._core, name)

        def observed(*arguments: Any, **options: Any) -> Any:
            result = call(*arguments, **options)
            record(result, *arguments, **options)
            return result

        setattr(self._core, name, observed)

    def _take(self, result: Any, *, on_host: bool) -> None:
        locks = self.locks_of(result, on_host=on_host)
        self.held.update(locks)
        ((*path,),) = self._core.collect_path_info([result.node_id])
        for lock in locks:
            if lock.mark is not None and lock.mark not in self.starts:
                reach = self._window if lock.component == SWA else 1
                begins = [one.path_start for one in path if path[-1].path_end - one.path_start >= reach]
                self.starts[lock.mark] = max(begins, default=0)  # the root's path is empty

    def _release(self, _: Any, __: Any, params: Any, skip_swa: bool = False) -> None:
        self._drop(params, AFTER_WINDOW if skip_swa else ())

    def _release_window(self, _: Any, __: Any, params: Any) -> None:
        self._drop(params, {FULL})

    def _drop(self, params: Any, others: Collection[str] = (), *, on_host: bool = False) -> None:
        locks = self.locks_of(params, on_host=on_host)
        self.held.subtract(lock for lock in locks if lock.component not in others)


@cache
def _key_type() -> Any:
    return import_from("sglang.srt.mem_cache.radix_cache", "RadixKey")[0]


@cache
def _phase() -> Any:
    return import_from("sglang.srt.mem_cache.unified_cache.components", "CacheTransferPhase")[0]


def printed(call: Callable[[], object]) -> str:
    """What a call prints, also from below Python."""
    with os.fdopen(os.memfd_create("printed"), "w+b") as file:
        before = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            call()
        finally:
            os.dup2(before, 1)
            os.close(before)
        file.seek(0)
        return file.read().decode()
