"""What a receipt of SGLang locks on the device, as its release would find it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hicache.testing.adapters.sglang_pools import FULL, MAMBA, SWA
from hicache.testing.adapters.sglang_view import INDEX

Locked = tuple[str, Any]
"""A component, and a node on which a receipt locks it."""


def locked_0513(root: Any, node: Any, params: Any) -> Iterator[Locked]:
    """The locks of a receipt of 0.5.13.post1, which says which nodes had no data when it was taken."""
    for name in (FULL, SWA, MAMBA):
        skipped = params.skip_lock_node_ids.get(INDEX[name], ())
        for one in _reach(root, node, name, params.swa_uuid_for_lock):
            if one.id not in skipped and one.component_data[INDEX[name]].lock_ref:
                yield name, one


def locked_0523(root: Any, node: Any, params: Any) -> Iterator[Locked]:
    """The locks of a receipt of 0.5.23, which are on nodes without data as well, where they are not shown."""
    for name in (FULL, SWA, MAMBA):
        for one in _reach(root, node, name, params.component_lock_uuids.get(INDEX[SWA])):
            data = one.component_data[INDEX[name]]
            if data.lock_ref and data.value is not None:
                yield name, one


def _reach(root: Any, node: Any, component: str, mark: int | None) -> Iterator[Any]:
    """The nodes that a lock of a component may be on. `mark`: SWA's end, which a node bears."""
    while node is not root:
        yield node
        is_end = component == SWA and mark is not None and node.component_data[INDEX[SWA]].metadata.get("uuid") == mark
        if component == MAMBA or is_end:
            return
        node = node.parent
