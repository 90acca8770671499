"""Act: one step of the story, with the claims that must hold after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hicache.testing.story.picture import Owner, Picture, PictureRow, Residency
from hicache.testing.story.stage import ShownCache
from hicache.testing.violation import violation
from hicache.types import Tier

ALL, COMING, NOTHING, WITHOUT_TIER = "■■■", "○○○", "···", ""
"""The signs of a tier on which each component is resident, arriving, or not resident, and of one that is not there."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What must be drawn of one node after an act.

    `text`: the words of the node. `device`, `host`, `storage`: its cells on that tier as signs, in order of component
    rank. Storage takes the pools one after the other, so of those that are claimed to arrive there all but one may be
    resident. `lockers`: exactly who locks it on the device. `host_lockers`: who must lock it on the host; others may,
    too. `is_in_tree`: False for what only storage knows of.
    """

    text: str
    device: str
    host: str
    storage: str
    lockers: tuple[str, ...]
    host_lockers: tuple[str, ...]
    is_in_tree: bool

    def __str__(self) -> str:
        device, host = (" and ".join(who) or "no one" for who in (self.lockers, self.host_lockers))
        tiers = [f"{self.device} on the device, locked by {device}", f"{self.host} on the host, locked by {host}"]
        if self.storage:
            tiers.append(f"{self.storage} in storage")
        return ", ".join([*tiers, *(() if self.is_in_tree else ("no node of the tree",))])

    def is_met_by(self, shown: Claim) -> bool:
        """Whether the drawn node meets the claim."""
        locks_host = set(self.host_lockers) <= set(shown.host_lockers)
        rest = replace(shown, host_lockers=self.host_lockers, storage=self.storage)
        return locks_host and self._is_stored_as(shown.storage) and rest == self

    def _is_stored_as(self, shown: str) -> bool:
        arriving, here = Residency.ARRIVING.value, Residency.HERE.value
        if arriving not in self.storage or arriving not in shown:
            return self.storage == shown
        may = ((one, here) if one == arriving else (one,) for one in self.storage)
        return len(self.storage) == len(shown) and all(own in one for own, one in zip(shown, may, strict=True))


@dataclass(frozen=True, slots=True)
class Act:
    """One step. `clauses`: the clauses that it shows. `claims`: one for each row that is drawn after the act."""

    title: str
    text: str
    clauses: tuple[str, ...]
    play: Callable[[ShownCache], None]
    claims: tuple[Claim, ...]


def require_claims(act: Act, picture: Picture) -> None:
    """Raise InvariantError unless the picture shows exactly the claimed nodes."""
    shown = {row.text: _claim_of(row) for row in picture.rows}
    expected = {claim.text: claim for claim in act.claims}
    if list(shown) != list(expected):
        raise violation(act.clauses[0], "nodes of the tree", list(expected), list(shown))
    for text, claim in expected.items():
        if not claim.is_met_by(shown[text]):
            raise violation(act.clauses[0], repr(text), claim, shown[text])
    is_empty = not any(claim.is_in_tree for claim in act.claims)
    if is_empty and any(fill.pages[Owner.FREE] != sum(fill.pages.values()) for fill in picture.fills):
        raise violation(act.clauses[0], "pools without a tree", "every page free", picture.fills)


def _claim_of(row: PictureRow) -> Claim:
    device, host, storage = ("".join(cell.residency.value for cell in row.cells.get(tier, ())) for tier in Tier)
    return Claim(row.text, device, host, storage, row.locked_by[Tier.DEVICE], row.locked_by[Tier.HOST], row.is_in_tree)
