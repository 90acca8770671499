"""The story of `hicache explain`: it is played as it is told, shows every sign there is, and notices what is not so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from hicache.config import CacheConfig, WritePolicy
from hicache.errors import InvariantError
from hicache.testing.adapter import Capability
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.testing.contract import CONTRACT
from hicache.testing.story.picture import REQUEST, TRANSFER, Cell, Mark, Owner, Residency
from hicache.testing.story.script import ACTS, Claim, Scene, missing_capabilities, require_claims, run_story
from hicache.tests.kit.flat_cache import FlatCache
from hicache.types import NO_SLOTS, EvictResult, Handle, Key, LoadBack, MatchResult, Tier, TransferKind

TIERS = (Tier.DEVICE, Tier.HOST)


class LateCopies(ReferenceAdapter):
    """Backs a node up when it is used again."""

    def __init__(self, config: CacheConfig) -> None:
        assert config.host is not None, "the story has a host tier"
        selective = replace(config.host, write_policy=WritePolicy.WRITE_THROUGH_SELECTIVE, selective_hits=9)
        super().__init__(replace(config, host=selective))


class NoLoads(ReferenceAdapter):
    """Refuses every load."""

    def load_back(self, handle: Handle, *, quota: int | None) -> LoadBack | None:
        return None


class NoHostHits(ReferenceAdapter):
    """Finds nothing on the host."""

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        found = super().match(key, chunked=chunked)
        return replace(found, best_match=found.device_anchor, host_hit_length=0)


class NoDeviceHits(ReferenceAdapter):
    """Finds nothing on the device where something is on the host."""

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        found = super().match(key, chunked=chunked)
        return replace(found, device_indices=NO_SLOTS) if found.host_hit_length else found


class NoHostEviction(ReferenceAdapter):
    """Keeps what is on the host."""

    def evict_host(self, component: str, tokens: int) -> EvictResult:
        return EvictResult({"full": 0, "swa": 0, "mamba": 0}, victims=0, refused=0)


class NoTombstones(ReferenceAdapter):
    """Evicts nothing when it is asked to; in its need for room it does."""

    def evict(self, component: str, tokens: int) -> EvictResult:
        return EvictResult({"full": 0, "swa": 0, "mamba": 0}, victims=0, refused=0)


class Closing(LateCopies):
    """Tells when it was closed."""

    closed = 0

    def close(self) -> None:
        super().close()
        Closing.closed += 1


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    """The whole story, played on the reference."""
    return list(run_story(ReferenceAdapter))


def cells_of(scenes: list[Scene]) -> Iterator[Cell]:
    """Every cell of every drawing."""
    for scene in scenes:
        for row in scene.picture.rows:
            for tier in TIERS:
                yield from row.cells[tier]


def act_at(scenes: list[Scene], title: str) -> Scene:
    """The scene of this title."""
    return next(scene for scene in scenes if title in scene.act.title)


def test_the_reference_plays_every_act_as_it_is_told(scenes: list[Scene]) -> None:
    played = [(scene.number, scene.act.title) for scene in scenes]
    assert played == [(number, act.title) for number, act in enumerate(ACTS, start=1)], f"played: {played}"


def test_every_act_names_clauses_of_the_contract_and_says_a_few_sentences() -> None:
    for act in ACTS:
        unknown = set(act.clauses) - set(CONTRACT)
        assert act.clauses, f"{act.title!r} shows no clause"
        assert not unknown, f"{act.title!r} names {unknown}, which the contract lacks"
        sentences = act.text.count(". ") + 1
        assert 2 <= sentences <= 5, f"{act.title!r} has {sentences} sentences"


def test_each_state_of_a_cell_is_seen_on_the_tiers_where_it_can_be(scenes: list[Scene]) -> None:
    seen = {(cell.tier, cell.residency) for cell in cells_of(scenes)}
    expected = {(tier, residency) for tier in TIERS for residency in Residency} - {(Tier.HOST, Residency.TOMBSTONE)}
    assert seen >= expected, f"no act shows {expected - seen}"


def test_each_component_is_seen_here_on_its_way_and_locked(scenes: list[Scene]) -> None:
    for component in ("full", "swa", "mamba"):
        own = [cell for cell in cells_of(scenes) if cell.component == component]
        for tier in TIERS:
            here = [cell for cell in own if cell.tier is tier]
            states = {cell.residency for cell in here}
            assert {Residency.HERE, Residency.ARRIVING} <= states, f"{component} on the {tier.value}: {states}"
            assert any(cell.is_locked for cell in here), f"{component} is never locked on the {tier.value}"


def test_each_mark_locker_owner_and_direction_is_seen(scenes: list[Scene]) -> None:
    pictures = [scene.picture for scene in scenes]
    marks = {mark for picture in pictures for row in picture.rows for mark in (*row.marks, *picture.root)}
    assert marks == set(Mark), f"marks: {marks}"
    lockers = {who for picture in pictures for row in picture.rows for who in row.lockers}
    assert lockers == {REQUEST, TRANSFER}, f"lockers: {lockers}"
    owners = {owner for picture in pictures for fill in picture.fills for owner, count in fill.pages.items() if count}
    assert owners == set(Owner), f"owners of pages: {owners}"
    kinds = {one.kind for picture in pictures for one in picture.movements}
    assert kinds == set(TransferKind), f"directions of transfers: {kinds}"


def test_a_transfer_is_shown_half_way(scenes: list[Scene]) -> None:
    shares = {cell.arrived for cell in cells_of(scenes) if cell.residency is Residency.ARRIVING}
    assert shares == {0.5}, f"every transfer stops after half of its layers, got {shares}"


def test_the_two_ends_of_a_match_stand_where_the_text_says(scenes: list[Scene]) -> None:
    first = act_at(scenes, "two ends").picture
    assert [row.marks for row in first.rows] == [(Mark.ANCHOR,), (Mark.BEST,), (), ()], f"MATCH-5: {first.rows}"
    second = act_at(scenes, "No match ends").picture
    assert second.root == (Mark.ANCHOR,), f"MATCH-5: nothing is complete on the device, marks at the root {second.root}"
    marked = [row.text for row in second.rows if row.marks == (Mark.BEST,)]
    assert marked == ["Where do you sleep? On coats of sheep."], f"MATCH-12: the best match is at {marked}"


def test_looking_changes_nothing(scenes: list[Scene]) -> None:
    looking = act_at(scenes, "two ends")
    before = scenes[looking.number - 2].picture
    unmarked = tuple(replace(row, marks=()) for row in looking.picture.rows)
    assert unmarked == before.rows, "MATCH-9: the tree is as it was before the match"
    assert looking.picture.fills == before.fills, "MATCH-9: the pools are as they were before the match"


def test_each_part_of_each_claim_is_checked(scenes: list[Scene]) -> None:
    for scene in scenes:
        for place, claim in enumerate(scene.act.claims):
            for changed in _other_claims(claim):
                claims = (*scene.act.claims[:place], changed, *scene.act.claims[place + 1 :])
                with pytest.raises(InvariantError, match=scene.act.clauses[0]):
                    require_claims(replace(scene.act, claims=claims), scene.picture)


def _other_claims(claim: Claim) -> list[Claim]:
    return [
        replace(claim, text=f"{claim.text} More."),
        replace(claim, device=f"†{claim.device[1:]}"),
        replace(claim, host=f"†{claim.host[1:]}"),
        replace(claim, lockers=(*claim.lockers, "a ghost")),
        replace(claim, lockers=("a ghost",)),
        replace(claim, host_lockers=("a ghost",)),
    ]


def test_a_node_that_the_act_does_not_speak_of_is_noticed(scenes: list[Scene]) -> None:
    for scene in scenes:
        for place in range(len(scene.act.claims)):
            claims = scene.act.claims[:place] + scene.act.claims[place + 1 :]
            with pytest.raises(InvariantError, match="nodes of the tree"):
                require_claims(replace(scene.act, claims=claims), scene.picture)


def test_pages_that_a_reset_loses_are_noticed(scenes: list[Scene]) -> None:
    act, full = scenes[-1].act, scenes[0].picture
    with pytest.raises(InvariantError, match=r"EVICT-9.*every page free"):
        require_claims(act, replace(full, rows=()))


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (LateCopies, r"act 1, .*HOST-1.*expected ■■■ on the device, locked by transfer, ○○○ on the host"),
        (NoDeviceHits, r"act 5, .*MATCH-5.*expected 8 tokens, got 0"),
        (NoHostHits, r"act 5, .*MATCH-12.*expected 8 tokens, got 0"),
        (NoLoads, r"act 6, .*HOST-4"),
        (NoTombstones, r"act 8, .*EVICT"),
        (NoHostEviction, r"act 10, .*EVICT-8"),
    ],
)
def test_a_cache_that_does_something_else_is_found_out(adapter: type[ReferenceAdapter], message: str) -> None:
    with pytest.raises(InvariantError, match=message):
        list(run_story(adapter))


def test_the_cache_is_closed_when_the_story_breaks_off() -> None:
    with pytest.raises(InvariantError):
        list(run_story(Closing))
    assert Closing.closed == 1, f"close() was called {Closing.closed} times"


def test_what_an_adapter_lacks_for_the_story_is_known() -> None:
    assert missing_capabilities(ReferenceAdapter) == [], "the reference can play it"
    expected = [Capability.SWA, Capability.MAMBA, Capability.SNAPSHOT, Capability.HOST, Capability.STEPPED]
    assert missing_capabilities(FlatCache) == expected, f"expected {expected}, got {missing_capabilities(FlatCache)}"


def test_each_act_claims_something_but_the_reset_after_which_nothing_is_left() -> None:
    silent = [act.title for act in ACTS if not act.claims]
    assert silent == [ACTS[-1].title], f"acts without a claim: {silent}"
