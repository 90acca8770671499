"""Act: one step of the story, and the state of the cache that must follow from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hicache.testing.story.fills import Owner
from hicache.testing.story.picture import Picture, Row
from hicache.testing.story.stage import Stage
from hicache.testing.violation import violation
from hicache.types import Tier


@dataclass(frozen=True, slots=True)
class Claim:
    """What must be drawn of one node after an act.

    `text`: the words of the node. `device`, `host`: its cells on that tier as signs, in order of component rank.
    `lockers`: exactly who locks it on the device. `host_lockers`: who must lock it on the host; others may, too.
    """

    text: str
    device: str
    host: str
    lockers: tuple[str, ...]
    host_lockers: tuple[str, ...]

    def __str__(self) -> str:
        locks = [" and ".join(who) or "no one" for who in (self.lockers, self.host_lockers)]
        return f"{self.device} on the device, locked by {locks[0]}, {self.host} on the host, locked by {locks[1]}"

    def is_met_by(self, shown: Claim) -> bool:
        """Whether the drawn node meets the claim."""
        least = set(self.host_lockers) <= set(shown.host_lockers)
        return least and replace(shown, host_lockers=self.host_lockers) == self


@dataclass(frozen=True, slots=True)
class Act:
    """One step. `clauses`: the clauses that it shows. `claims`: one for each node of the tree after the act."""

    title: str
    text: str
    clauses: tuple[str, ...]
    play: Callable[[Stage], None]
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
    if not act.claims and any(fill.pages[Owner.FREE] != sum(fill.pages.values()) for fill in picture.fills):
        raise violation(act.clauses[0], "pools without a tree", "every page free", picture.fills)


def _claim_of(row: Row) -> Claim:
    device, host = ("".join(cell.residency.value for cell in row.cells[tier]) for tier in (Tier.DEVICE, Tier.HOST))
    return Claim(row.text, device, host, row.locked_by[Tier.DEVICE], row.locked_by[Tier.HOST])
