"""SglangView: the snapshot of an SGLang cache with a tree in Python; and the nodes that a receipt of SGLang locks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hicache.config import CacheConfig
from hicache.engines.sglang.pools import FULL, MAMBA, SWA, SglangPools
from hicache.testing.snapshot import NodeView, Snapshot
from hicache.types import SHARED, Component, Namespace, Slots

INDEX = {component.value: index for index, component in enumerate(Component)}
"""SGLang's index of each component."""

Locked = tuple[str, Any]
"""A component, and a node on which a receipt locks it."""

Ends = Mapping[int, int | None]
"""The mark at which a lock ends, by SGLang's index of the component; None: at the root."""

DEVICE_MARK, HOST_MARK = "uuid", "host_uuid"
"""The fields of a node with the marks at which locks end."""


class SglangView:
    """Shows one tree and its pools. `counts_empty`: a lock is also shown on a node without data."""

    def __init__(self, config: CacheConfig, pools: SglangPools, *, counts_empty: bool) -> None:
        self._counts_empty = counts_empty
        self._config = config
        self._pools = pools

    def snapshot(self, root: Any) -> Snapshot:
        """The cache now, in copied values."""
        nodes = list(walk(root))
        numbers = {node.id: number for number, node in enumerate(nodes)}
        views: list[NodeView] = []
        for node in nodes:
            parent = numbers.get(node.parent.id, -1)
            views.append(self._node(node, parent, views[parent].end if parent >= 0 else 0))
        pools = {name: self._pools.view(name) for name in self._config.components}
        return Snapshot(tuple(views), pools, None, None)

    def _node(self, node: Any, parent: int, start: int) -> NodeView:
        held = {name: node.component_data[INDEX[name]] for name in self._config.components}
        return NodeView(
            parent=parent,
            namespace=namespace_of(node.key),
            segment=segment_of(node.key),
            start=start,
            end=start + len(node.key),
            slots={name: own(data.value) for name, data in held.items()},
            locks={name: self._locks(data) for name, data in held.items()},
            hits=None,  # SGLang counts the prompts that were inserted through a node, not those that matched it
        )

    def _locks(self, data: Any) -> int:
        return int(data.lock_ref) if self._counts_empty or data.value is not None else 0


def walk(root: Any) -> Iterator[Any]:
    """The nodes below a root, parents first."""
    waiting = list(root.children.values())
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.children.values()


def count_holding(root: Any, component: str) -> int:
    """The number of nodes that hold a component's data on the device."""
    return sum(node.component_data[INDEX[component]].value is not None for node in walk(root))


def own(value: Any) -> Slots | None:
    """A tensor of slots as a new array."""
    return None if value is None else np.array(value.numpy(), dtype=np.int64)


def segment_of(key: Any) -> bytes:
    """The elements of a key as a snapshot shows them."""
    tokens = np.array(key.token_ids, dtype="<i4")
    return (np.stack((tokens[:-1], tokens[1:]), axis=1) if key.is_bigram else tokens).tobytes()


def extra_key(named: Mapping[str, str | None]) -> str | None:
    """A namespace as the one text that SGLang's tree uses, None for the shared one.

    How a server makes this text from an adapter's id and a salt does not matter here: no two namespaces have the same.
    """
    given = {name: text for name, text in named.items() if text is not None}
    return json.dumps(given, sort_keys=True) if given else None


def namespace_of(key: Any) -> Namespace:
    """The namespace of a key."""
    named = json.loads(key.extra_key) if key.extra_key else {}
    named |= {"salt": salt} if (salt := getattr(key, "cache_salt", None)) is not None else {}
    return Namespace(**({"lora": None, "salt": None, "tenant": None} | named)) if named else SHARED


def locked_0513(root: Any, node: Any, params: Any) -> Iterator[Locked]:
    """The locks of a receipt of 0.5.13.post1, which records the nodes without data at the time of the lock."""
    for name in (FULL, SWA, MAMBA):
        skipped = params.skip_lock_node_ids.get(INDEX[name], ())
        for one in _lock_range(root, node, name, DEVICE_MARK, params.swa_uuid_for_lock):
            if one.id not in skipped and one.component_data[INDEX[name]].lock_ref:
                yield name, one


def locked_on_host_0513(root: Any, node: Any, params: Any) -> Iterator[Locked]:
    """The same on the host, without FULL."""
    for name in (SWA, MAMBA):
        skipped = params.skip_lock_node_ids.get(INDEX[name], ())
        for one in _lock_range(root, node, name, HOST_MARK, params.swa_uuid_for_host_lock):
            if one.id not in skipped and one.component_data[INDEX[name]].host_lock_ref:
                yield name, one


def full_locked_on_host(root: Any, node: Any, *, counts_empty: bool) -> Iterator[Locked]:
    """The lock of FULL on the host until 0.5.21, on one node. `counts_empty`: also on one without data on the host."""
    full = node.component_data[INDEX[FULL]]
    if node is not root and full.host_lock_ref and (counts_empty or full.host_value is not None):
        yield FULL, node


def locked_0523(root: Any, node: Any, ends: Ends) -> Iterator[Locked]:
    """The locks of a receipt since 0.5.20, which also counts locks on nodes without data; those are not shown."""
    for name in (FULL, SWA, MAMBA):
        for one in _lock_range(root, node, name, DEVICE_MARK, ends.get(INDEX[SWA])):
            data = one.component_data[INDEX[name]]
            if data.lock_ref and data.value is not None:
                yield name, one


def locked_on_host_0523(root: Any, node: Any, ends: Ends) -> Iterator[Locked]:
    """The same on the host, where since 0.5.22 FULL is locked up to a mark, too, and a receipt names what it locked."""
    for name in (FULL, SWA, MAMBA):
        if name == FULL and INDEX[FULL] not in ends:
            continue
        for one in _lock_range(root, node, name, HOST_MARK, ends.get(INDEX[name])):
            if one.component_data[INDEX[name]].host_lock_ref:
                yield name, one


def _lock_range(root: Any, node: Any, component: str, mark: str, end: int | None) -> Iterator[Any]:
    """The nodes that a lock of a component may cover. `end`: the value of the mark at which it ends."""
    while node is not root:
        yield node
        is_end = end is not None and node.component_data[INDEX[component]].metadata.get(mark) == end
        if component == MAMBA or is_end:
            return
        node = node.parent
