"""The nodes that a receipt of SGLang locks, on the device and on the host, as its release finds them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hicache.testing.adapters.sglang_pools import FULL, MAMBA, SWA
from hicache.testing.adapters.sglang_view import INDEX

Locked = tuple[str, Any]
"""A component, and a node on which a receipt locks it."""

DEVICE_MARK, HOST_MARK = "uuid", "host_uuid"
"""The fields of a node with the marks at which locks end."""


def locked_0513(root: Any, node: Any, params: Any) -> Iterator[Locked]:
    """The locks of a receipt of 0.5.13.post1, which records the nodes without data at the time of the lock."""
    for name in (FULL, SWA, MAMBA):
        skipped = params.skip_lock_node_ids.get(INDEX[name], ())
        for one in _lock_range(root, node, name, DEVICE_MARK, params.swa_uuid_for_lock):
            if one.id not in skipped and one.component_data[INDEX[name]].lock_ref:
                yield name, one


def locked_on_host_0513(root: Any, node: Any, params: Any) -> Iterator[Locked]:
    """The same on the host, where FULL is locked on one node."""
    if node is not root and (full := node.component_data[INDEX[FULL]]).host_lock_ref and full.host_value is not None:
        yield FULL, node
    for name in (SWA, MAMBA):
        skipped = params.skip_lock_node_ids.get(INDEX[name], ())
        for one in _lock_range(root, node, name, HOST_MARK, params.swa_uuid_for_host_lock):
            if one.id not in skipped and one.component_data[INDEX[name]].host_lock_ref:
                yield name, one


def locked_0523(root: Any, node: Any, params: Any) -> Iterator[Locked]:
    """The locks of a receipt of 0.5.23, which also counts locks on nodes without data; those are not shown."""
    for name in (FULL, SWA, MAMBA):
        for one in _lock_range(root, node, name, DEVICE_MARK, params.component_lock_uuids.get(INDEX[SWA])):
            data = one.component_data[INDEX[name]]
            if data.lock_ref and data.value is not None:
                yield name, one


def locked_on_host_0523(root: Any, node: Any, params: Any) -> Iterator[Locked]:
    """The same on the host, where FULL is locked up to a mark, too, and a receipt names what it locked."""
    ends = params.component_host_lock_uuids
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
