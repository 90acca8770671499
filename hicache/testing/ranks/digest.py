"""TreeDigest: a snapshot without the slot numbers of a rank: equal on all ranks that hold the same tree."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hicache.testing.driving.patterns import seed
from hicache.testing.snapshot import HostView, Snapshot, StorageView
from hicache.types import Namespace, Slots

SHOWN_TOKENS = 6
"""The number of tokens shown of a node's segment."""


@dataclass(frozen=True, slots=True)
class TreeDigest:
    """One line for each node, pool, transfer and prefetch. A node is named by its namespace and tokens."""

    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """The lines as one text, as sent to other ranks."""
        return "\n".join(self.lines)

    def difference(self, other: TreeDigest) -> str:
        """The lines that differ: those of this digest with -, those of the other with +; empty when both are equal."""
        compared = difflib.unified_diff(self.lines, other.lines, n=0, lineterm="")
        return "\n".join(line for line in compared if not line.startswith(("---", "+++", "@@")))


def digest_of(snapshot: Snapshot) -> TreeDigest:
    """The digest of a whole cache."""
    nodes = sorted(_nodes(snapshot))
    return TreeDigest((*(line for _, line in nodes), *_pools(snapshot), *_in_flight(snapshot)))


def tree_differences(texts: Sequence[str]) -> str:
    """How the digests of the ranks, by rank, differ from that of rank 0, in words; empty when all are equal."""
    first, *others = [TreeDigest(tuple(text.split("\n"))) for text in texts]
    differences = {rank: first.difference(other) for rank, other in enumerate(others, start=1)}
    return "\n".join(
        f"rank {rank} has + where rank 0 has -:\n{difference}" for rank, difference in differences.items() if difference
    )


def _nodes(snapshot: Snapshot) -> Iterator[tuple[tuple[str, bytes], str]]:
    for row, node in enumerate(snapshot.nodes):
        prefix = snapshot.prefix(row)
        facts = {
            "on device": _held(node.slots),
            "locked": _counts(node.locks),
            "hits": str(node.hits or ""),
            **_facts_of_host(snapshot.host, row),
            "persisted": _marks(snapshot.storage, row),
        }
        messages = "; ".join(f"{name} {fact}" for name, fact in facts.items() if fact)
        name = _name(node.namespace, prefix, node.segment)
        yield (repr(node.namespace), prefix), f"node {node.start}..{node.end} {name}: {messages}"


def _marks(storage: StorageView | None, row: int) -> str:
    return "" if storage is None or storage.persisted is None else " ".join(sorted(storage.persisted[row]))


def _facts_of_host(host: HostView | None, row: int) -> dict[str, str]:
    if host is None:
        return {}
    view = host.nodes[row]
    return {
        "on host": _held(view.slots),
        "locked on host": _counts(view.locks),
        "pinned": _counts(view.pins),
        "pinned on host": _counts(view.host_pins),
    }


def _name(namespace: Namespace, prefix: bytes, segment: bytes) -> str:
    """The first tokens, and a short hash that identifies the prefix."""
    tokens = np.frombuffer(segment, dtype="<i4").tolist()
    shown = " ".join(map(str, tokens[:SHOWN_TOKENS])) + (" …" if len(tokens) > SHOWN_TOKENS else "")
    return f"[{shown}] #{hashlib.sha256(seed(namespace) + prefix).hexdigest()[:8]}"


def _pools(snapshot: Snapshot) -> Iterator[str]:
    host = snapshot.host
    for where, pools in (("device", snapshot.pools), ("host", host.pools if host is not None else {})):
        for name, pool in sorted(pools.items()):
            yield f"pool {name} on {where}: {len(pool.free)} of {pool.capacity} free"


def _in_flight(snapshot: Snapshot) -> Iterator[str]:
    if (host := snapshot.host) is not None:
        yield from (f"{transfer.kind.value} of {_held(transfer.host)}" for transfer in host.transfers)
        if kept := _held({name: slots for name, slots in host.kept.items() if len(slots)}):
            yield f"kept {kept}"
    if snapshot.storage is not None:
        yield from (f"prefetch of {_held(fetch.host)}" for fetch in snapshot.storage.fetches)
        if snapshot.storage.abandoned is not None:
            yield f"abandoned storage with {_held(snapshot.storage.abandoned)}"


def _held(slots: Mapping[str, Slots | None]) -> str:
    return " ".join(f"{name}:{len(held)}" for name, held in sorted(slots.items()) if held is not None)


def _counts(counts: Mapping[str, int]) -> str:
    return " ".join(f"{name}:{count}" for name, count in sorted(counts.items()) if count)
