"""A radix tree as text: a line for each node, with its tokens, and what each component has on each tier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hicache.tree.node import FULL, ComponentData, Node
from hicache.types import SHARED, Namespace, Tier

HERE, ARRIVING, TOMBSTONE, ABSENT = "■", "○", "†", "·"
"""On a tier: resident; brought by a transfer; not resident, though FULL is; not resident, nor is FULL."""

SHOWN = 6
"""Tokens of a node that are shown if it has no more. Of a longer one the first three and the last two are shown."""


@dataclass(frozen=True, slots=True)
class _Line:
    """A node. `above`: for each ancestor below the root, then for itself, whether a sibling follows."""

    node: Node
    above: tuple[bool, ...]


def draw_tree(root: Node, components: Sequence[str], stride: int, most: int) -> str:
    """A header, the root, and one line for each node, parents first, of which at most `most` are drawn.

    `components`: in the order in which nodes have them. `stride`: of the ids of a key, those that are tokens of the
    prompt: 1, or 2 with bigram keys.
    """
    lines = list(_lines(root))
    drawn = lines[:most]
    labels = ["root", *(f"{_branches(line.above)}{_label(line.node, stride)}" for line in drawn)]
    width = max(map(len, labels))
    tiers = [Tier.DEVICE, Tier.HOST] if root.host else [Tier.DEVICE]
    letters = "".join(f" {name[0].upper()} " for name in components)
    text = [
        f"{'':{width}}" + "".join(f"  {tier.value:^{len(letters)}}" for tier in tiers),
        f"{'':{width}}" + f"  {letters}" * len(tiers),
        labels[0],
        *(f"{label:{width}}{_tiers(line.node)}" for label, line in zip(labels[1:], drawn, strict=True)),
    ]
    if len(lines) > most:
        text.append(f"… and {len(lines) - most} more nodes")
    return "\n".join(one.rstrip() for one in text)


def _lines(root: Node) -> Iterator[_Line]:
    """Each node after its parent and before its next sibling."""
    waiting = [_Line(root, ())]
    while waiting:
        line = waiting.pop()
        if not line.node.is_root:
            yield line
        children = list(line.node.children.values())
        waiting += [_Line(child, (*line.above, child is not children[-1])) for child in reversed(children)]


def _branches(above: tuple[bool, ...]) -> str:
    return "".join("│  " if follows else "   " for follows in above[:-1]) + ("├─ " if above[-1] else "└─ ")


def _label(node: Node, stride: int) -> str:
    """The tokens of a node, and its namespace if it is the first with it."""
    tokens = np.frombuffer(node.key, dtype="<i4")[::stride].tolist()
    parts = [*map(str, tokens)] if len(tokens) <= SHOWN else [*map(str, tokens[:3]), "…", *map(str, tokens[-2:])]
    count = f" ({len(tokens)} tokens)" if len(tokens) > SHOWN else ""
    is_first = node.parent is not None and node.parent.is_root and node.namespace != SHARED
    return f"{_named(node.namespace) if is_first else ''}{' '.join(parts)}{count}"


def _named(namespace: Namespace) -> str:
    fields = {"lora": namespace.lora, "salt": namespace.salt, "tenant": namespace.tenant}
    return "".join(f"{name}={text!r} " for name, text in fields.items() if text is not None)


def _tiers(node: Node) -> str:
    return "".join(f"  {_cells(tier)}" for tier in (node.device, node.host) if tier)


def _cells(tier: list[ComponentData]) -> str:
    return "".join(f"[{_sign(data, tier)}]" if data.lock_ref else f" {_sign(data, tier)} " for data in tier)


def _sign(data: ComponentData, tier: list[ComponentData]) -> str:
    if data.value is not None:
        return HERE
    if data.transfer is not None:
        return ARRIVING
    return ABSENT if tier[FULL].value is None else TOMBSTONE
