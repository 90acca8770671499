"""The laws of the tree seen from inside: what must hold between any two operations."""

from __future__ import annotations

from hicache.errors import InvariantError
from hicache.tree.node import Node

FULL = 0


def check_invariants(root: Node) -> None:
    """Raise InvariantError, naming the law and the node, unless all of them hold below the root."""
    _check_holders(root)
    stack = list(root.children.values())
    while stack:
        node = stack.pop()
        stack.extend(node.children.values())
        _check_shape(node)
        _check_values(node)
        _check_holders(node)
        _check_locks(node)


def _require(holds: bool, law: str, node: Node) -> None:
    if not holds:
        raise InvariantError(f"{law}: {node!r}, parent {node.parent!r}")


def _check_shape(node: Node) -> None:
    _require(node.alive and node.parent is not None and node.parent.alive, "a node in the tree is alive", node)
    _require(node.pages > 0 and len(node.key) % node.pages == 0, "a node holds whole pages", node)
    _require(all(child.parent is node for child in node.children.values()), "children know their parent", node)
    _require(all(child.namespace == node.namespace for child in node.children.values()), "one namespace", node)
    _require(node.hashes is None or len(node.hashes) == node.pages, "one hash per page", node)


def _check_values(node: Node) -> None:
    components = len(node.touched)
    tiers = [node.values[first : first + components] for first in range(0, len(node.values), components)]
    for values in tiers:
        held = [value is not None for value in values]
        _require(held == sorted(held, reverse=True), "no component outlives one of higher rank on its tier", node)
        full = values[FULL]
        _require(full is None or len(full) == node.pages, "FULL is held for each page", node)
    _require(any(values[FULL] is not None for values in tiers), "a node holds FULL on some tier", node)
    is_missing = any(all(value is None for value in values) for values in zip(*tiers, strict=True))
    is_free_leaf = not node.children and not any(node.locks)
    _require(not (is_free_leaf and is_missing), "an unlocked leaf lacks nothing on every tier", node)
    parent = node.parent
    has_ground = parent is None or parent.parent is None or parent.values[FULL] is not None
    _require(node.values[FULL] is None or has_ground, "what is on the device stands on what is there", node)


def _check_holders(node: Node) -> None:
    components = len(node.touched)
    children = node.children.values()
    counted = [
        sum(child.values[tier * components] is not None for child in children) for tier in range(len(node.holders))
    ]
    _require(node.holders == counted, f"a node counts the children that hold FULL, {counted} by tier", node)


def _check_locks(node: Node) -> None:
    components = len(node.touched)
    locked_children = sum(1 for child in node.children.values() if child.locks[FULL])
    _require(min(node.locks) >= 0, "no lock count is negative", node)
    _require(node.locks[FULL] >= locked_children, "FULL counts each locked child", node)
    unheld = [lock for lock, value in zip(node.locks, node.values, strict=True) if value is None]
    _require(not any(unheld), "what is locked is there", node)
    _require(bool(node.locks[FULL]) or not any(node.locks[:components]), "what any component locks, FULL locks", node)
