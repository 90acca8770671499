"""The legend: what each letter and sign of the drawings stands for, in words."""

from __future__ import annotations

from collections.abc import Mapping

from hicache.testing.story.cells import Residency
from hicache.testing.story.configuration import WINDOW
from hicache.testing.story.fills import Owner
from hicache.types import Component

LETTERS: Mapping[str, str] = {Component.FULL.value: "F", Component.SWA.value: "S", Component.MAMBA.value: "M"}

COMPONENTS: Mapping[str, str] = {
    Component.FULL.value: "FULL: keys and values of layers that look at the whole prefix",
    Component.SWA.value: f"SWA: those of layers with a sliding window; of a prefix they need the last {WINDOW} tokens",
    Component.MAMBA.value: "MAMBA: one recurrent state, good for a prefix of exactly this length",
}

RESIDENCY: Mapping[Residency, str] = {
    Residency.HERE: "here",
    Residency.ARRIVING: "on its way here",
    Residency.TOMBSTONE: "tombstone: FULL is here, this is not",
    Residency.ABSENT: "not here",
}

LOCKED = "locked: must stay here"

OWNERS: Mapping[Owner, str] = {
    Owner.TREE: "in the tree",
    Owner.TRANSFER: "waiting for its bytes",
    Owner.REQUEST: "a request's own",
    Owner.NOBODY: "free",
}
