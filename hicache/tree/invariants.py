"""The invariants of the tree: what must hold for every node between any two operations."""

from __future__ import annotations

from hicache.errors import InvariantError
from hicache.tree.node import FULL, Node


def check_invariants(root: Node) -> None:
    """Raise InvariantError, naming the invariant and the node, unless all of them hold below the root."""
    _check_children(root)
    stack = list(root.children.values())
    while stack:
        node = stack.pop()
        stack.extend(node.children.values())
        _check_shape(node)
        _check_values(node)
        _check_children(node)
        _check_locks(node)


def _require(holds: bool, invariant: str, node: Node) -> None:
    if not holds:
        raise InvariantError(f"{invariant}: {node!r}, parent {node.parent!r}")


def _check_shape(node: Node) -> None:
    _require(node.alive and node.parent is not None and node.parent.alive, "a node in the tree is alive", node)
    _require(node.pages > 0 and len(node.key) % node.pages == 0, "a node has whole pages", node)
    _require(all(child.parent is node for child in node.children.values()), "children know their parent", node)
    _require(all(child.namespace == node.namespace for child in node.children.values()), "one namespace", node)
    _require(node.hashes is None or len(node.hashes) == node.pages, "one hash for each page", node)


def _check_values(node: Node) -> None:
    tiers = [tier for tier in (node.device, node.host) if tier]
    for tier in tiers:
        present = [data.value is not None for data in tier]
        _require(present == sorted(present, reverse=True), "no component is there without those before it", node)
        full = tier[FULL].value
        _require(full is None or len(full) == node.pages, "FULL has one page for each page of the key", node)
    _require(any(tier[FULL].value is not None for tier in tiers), "a node has FULL on some tier", node)
    lacks_one = any(all(data.value is None for data in component) for component in zip(*tiers, strict=True))
    is_free_leaf = not node.children and not node.is_locked
    _require(not (is_free_leaf and lacks_one), "an unlocked leaf lacks no component on every tier", node)
    parent = node.parent
    is_reachable = parent is None or parent.is_root or parent.device[FULL].value is not None
    _require(node.device[FULL].value is None or is_reachable, "on the device a prefix has no gap", node)


def _check_children(node: Node) -> None:
    children = node.children.values()
    on_device = sum(child.device[FULL].value is not None for child in children)
    on_host = sum(bool(child.host) and child.host[FULL].value is not None for child in children)
    counted = (node.device_children, node.host_children)
    _require(counted == (on_device, on_host), f"{on_device} children have FULL on the device, {on_host} on host", node)


def _check_locks(node: Node) -> None:
    locked_children = sum(1 for child in node.children.values() if child.device[FULL].lock_ref)
    every = [*node.device, *node.host]
    _require(min(data.lock_ref for data in every) >= 0, "no lock count is negative", node)
    _require(node.device[FULL].lock_ref >= locked_children, "FULL counts each locked child", node)
    _require(all(data.value is not None for data in every if data.lock_ref), "what is locked is there", node)
    any_locked = any(data.lock_ref for data in node.device)
    _require(bool(node.device[FULL].lock_ref) or not any_locked, "what any component locks, FULL locks", node)
