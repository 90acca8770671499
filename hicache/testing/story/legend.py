"""The legend: the meaning of each letter and sign in the drawings."""

from __future__ import annotations

from collections.abc import Mapping

from hicache.testing.story.cells import Residency
from hicache.testing.story.configuration import WINDOW
from hicache.testing.story.fills import Owner
from hicache.types import Component

LETTERS: Mapping[str, str] = {Component.FULL.value: "F", Component.SWA.value: "S", Component.MAMBA.value: "M"}

COMPONENTS: Mapping[str, str] = {
    Component.FULL.value: "FULL: keys and values of the layers that attend to the whole prefix",
    Component.SWA.value: f"SWA: keys and values of sliding-window layers; they need the last {WINDOW} tokens",
    Component.MAMBA.value: "MAMBA: one recurrent state, valid only for a prefix of exactly this length",
}

RESIDENCY: Mapping[Residency, str] = {
    Residency.HERE: "resident",
    Residency.ARRIVING: "arriving by a transfer",
    Residency.TOMBSTONE: "tombstone: FULL is resident, this is not",
    Residency.ABSENT: "not resident",
}

LOCKED = "locked: must not be evicted"

OWNERS: Mapping[Owner, str] = {
    Owner.TREE: "in the tree",
    Owner.TRANSFER: "reserved for a transfer",
    Owner.REQUEST: "owned by a request",
    Owner.FREE: "free",
}
