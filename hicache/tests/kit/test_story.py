"""The story of `hicache explain`: how it is played, pictured and drawn, and what the command shows."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from hicache.cli.app import app
from hicache.config import CacheConfig, WritePolicy
from hicache.errors import ConfigurationError, InvariantError
from hicache.testing.adapter import Capability, Pending
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.contract import CONTRACT
from hicache.testing.snapshot import (
    FetchView,
    HostNodeView,
    HostView,
    NodeView,
    PoolView,
    Snapshot,
    StorageView,
    TransferView,
)
from hicache.testing.storage.scripted import Store, store_named
from hicache.testing.story.act import Claim, require_claims
from hicache.testing.story.layout import panels
from hicache.testing.story.page import render_page
from hicache.testing.story.picture import (
    REQUEST,
    TRANSFER,
    Owner,
    Painter,
    Picture,
    PictureCell,
    PictureMark,
    PictureRow,
    Residency,
    Words,
)
from hicache.testing.story.script import (
    ACTS,
    COMPONENTS,
    HOST_ACTS,
    HOST_PART,
    INTRODUCTION,
    LETTERS,
    LOCKED,
    OUT_OF_TREE,
    OWNERS,
    RESIDENCY,
    STORAGE_PART,
    Scene,
    parts_of,
    run_story,
)
from hicache.testing.story.stage import STORY
from hicache.testing.story.stored_prompts import StoredPrompts
from hicache.testing.story.terminal import show_legend, show_scene
from hicache.tests.kit.hosted_cache import FlatCache
from hicache.tests.kit.snapshots import slots
from hicache.types import (
    NO_SLOTS,
    SHARED,
    EvictResult,
    Handle,
    Key,
    LoadBack,
    MatchResult,
    Slots,
    StorageKind,
    Tier,
    TransferKind,
)

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


class WithoutStorage(ReferenceAdapter):
    """Has no storage."""

    capabilities: ClassVar[frozenset[Capability]] = ReferenceAdapter.capabilities - {
        Capability.STORAGE,
        Capability.STEPPED_STORAGE,
    }


class NoWrites(ReferenceAdapter):
    """Writes nothing to storage."""

    def __init__(self, config: CacheConfig) -> None:
        super().__init__(config)
        if config.storage is not None:
            self.cache.detach_storage()


class NoPrefetches(ReferenceAdapter):
    """Refuses every prefetch."""

    def prefetch(self, key: Key) -> None:
        return None


class EmptyPrefetches(ReferenceAdapter):
    """Says that a prefetch has brought nothing."""

    def check_prefetch(self, ticket: Handle) -> int | None:
        return None if super().check_prefetch(ticket) is None else 0


class ForgottenStorage(ReferenceAdapter):
    """Loses what storage has when it is closed."""

    def close(self) -> None:
        super().close()
        store_named("story").empty()


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


def cells_of(scenes: list[Scene]) -> Iterator[PictureCell]:
    """Every cell of every drawing."""
    for scene in scenes:
        for row in scene.picture.rows:
            for cells in row.cells.values():
                yield from cells


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
    expected |= {(Tier.STORAGE, residency) for residency in (Residency.HERE, Residency.ARRIVING)}
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
    assert marks == set(PictureMark), f"marks: {marks}"
    lockers = {who for picture in pictures for row in picture.rows for who in row.lockers}
    assert lockers == {REQUEST, TRANSFER}, f"lockers: {lockers}"
    owners = {owner for picture in pictures for fill in picture.fills for owner, count in fill.pages.items() if count}
    assert owners == set(Owner), f"owners of pages: {owners}"
    kinds = {one.kind for picture in pictures for one in picture.movements}
    assert kinds == {*TransferKind, StorageKind.PREFETCH, StorageKind.STORE}, f"what is under way: {kinds}"


def test_a_transfer_is_shown_half_way(scenes: list[Scene]) -> None:
    shares = {cell.arrived for cell in cells_of(scenes[: len(HOST_ACTS)]) if cell.residency is Residency.ARRIVING}
    assert shares == {0.5}, f"every transfer stops after half of its layers, got {shares}"


def test_the_two_ends_of_a_match_stand_where_the_text_says(scenes: list[Scene]) -> None:
    first = act_at(scenes, "two ends").picture
    assert [row.marks for row in first.rows] == [(PictureMark.ANCHOR,), (PictureMark.BEST,), (), ()], (
        f"MATCH-5: {first.rows}"
    )
    second = act_at(scenes, "No match ends").picture
    assert second.root == (PictureMark.ANCHOR,), (
        f"MATCH-5: nothing is complete on the device, marks at the root {second.root}"
    )
    marked = [row.text for row in second.rows if row.marks == (PictureMark.BEST,)]
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
        replace(claim, storage=f"†{claim.storage[1:]}"),
        replace(claim, is_in_tree=not claim.is_in_tree),
    ]


def test_storage_may_have_taken_a_part_of_what_is_claimed_to_arrive_there() -> None:
    claim = Claim("a node", "■■■", "■■■", "○○○", (), (), is_in_tree=True)
    met = [signs for signs in ("○○○", "■○○", "○■■", "■■■", "○○·", "○○", "†○○") if claim.is_met_by(claim_of(signs))]
    assert met == ["○○○", "■○○", "○■■"], f"all but the last pool may have been written, got {met}"
    whole = replace(claim, storage="■■■")
    met = [signs for signs in ("■■■", "■■○") if whole.is_met_by(claim_of(signs))]
    assert met == ["■■■"], f"what is claimed to be there must be there, got {met}"


def claim_of(storage: str) -> Claim:
    """What is drawn of a node that is on device and host."""
    return Claim("a node", "■■■", "■■■", storage, (), (), is_in_tree=True)


def test_a_node_that_the_act_does_not_speak_of_is_noticed(scenes: list[Scene]) -> None:
    for scene in scenes:
        for place in range(len(scene.act.claims)):
            claims = scene.act.claims[:place] + scene.act.claims[place + 1 :]
            with pytest.raises(InvariantError, match="nodes of the tree"):
                require_claims(replace(scene.act, claims=claims), scene.picture)


def test_pages_that_a_reset_loses_are_noticed(scenes: list[Scene]) -> None:
    act, full = HOST_ACTS[-1], scenes[0].picture
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
        (NoWrites, r"act 12, .*FETCH-9.*expected a request of the kind persist to storage"),
        (NoPrefetches, r"act 15, .*FETCH-1.*expected a ticket"),
        (EmptyPrefetches, r"act 16, .*FETCH-4"),
        (ForgottenStorage, r"act 19, .*FLOW-9.*expected \['You are a cat"),
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
    assert parts_of(ReferenceAdapter) == (HOST_PART, STORAGE_PART), "the reference can play all of it"
    expected = [Capability.SWA, Capability.MAMBA, Capability.SNAPSHOT, Capability.HOST, Capability.STEPPED]
    assert HOST_PART.lacks(FlatCache) == expected, f"expected {expected}, got {HOST_PART.lacks(FlatCache)}"
    assert parts_of(FlatCache) == (), "it can play nothing"
    lacking = STORAGE_PART.lacks(WithoutStorage)
    assert lacking == [Capability.STORAGE, Capability.STEPPED_STORAGE], f"what it lacks: {lacking}"


def test_a_cache_without_storage_plays_the_acts_on_device_and_host() -> None:
    scenes = list(run_story(WithoutStorage))
    assert [scene.act for scene in scenes] == list(HOST_ACTS), f"played: {[scene.act.title for scene in scenes]}"
    tiers = {tier for scene in scenes for row in scene.picture.rows for tier in row.cells}
    assert tiers == set(TIERS), f"no storage is drawn, got {tiers}"


def test_the_story_can_be_told_twice() -> None:
    first, second = (list(run_story(ReferenceAdapter)) for _ in range(2))
    assert first == second, "the second run finds nothing of the first in storage"


def test_each_act_claims_something_but_the_reset_after_which_nothing_is_left() -> None:
    silent = [act.title for act in ACTS if not act.claims]
    assert silent == [HOST_ACTS[-1].title], f"acts without a claim: {silent}"


def test_pages_that_a_restart_does_not_free_are_noticed(scenes: list[Scene]) -> None:
    restart, full = scenes[-1], scenes[0].picture
    with pytest.raises(InvariantError, match=r"FLOW-9.*every page free"):
        require_claims(restart.act, replace(restart.picture, fills=full.fills))


NAMES = ("full", "swa", "mamba")
NO_LOCKS = dict.fromkeys(NAMES, 0)


def held(full: Slots | None = None, swa: Slots | None = None, mamba: Slots | None = None) -> Mapping[str, Slots | None]:
    """What a node holds on a tier."""
    return dict(zip(NAMES, (full, swa, mamba), strict=True))


class Tree:
    """A snapshot under construction, of pages of two words."""

    def __init__(self) -> None:
        self.words = Words(2)
        self.nodes: list[NodeView] = []
        self.below: list[HostNodeView] = []
        self.transfers: list[TransferView] = []
        self.kept: dict[str, Slots] = {}
        self.fetched: list[FetchView] = []
        self.stored: StoredPrompts | None = None

    def grow(
        self,
        text: str,
        parent: int,
        device: Mapping[str, Slots | None],
        host: Mapping[str, Slots | None],
        *,
        locks: tuple[int, int, int, int] = (0, 0, 0, 0),
    ) -> int:
        """Add a node. `locks`: on the device, of those pins, on the host, of those pins; over every component."""
        segment = np.array(self.words.tokens(text), dtype="<i4").tobytes()
        start = self.nodes[parent].end if parent >= 0 else 0
        counts = [dict.fromkeys(NAMES, count) for count in locks]
        end = start + len(text.split())
        self.nodes.append(NodeView(parent, SHARED, segment, start, end, device, counts[0], hits=0))
        self.below.append(HostNodeView(host, counts[2], counts[1], counts[3]))
        return len(self.nodes) - 1

    def move(self, kind: TransferKind, device: dict[str, Slots], host: dict[str, Slots]) -> None:
        """Add a transfer."""
        self.transfers.append(TransferView(kind, device, host))

    def picture(self, *pending: Pending, marks: tuple[tuple[PictureMark, bytes], ...] = ()) -> Picture:
        """What is drawn of it, with pools of ten slots (of four for states) of which the last two are free."""
        pools = {
            name: PoolView(size, slots(size - 1, size)) for name, size in (("full", 10), ("swa", 10), ("mamba", 4))
        }
        host = HostView(tuple(self.below), pools, tuple(self.transfers), self.kept)
        storage = None if self.stored is None else StorageView(None, tuple(self.fetched))
        snapshot = Snapshot(tuple(self.nodes), pools, host, storage)
        return Painter(snapshot, pending, self.words, marks, self.stored).picture()

    def store(self, *prompts: str, awaited: Sequence[str] = (), objects: Sequence[str]) -> None:
        """Add storage, which has these objects. Each is named by its pool and the words before its end."""
        contents = Store()
        contents.restore(dict.fromkeys(objects, b""))
        keys, waiting = ([self.words.prefix(text) for text in texts] for texts in (prompts, awaited))
        self.stored = StoredPrompts(Spoken(self.words), contents, keys, waiting, page_bytes=8)


class Spoken(ReferenceAdapter):
    """Names objects by their pool and the words before the end of the page."""

    def __init__(self, words: Words) -> None:
        super().__init__(STORY)
        self._words = words

    def storage_keys(self, pool: str, key: Key) -> list[str]:
        pages = self._words.pages(key.tokens.astype("<i4").tobytes())
        return [f"{pool}: {' '.join(pages[: end + 1])}" for end in range(len(pages))]


def signs(row: PictureRow, tier: Tier) -> str:
    """The cells of a row as signs."""
    return "".join(cell.residency.value for cell in row.cells[tier])


def cell_of(picture: Picture, tier: Tier, component: str) -> PictureCell:
    """A cell of the first row."""
    return next(cell for cell in picture.rows[0].cells[tier] if cell.component == component)


def running(kind: TransferKind, layers_done: int) -> Pending:
    """A transfer that has come so far, of four layers."""
    return Pending("a ticket", kind, parts=1, units=4, units_done=layers_done)


def test_what_a_node_has_is_here_and_what_it_lacks_beside_full_is_a_tombstone() -> None:
    tree = Tree()
    tree.grow("a b", -1, held(slots(2, 3)), held())
    row = tree.picture().rows[0]
    assert signs(row, Tier.DEVICE) == "■††", f"FULL alone: {signs(row, Tier.DEVICE)}"
    assert signs(row, Tier.HOST) == "···", f"nothing: {signs(row, Tier.HOST)}"


def test_what_a_backup_reads_is_on_its_way_to_the_host() -> None:
    tree = Tree()
    tree.grow("a b", -1, held(slots(2, 3), slots(4, 5), slots(1)), held(slots(2, 3)))
    tree.grow("c d", -1, held(slots(4, 5), slots(6, 7), slots(2)), held())
    tree.move(TransferKind.BACKUP, {"swa": slots(4, 5)}, {"swa": slots(8, 9)})
    picture = tree.picture(running(TransferKind.BACKUP, 3))
    assert [signs(row, Tier.HOST) for row in picture.rows] == ["■○†", "···"], f"one node is copied: {picture.rows}"
    arrived = cell_of(picture, Tier.HOST, "swa").arrived
    assert arrived == 0.75, f"three of four layers have arrived, got {arrived}"


def test_what_a_load_reads_is_on_its_way_to_the_device() -> None:
    tree = Tree()
    tree.grow("a b", -1, held(), held(slots(2, 3), slots(4, 5), slots(1)))
    tree.move(TransferKind.LOAD, {"full": slots(8, 9), "mamba": slots(2)}, {"full": slots(2, 3), "mamba": slots(1)})
    queued = tree.picture()
    assert signs(queued.rows[0], Tier.DEVICE) == "○·○", f"two components are loaded: {queued.rows[0]}"
    arrived = cell_of(queued, Tier.DEVICE, "full").arrived
    assert arrived == 0.0, f"a load that was not started has brought nothing, got {arrived}"
    other_way = tree.picture(running(TransferKind.BACKUP, 4))
    arrived = cell_of(other_way, Tier.DEVICE, "full").arrived
    assert arrived == 0.0, f"a backup's layers are not the load's, got {arrived}"


def test_locks_are_told_apart_from_the_pins_of_transfers() -> None:
    tree = Tree()
    everything = held(slots(2, 3), slots(2, 3), slots(1))
    tree.grow("a b", -1, everything, everything, locks=(2, 1, 0, 0))
    tree.grow("c d", -1, everything, everything, locks=(1, 0, 1, 1))
    tree.grow("e f", -1, everything, everything, locks=(1, 1, 1, 0))
    rows = tree.picture().rows
    lockers = [(row.locked_by[Tier.DEVICE], row.locked_by[Tier.HOST]) for row in rows]
    expected = [(("request", "transfer"), ()), (("request",), ("transfer",)), (("transfer",), ("request",))]
    assert lockers == expected, f"device and host: expected {expected}, got {lockers}"
    both = [row.lockers for row in rows]
    assert both == [("request", "transfer"), ("request", "transfer"), ("transfer", "request")], f"together: {both}"


def test_only_data_that_is_here_is_shown_as_locked() -> None:
    tree = Tree()
    tree.grow("a b", -1, held(slots(2, 3)), held(), locks=(1, 0, 0, 0))
    locked = [cell.component for cell in tree.picture().rows[0].cells[Tier.DEVICE] if cell.is_locked]
    assert locked == ["full"], f"of a tombstone only FULL is locked, got {locked}"


def test_rows_go_down_each_branch_in_the_order_of_their_words() -> None:
    tree = Tree()
    tree.words.tokens("a b c d e f g h")
    second = tree.grow("e f", -1, held(slots(2, 3)), held())
    first = tree.grow("a b", -1, held(slots(4, 5)), held())
    tree.grow("g h", second, held(slots(6, 7)), held())
    tree.grow("c d", first, held(slots(8, 9)), held())
    rows = [(row.text, row.lines) for row in tree.picture().rows]
    expected = [("a b", (True,)), ("c d", (True, False)), ("e f", (False,)), ("g h", (False, False))]
    assert rows == expected, f"expected {expected}, got {rows}"


def test_a_mark_stands_where_its_key_ends() -> None:
    tree = Tree()
    node = tree.grow("a b", -1, held(slots(2, 3)), held())
    tree.grow("a b", node, held(slots(4, 5)), held())
    key = tree.nodes[0].segment * 2
    picture = tree.picture(marks=((PictureMark.ANCHOR, b""), (PictureMark.BEST, key)))
    assert picture.root == (PictureMark.ANCHOR,), f"an empty key ends at the root, got {picture.root}"
    assert [row.marks for row in picture.rows] == [(), (PictureMark.BEST,)], f"whole keys are compared: {picture.rows}"


def test_each_page_of_a_pool_has_one_owner() -> None:
    tree = Tree()
    tree.grow("a b", -1, held(slots(2, 3), None, slots(1)), held(slots(4, 5), slots(2, 3)))
    tree.move(TransferKind.LOAD, {"swa": slots(4, 5)}, {"swa": slots(2, 3)})
    tree.kept = {"full": slots(6, 7)}
    fills = {(fill.tier, fill.component): list(fill.pages.values()) for fill in tree.picture().fills}
    expected = {
        (Tier.DEVICE, "full"): [1, 1, 2, 1],  # what a load left for its readers waits, too
        (Tier.DEVICE, "swa"): [0, 1, 3, 1],
        (Tier.DEVICE, "mamba"): [1, 0, 1, 2],
        (Tier.HOST, "full"): [1, 0, 3, 1],
        (Tier.HOST, "swa"): [1, 0, 3, 1],
        (Tier.HOST, "mamba"): [0, 0, 2, 2],
    }
    assert fills == expected, f"pages of {[owner.name for owner in Owner]}: expected {expected}, got {fills}"


def test_a_cache_without_a_host_tier_cannot_be_drawn() -> None:
    with pytest.raises(InvariantError, match="a host tier"):
        Painter(Snapshot((), {}, None, None), (), Words(2), (), stored=None)


def test_storage_has_a_node_when_it_has_each_of_its_pages_and_the_state_at_its_end() -> None:
    tree = Tree()
    everything = held(slots(2, 3, 4, 5), slots(2, 3, 4, 5), slots(1))
    tree.grow("a b c d", -1, everything, everything)
    tree.store("a b c d", objects=["kv: a b", "kv: a b c d", "swa: a b c d", "mamba: a b"])
    picture = tree.picture()
    assert picture.tiers == tuple(Tier), f"the cache has three tiers, drawn are {picture.tiers}"
    assert [signs(row, Tier.STORAGE) for row in picture.rows] == ["■††"], f"of SWA a page is missing: {picture.rows}"


def test_what_a_write_reads_is_on_its_way_to_storage() -> None:
    tree = Tree()
    everything = held(slots(2, 3), slots(2, 3), slots(1))
    tree.grow("a b", -1, everything, everything, locks=(0, 0, 1, 1))
    tree.grow("c d", -1, everything, everything)
    tree.grow("e f", -1, held(), held(slots(4, 5), slots(4, 5)), locks=(0, 0, 1, 1))
    tree.store("a b", "c d", "e f", objects=["mamba: a b"])
    writing = Pending("a ticket", StorageKind.STORE, parts=1, units=3, units_done=1)
    shown = [signs(row, Tier.STORAGE) for row in tree.picture(writing).rows]
    assert shown == ["○○■", "···", "○○·"], f"of two nodes what the host has is written, got {shown}"
    quiet = [signs(row, Tier.STORAGE) for row in tree.picture().rows]
    assert quiet == ["··■", "···", "···"], f"nothing is written, got {quiet}"


def test_what_only_storage_has_stands_where_it_would_be_in_the_tree() -> None:
    tree = Tree()
    tree.grow("a b", -1, held(slots(2, 3)), held())
    kept = ["kv: a b", "kv: a b c d", "kv: a b c d e f", "kv: g h"]
    tree.store("a b c d e f", "a b c d", "g h i j", "k l", objects=[*kept, "mamba: g h"])
    rows = [(row.text, row.lines, row.is_in_tree, signs(row, Tier.STORAGE)) for row in tree.picture().rows]
    expected = [
        ("a b", (True,), True, "■††"),
        ("c d", (True, False), False, "■††"),
        ("e f", (True, False, False), False, "■††"),
        ("g h", (False,), False, "■†■"),
    ]
    assert rows == expected, f"expected {expected}, got {rows}"
    lost = tree.picture().rows[1]
    assert (signs(lost, Tier.DEVICE), signs(lost, Tier.HOST)) == ("···", "···"), f"it is in storage alone: {lost}"
    assert not lost.lockers, f"it is not locked: {lost}"


def test_what_a_prefetch_reads_is_on_its_way_to_the_host() -> None:
    tree = Tree()
    tree.store("a b", "c d", awaited=["a b e f"], objects=["kv: a b", "kv: c d"])
    tree.fetched.append(FetchView({"full": slots(2, 3), "swa": NO_SLOTS, "mamba": slots(1)}))
    picture = tree.picture(Pending("a ticket", StorageKind.PREFETCH, parts=1, units=4, units_done=1))
    shown = [signs(row, Tier.HOST) for row in picture.rows]
    assert shown == ["○·○", "···"], f"one of two prompts is read, without SWA, got {shown}"
    arrived = cell_of(picture, Tier.HOST, "full").arrived
    assert arrived == 0.25, f"a quarter has been read, got {arrived}"
    pages = {fill.component: list(fill.pages.values()) for fill in picture.fills if fill.tier is Tier.HOST}
    assert pages["full"][1] == 1, f"the prefetch holds one page of {[owner.name for owner in Owner]}: {pages}"


def test_equal_words_are_equal_tokens_and_come_back_page_by_page() -> None:
    words = Words(2)
    tokens = words.tokens("to be or not to be")
    assert tokens == [0, 1, 2, 3, 0, 1], f"one token per word, got {tokens}"
    pages = words.pages(np.array(tokens, dtype="<i4").tobytes())
    assert pages == ("to be", "or not", "to be"), f"the words of each page, got {pages}"


SVG = "{http://www.w3.org/2000/svg}"
ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs" / "explain.svg"
SIGNS = ("■", "○", "◔", "◑", "◕", "†", "·", "□", "[■]")
LINES = "├└─┄│┊◀"


@pytest.fixture(scope="module")
def page(scenes: list[Scene]) -> str:
    """The story as a page."""
    return render_page(scenes)


@pytest.fixture(scope="module")
def document(page: str) -> ET.Element:
    """The page as an XML parser reads it."""
    return ET.fromstring(page)  # noqa: S314 - our own page


def printed(scenes: list[Scene], width: int) -> str:
    """What a terminal without colours shows."""
    output = io.StringIO()
    console = Console(file=output, width=width, color_system=None)
    show_legend(console)
    for scene in scenes:
        show_scene(console, scene)
    return output.getvalue()


def words_of(element: ET.Element) -> str:
    """All text below an element, with single spaces."""
    return " ".join(" ".join(element.itertext()).split())


@pytest.mark.parametrize("width", [80, 130])
def test_the_terminal_tells_every_act_within_its_width(scenes: list[Scene], width: int) -> None:
    output = printed(scenes, width)
    too_long = [line for line in output.splitlines() if len(line) > width]
    assert not too_long, f"lines longer than {width}: {too_long}"
    told = " ".join(output.split())
    for scene in scenes:
        for expected in (f"{scene.number} {scene.act.title}", scene.act.text, *scene.act.clauses):
            assert expected in told, f"act {scene.number}: the terminal does not show {expected!r}"
        for row in scene.picture.rows:
            missing = [words for words in row.pages if words not in output]
            assert not missing, f"act {scene.number}: the terminal does not show {missing}"


def test_the_terminal_explains_every_sign_that_it_uses(scenes: list[Scene]) -> None:
    legend, drawn = printed([], 130), printed(scenes, 130)
    unexplained = [sign for sign in SIGNS if sign not in legend]
    assert not unexplained, f"signs that the legend lacks: {unexplained}"
    for meaning in (*COMPONENTS.values(), *RESIDENCY.values(), *OWNERS.values(), LOCKED):
        assert meaning in legend, f"the legend does not say {meaning!r}"
    signs = set(re.findall(rf"[^\w\s.,:;?!'(){LINES}-]", drawn))
    assert signs <= set("".join(SIGNS)), f"signs without a word: {signs - set(''.join(SIGNS))}"


def test_the_terminal_draws_the_tree_with_its_cells(scenes: list[Scene]) -> None:
    lines = [" ".join(line.split()) for line in printed(scenes[8:9], 130).splitlines()]
    for expected in (
        "root ◀ device anchor",
        "├─ You are a cat ┊ who talks in rhyme. [■] ◑ † [■][■][■] locked by request, transfer",
        "│ ├─ What do you eat? ┊ Fish is a treat. [■][■] ■ ■ ■ ■ locked by request",
        "│ │ └─ And what to drink? ┊ Milk, I should think. [■][■][■] ■ ■ ■ locked by request",
        "│ └─ Where do you sleep? ┊ On coats of sheep. ◑ ◑ ◑ [■][■][■] ◀ best match locked by transfer",
        "load: 3 of 6 layers copied ■■■···",
        "device pages F ■■■■■■○○ S ■■■■○○○○ M ■■○·",
    ):
        assert expected in lines, f"the terminal does not draw {expected!r}: {lines}"


def test_the_terminal_draws_what_only_storage_has_with_dotted_lines(scenes: list[Scene]) -> None:
    lines = [" ".join(line.split()) for line in printed(scenes[14:15], 130).splitlines()]
    for expected in (
        "device host storage",
        "├┄ You are a cat ┊ who talks in rhyme. · · · ◔ ◔ ◔ ■ ■ ■ not in the tree",
        "└─ Now count in rhyme: ┊ one two, my shoe, ■ ■ ■ ■ ■ ■ ■ ■ ■",
        "prefetch: 1 of 3 batches read ■··",
        "host pages F ■■■■○○○○···· S ■■■■○○○○···· M ■○····",
    ):
        assert expected in lines, f"the terminal does not draw {expected!r}: {lines}"


def test_the_page_is_well_formed_and_needs_nothing_from_elsewhere(page: str, document: ET.Element) -> None:
    assert document.tag == f"{SVG}svg", f"the root is {document.tag}"
    tags = {element.tag.removeprefix(SVG) for element in document.iter()}
    loading = tags & {"image", "script", "foreignObject", "iframe", "link"}
    assert not loading, f"elements that load or run something: {loading}"
    links = [
        value
        for element in document.iter()
        for name, value in element.attrib.items()
        if name.rpartition("}")[2] in ("href", "src") and not value.startswith("#")
    ]
    assert not links, f"the page refers to {links}"
    for forbidden in ("@import", "@font-face", "url(", "http://", "https://"):
        rest = page.replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert forbidden not in rest, f"the page holds {forbidden!r}"


def test_references_within_the_page_lead_somewhere(document: ET.Element) -> None:
    ids = [element.attrib["id"] for element in document.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids)), f"an id stands twice in {sorted(ids)}"
    used = {element.attrib["href"][1:] for element in document.iter(f"{SVG}use")}
    used.add(document.attrib["aria-labelledby"])
    assert used <= set(ids), f"{used - set(ids)} is not in the page"


def test_the_page_says_everything_in_text_that_can_be_selected(scenes: list[Scene], document: ET.Element) -> None:
    groups = {group.attrib["aria-label"]: group for group in document.iter(f"{SVG}g") if "aria-label" in group.attrib}
    assert list(groups)[1:] == [f"Act {scene.number}: {scene.act.title}" for scene in scenes], f"groups: {list(groups)}"
    for scene in scenes:
        group = groups[f"Act {scene.number}: {scene.act.title}"]
        texts = " ".join(words_of(text) for text in group.iter(f"{SVG}text"))
        for expected in (scene.act.title, scene.act.text, *scene.act.clauses):
            assert expected in texts, f"act {scene.number}: the page does not say {expected!r}"
        pages = [words for row in scene.picture.rows for words in row.pages]
        assert [words for words in pages if words not in texts] == [], f"act {scene.number}: {pages} in {texts}"
    legend = words_of(groups["How to read the drawings"])
    for meaning in (*COMPONENTS.values(), *RESIDENCY.values(), *OWNERS.values(), LOCKED):
        assert meaning in legend, f"the legend does not say {meaning!r}"


def test_each_cell_of_the_page_tells_its_state_in_words(document: ET.Element) -> None:
    titles = [words_of(title) for title in document.iter(f"{SVG}title")]
    for component in LETTERS:
        for expected in (
            "device: resident, locked",
            "host: resident",
            "device: arriving by a transfer",
            "device: not resident",
        ):
            said = f"{component.upper()} on the {expected}"
            assert said in titles, f"no cell says {said!r}"
        assert f"{component.upper()} in storage: resident" in titles, f"no cell says that {component} is in storage"
    assert "FULL in storage: arriving by a transfer" in titles, "no cell says that it is being written"
    assert "SWA on the device: tombstone: FULL is resident, this is not" in titles, "no tombstone says so"
    assert "FULL on the device: 4 in the tree, 2 owned by a request, 2 free" in titles, "no pool says who has its pages"


def test_the_page_shows_each_lock_and_each_mark(scenes: list[Scene], document: ET.Element) -> None:
    rows = [row for scene in scenes for row in scene.picture.rows]
    locked = sum(cell.is_locked for row in rows for cells in row.cells.values() for cell in cells)
    padlocks = len(list(document.iter(f"{SVG}use")))
    assert padlocks == locked + 1, f"{locked} cells are locked, and one in the legend: {padlocks} padlocks"
    notes = Counter(words_of(text) for text in document.iter(f"{SVG}text") if "mark" in text.attrib.get("class", ""))
    assert notes == {"◀ device anchor": 3, "◀ best match": 3}, f"three matches with two ends each, got {notes}"
    outside = sum(not row.is_in_tree for row in rows)
    aside = [words_of(text) for text in document.iter(f"{SVG}text") if "aside" in text.attrib.get("class", "")]
    assert aside == [OUT_OF_TREE] * outside, f"{outside} rows are not in the tree, got {aside}"


def test_every_class_of_the_page_has_a_style_and_every_colour_a_dark_one(page: str, document: ET.Element) -> None:
    style = page[page.index("<style>") : page.index("</style>")]
    classes = {name for element in document.iter() for name in element.attrib.get("class", "").split()}
    silent = {name for name in classes if f".{name}" not in style} - {"chip", "pool"}
    assert not silent, f"classes without a style: {silent}"
    light, dark = (set(re.findall(r"(--[\w-]+): #", part)) for part in style.split("prefers-color-scheme: dark"))
    assert light == dark, f"colours of one scheme only: {light ^ dark}"
    used = set(re.findall(r"var\((--[\w-]+)\)", style))
    assert used <= light | {"--own"}, f"colours that are not defined: {used - light}"


def test_panels_stand_below_each_other_and_hold_what_they_show(scenes: list[Scene]) -> None:
    below = 0
    for panel in panels(scenes, 0):
        assert panel.top >= below, f"act {panel.scene.number} begins at {panel.top}, within the one before it"
        below = panel.top + panel.height
        places = [y for node in panel.nodes for _, y, _ in node.pages]
        pages = sum(len(row.pages) for row in panel.scene.picture.rows)
        assert len(places) == pages, f"act {panel.scene.number}: {pages} pages at {len(places)} places"
        assert all(0 < y < panel.movements_y for y in places), f"act {panel.scene.number}: pages at {places}"
        assert panel.movements_y <= panel.pools_y < panel.height, f"act {panel.scene.number}: pools at {panel.pools_y}"


def test_no_two_pages_of_a_drawing_cover_each_other(scenes: list[Scene]) -> None:
    for panel in panels(scenes, 0):
        corners = [(x, y) for node in panel.nodes for x, y, _ in node.pages]
        close = [
            (one, other)
            for number, one in enumerate(corners)
            for other in corners[:number]
            if abs(one[0] - other[0]) < 132 and abs(one[1] - other[1]) < 26
        ]
        assert not close, f"act {panel.scene.number}: pages at {close} cover each other"


def test_the_page_in_the_documentation_is_that_of_the_reference(page: str) -> None:
    kept = DOCUMENT.read_text(encoding="utf-8")
    assert kept == page, "docs/explain.svg is old: write it anew with `hicache explain --svg docs/explain.svg`"


def test_the_drawing_in_the_guide_is_one_of_the_story(scenes: list[Scene]) -> None:
    lines = (ROOT / "docs" / "guide" / "cache.md").read_text(encoding="utf-8").splitlines()
    drawing = [line for line in lines if "■" in line]
    drawn = {line.strip() for line in printed(scenes[4:5], 130).splitlines()}
    assert len(drawing) == 4, f"cache.md draws a tree of four nodes, got {drawing}"
    assert drawn.issuperset(line.strip() for line in drawing), f"cache.md draws {drawing}, the story {drawn}"


class Unopened(ReferenceAdapter):
    """Cannot be opened."""

    def __init__(self, config: CacheConfig) -> None:
        raise ConfigurationError("mamba_chunk_size 4 is not a power of ten")


def run_app(*arguments: str) -> tuple[int, str]:
    """The exit code and the output of `hicache explain`, with single spaces."""
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["explain", *arguments])
    return result.exit_code, " ".join(result.output.split())


def test_the_story_is_told_from_the_first_act_to_the_last() -> None:
    code, output = run_app()
    assert code == 0, f"expected 0, got {code}: {output}"
    places = [output.find(text) for text in (INTRODUCTION, *(act.text for act in ACTS))]
    assert places == sorted(places), f"expected this order: {places}"
    assert min(places) >= 0, f"a text is missing: {places}"


def test_one_act_is_told_alone(tmp_path: Path) -> None:
    code, output = run_app("--act", "3", "--svg", str(tmp_path / "act.svg"))
    assert code == 0, f"expected 0, got {code}: {output}"
    told = [act.title for act in ACTS if act.text in output]
    assert told == [ACTS[2].title], f"got {told}"
    drawn = (tmp_path / "act.svg").read_text(encoding="utf-8")
    titles = [act.title for act in ACTS if f"</tspan> {act.title}<" in drawn]
    assert titles == [ACTS[2].title], f"drawn: {titles}"


def test_the_page_goes_where_it_is_told_to(tmp_path: Path) -> None:
    page = tmp_path / "a folder" / "story.svg"
    code, output = run_app("--svg", str(page))
    assert code == 0, f"expected 0, got {code}: {output}"
    assert f"page: {page}" in output, f"the last line names the page: {output[-200:]}"
    ET.fromstring(page.read_text(encoding="utf-8"))  # noqa: S314 - our own page


def test_an_act_that_there_is_not_is_a_usage_error() -> None:
    for number in (0, len(ACTS) + 1):
        code, output = run_app("--act", str(number))
        assert code == 2, f"act {number}: expected 2, got {code}: {output}"
        assert "--act" in output, f"the option is named: {output}"


def test_an_adapter_that_lacks_something_is_told_what() -> None:
    code, output = run_app("--adapter", "hicache.tests.kit.hosted_cache:FlatCache")
    assert code == 2, f"expected 2, got {code}: {output}"
    assert "FlatCache does not declare: SWA, MAMBA, SNAPSHOT, HOST, STEPPED" in output, f"what it lacks: {output}"


def test_a_cache_without_storage_is_told_what_its_other_acts_need() -> None:
    adapter = f"{__name__}:WithoutStorage"
    lacking = "the acts with storage need capabilities that"
    code, output = run_app("--adapter", adapter)
    assert code == 0, f"expected 0, got {code}: {output}"
    assert HOST_ACTS[-1].text in output, "the last act on device and host is shown"
    assert output.endswith(f"{lacking} {adapter} does not declare: STORAGE, STEPPED_STORAGE"), f"{output[-200:]}"
    code, output = run_app("--adapter", adapter, "--act", str(len(HOST_ACTS) + 1))
    assert code == 2, f"expected 2, got {code}: {output}"
    assert "STEPPED_STORAGE" in output, f"the reason is shown: {output}"
    code, output = run_app("--adapter", adapter, "--act", "1")
    assert code == 0, f"expected 0, got {code}: {output}"
    assert lacking not in output, f"only the act is shown: {output}"


def test_a_cache_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    code, output = run_app("--adapter", f"{__name__}:Unopened", "--svg", str(tmp_path / "story.svg"))
    assert code == 2, f"expected 2, got {code}: {output}"
    assert "mamba_chunk_size 4 is not a power of ten" in output, f"the reason is shown: {output}"
    assert not list(tmp_path.iterdir()), "no page is written"


def test_a_cache_that_does_something_else_fails_with_the_act_and_the_clause(tmp_path: Path) -> None:
    code, output = run_app("--adapter", f"{__name__}:NoLoads", "--svg", str(tmp_path / "story.svg"))
    assert code == 1, f"expected 1, got {code}: {output}"
    assert ACTS[4].text in output, "the acts before it are shown"
    assert f"act 6, '{ACTS[5].title}': HOST-4" in output, f"act and clause are named: {output[-300:]}"
    assert not list(tmp_path.iterdir()), "no page is written"


def test_the_command_works_as_a_process_of_its_own() -> None:
    program = "from hicache.cli.main import main; main()"
    command = [sys.executable, "-c", program, "explain", "--act", "1"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8")
    assert ACTS[0].title in done.stdout, f"the act is shown: {done.stdout}"
    assert "\x1b" not in done.stdout, "no colours where there is no terminal"
    assert not done.stderr, f"nothing goes wrong: {done.stderr}"
