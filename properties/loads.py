"""Loads: when a load must be granted, the loads that callers wait for, and which of them may fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hicache.config import HostConfig
from hicache.testing.models.tree import ExpectedMatch
from hicache.testing.snapshot import Snapshot, TransferView
from hicache.types import NO_SLOTS, Component, Handle, Key, LoadBack, Slots, TransferKind

FULL = Component.FULL.value


@dataclass(slots=True, eq=False)
class ExpectedLoad:
    """A load that was granted.

    `ticket`: of the cache. `node`: the handle that was loaded. `key`: the prefix that the load delivers.
    `indices`: the promised slots. `may_fail`: a transfer was made to fail that the load may depend on.
    """

    ticket: Handle
    node: Handle
    key: Key
    indices: Slots
    may_fail: bool


class LoadTickets:
    """Every ticket is claimed or abandoned once. After that, and after a reset, it is refused.

    `waiting`: the tickets that were neither claimed nor abandoned.
    """

    def __init__(self) -> None:
        self.waiting: list[ExpectedLoad] = []
        self._has_failure = False

    def granted(self, ticket: Handle, node: Handle, key: Key, indices: Slots) -> None:
        """A load was granted. It may share transfers with other loads, and so their failures."""
        self.waiting.append(ExpectedLoad(ticket, node, key, indices, may_fail=self._has_failure))

    def failed(self) -> None:
        """A load transfer was made to fail. Which loads depend on it cannot be seen from outside."""
        self._has_failure = True
        for ticket in self.waiting:
            ticket.may_fail = True

    def observe(self, are_loads_under_way: bool) -> None:
        """Once no load is under way, later loads depend on no earlier failure."""
        self._has_failure &= are_loads_under_way


def loads_of(snapshot: Snapshot) -> list[TransferView]:
    """The loads under way."""
    transfers = () if snapshot.host is None else snapshot.host.transfers
    return [one for one in transfers if one.kind is TransferKind.LOAD]


def require_answer(
    load: LoadBack | None, expected: ExpectedMatch, quota: int | None, before: Snapshot, host: HostConfig
) -> None:
    """FLOW-10: a load covers all that was found. HOST-5: whether it is granted, where the oracle knows."""
    if load is not None:
        promised = expected.anchor + len(load.indices)
        assert promised == expected.best, (
            f"FLOW-10: {expected} was found: expected a load up to {expected.best} elements, got {promised}"
        )
    if loads_of(before):
        return
    full = expected.host_hits[FULL]
    is_too_little, is_too_much = 0 < full < host.load_back_threshold_tokens, quota is not None and full > quota
    is_wanted = any(expected.host_hits.values()) and not is_too_little and not is_too_much
    has_room = all(len(before.pools[c].free) >= tokens for c, tokens in expected.host_hits.items())
    asked = f"a load of {expected} with a quota of {quota} and {host}"
    assert is_wanted or load is None, f"HOST-5: expected {asked} to be refused, but it was granted"
    assert load is not None or not is_wanted or not has_room, (
        f"HOST-5: there is room: expected {asked} to be granted, but it was refused"
    )


def new_targets(before: Snapshot, after: Snapshot, component: str) -> Slots:
    """The slots that loads fill since an earlier snapshot. FLOW-6: nothing is loaded twice at a time."""
    sources = _joined([load.host for load in loads_of(after)], component)
    assert len(np.unique(sources)) == len(sources), (
        f"FLOW-6: expected each host slot of {component} to be loaded once at a time, got {sources}"
    )
    known, targets = (_joined([load.device for load in loads_of(one)], component) for one in (before, after))
    return np.setdiff1d(targets, known)


def _joined(ends: Sequence[Mapping[str, Slots]], component: str) -> Slots:
    slots = [end[component] for end in ends if component in end]
    return np.concatenate(slots) if slots else NO_SLOTS
