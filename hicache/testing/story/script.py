"""The script of the story: its texts, the acts on device and host, and the run of all acts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hicache.config import CacheConfig
from hicache.errors import InvariantError
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.configurations import needs_of
from hicache.testing.story.act import ALL, COMING, NOTHING, WITHOUT_TIER, Act, Claim, require_claims
from hicache.testing.story.picture import REQUEST, TRANSFER, Owner, Picture, Residency
from hicache.testing.story.prompts import CAT, COUNT, DRINK, EAT, SLEEP
from hicache.testing.story.stage import STORED_STORY, STORY, WINDOW, ShownCache
from hicache.testing.story.storage_acts import STORAGE_ACTS
from hicache.types import Component

TITLE = "A prefix cache, tier by tier"

INTRODUCTION = (
    "A server keeps what its model computed for a prompt, so that the next prompt with the same beginning can "
    "reuse it. The data is on the device (GPU memory, small), on the host (CPU memory, larger), in storage (disks, "
    "largest), or on several of these tiers. A tree of prefixes records what is where. The nodes of the tree are drawn "
    "page by page; a page is four words. There are three users: Ann and Ben talk with a cat that speaks in rhyme, and "
    "Cy asks for numbers."
)

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

OUT_OF_TREE = "not in the tree"
"""What is said of a row that only storage knows of."""

OWNERS: Mapping[Owner, str] = {
    Owner.TREE: "in the tree",
    Owner.TRANSFER: "reserved for a transfer",
    Owner.REQUEST: "owned by a request",
    Owner.FREE: "free",
}
"""The legend, with the four above: the meaning of each letter and sign in the drawings."""


def _on_both(*texts: str, lockers: tuple[str, ...] = ()) -> tuple[Claim, ...]:
    return tuple(_claim(text, ALL, ALL, lockers, ()) for text in texts)


def _on_host(*texts: str) -> tuple[Claim, ...]:
    return tuple(_claim(text, NOTHING, ALL, (), ()) for text in texts)


def _claim(text: str, device: str, host: str, lockers: tuple[str, ...], host_lockers: tuple[str, ...]) -> Claim:
    return Claim(text, device, host, WITHOUT_TIER, lockers, host_lockers, is_in_tree=True)


def _compute(stage: ShownCache) -> None:
    stage.compute(f"{CAT} {EAT}")
    stage.start_transfers()


def _share_a_beginning(stage: ShownCache) -> None:
    stage.compute(CAT)
    stage.start_transfers()
    stage.begin("Ben", f"{CAT} {SLEEP}")


def _demote(stage: ShownCache) -> None:
    stage.cache("Ben")
    stage.finish("Ben")
    stage.finish_transfers()
    stage.compute(COUNT)
    stage.finish_transfers()


def _look_up(stage: ShownCache) -> None:
    stage.look_up("Ann", f"{CAT} {EAT} {DRINK}", anchor=CAT, best=f"{CAT} {EAT}")


def _load(stage: ShownCache) -> None:
    stage.load("Ann", f"{CAT} {EAT}")
    stage.start_transfers()


def _use_the_load(stage: ShownCache) -> None:
    stage.finish_transfers()
    stage.begin("Ann", f"{CAT} {EAT} {DRINK}")
    stage.claim("Ann")


def _evict_a_window(stage: ShownCache) -> None:
    stage.cache("Ann")
    stage.finish_transfers()
    stage.driver.evict(Component.SWA, len(CAT.split()))


def _load_past_a_tombstone(stage: ShownCache) -> None:
    stage.look_up("Ben", f"{CAT} {SLEEP} And when it rains?", anchor="", best=f"{CAT} {SLEEP}")
    stage.load("Ben", f"{CAT} {SLEEP}")
    stage.start_transfers()


def _evict_on_the_host(stage: ShownCache) -> None:
    stage.driver.evict_host(Component.FULL, len(f"{COUNT} {DRINK}".split()))


HOST_ACTS = (
    Act(
        "A prompt is computed and cached",
        "Ann's prompt was computed, and the tree takes over its four pages as one node. With write_through the backup "
        "to the host starts at once: host pages are allocated, and half of the layers are already copied. Until all "
        "layers are copied, the transfer locks the node on the device.",
        ("HOST-1", "HOST-3"),
        _compute,
        (_claim(f"{CAT} {EAT}", ALL, COMING, (TRANSFER,), ()),),
    ),
    Act(
        "The backup is acknowledged",
        "All layers are copied, and only now the tree marks the node as resident on both tiers. The lock of the "
        "transfer is released. From now on the device can evict these pages, and no data is lost.",
        ("HOST-3", "FLOW-2"),
        ShownCache.finish_transfers,
        _on_both(f"{CAT} {EAT}"),
    ),
    Act(
        "A second prompt has the same beginning",
        "Ben's prompt begins like Ann's. The node is split where the two prompts differ, and both parts keep their "
        "host copies. A MAMBA state is valid for one length only, so Ann's state stays in the lower part; Ben's "
        "request computed a state for the upper part, and only this state is being backed up. His request locks what "
        "it reads, and has its own pages for the rest.",
        ("INS-8", "LOCK-1"),
        _share_a_beginning,
        (_claim(CAT, ALL, "■■○", (REQUEST, TRANSFER), ()), *_on_both(EAT)),
    ),
    Act(
        "Demoted, not deleted",
        "Ben's request has finished, and its part is cached. Then Cy's prompt needs four pages, and only two are "
        "free. The least recently used leaf, Ann's question, has to leave the device. It has a host copy, so it stays "
        "in the tree and is now only on the host.",
        ("EVICT-7", "EVICT-2"),
        _demote,
        (*_on_both(CAT), *_on_host(EAT), *_on_both(SLEEP, COUNT)),
    ),
    Act(
        "A match has two ends",
        "Ann asks her next question. The best match is the deepest node of her prompt at which everything "
        "needed is present, on device or host. The device anchor is the deepest node that can be used at once. The "
        "part between the two can be loaded back. The match itself has moved nothing.",
        ("MATCH-5", "MATCH-12", "MATCH-9"),
        _look_up,
        (*_on_both(CAT), *_on_host(EAT), *_on_both(SLEEP, COUNT)),
    ),
    Act(
        "Loading back, layer by layer",
        "Device pages are allocated for the load-back, and Ben's leaf is demoted to make room for them. Half of the "
        "layers have arrived: a model may run these layers while the rest is copied. Meanwhile the transfer locks the "
        "path on the device, and on the host what it reads.",
        ("HOST-4", "HOST-6", "FLOW-1"),
        _load,
        (
            _claim(CAT, ALL, ALL, (TRANSFER,), ()),
            _claim(EAT, COMING, ALL, (), (TRANSFER,)),
            *_on_host(SLEEP),
            *_on_both(COUNT),
        ),
    ),
    Act(
        "Acknowledged, claimed and in use",
        "The load-back is acknowledged, so the node is on both tiers again. Ann's request locked the node before it "
        "claimed the load-back, so the node was never without a lock. Her next question needs pages, and Cy's leaf is "
        "demoted to free them.",
        ("HOST-4", "FLOW-10", "LOCK-1"),
        _use_the_load,
        (*_on_both(CAT, EAT, lockers=(REQUEST,)), *_on_host(SLEEP, COUNT)),
    ),
    Act(
        "A window is evicted: a tombstone",
        "Ann's question is cached, and her request continues from there. Then SWA pages are evicted to make room. Her "
        "window covers the last four pages, so of the first two pages her request needs only FULL. Their SWA data "
        "leaves the device, together with the state, which comes after it. The node is now a tombstone.",
        ("EVICT-3", "EVICT-4", "LOCK-1"),
        _evict_a_window,
        (
            _claim(CAT, "■††", ALL, (REQUEST,), ()),
            *_on_both(EAT, DRINK, lockers=(REQUEST,)),
            *_on_host(SLEEP, COUNT),
        ),
    ),
    Act(
        "No match ends at a tombstone",
        "Ben asks again. All FULL data of his first pages is on the device, but his device anchor is the root: no "
        "node on the path is complete there. Only what his best match lacks is loaded back: its own pages and state, "
        "and the SWA data of the window before its end. The state of the upper node is not needed, so it is not "
        "loaded.",
        ("MATCH-3", "MATCH-5", "HOST-4"),
        _load_past_a_tombstone,
        (
            _claim(CAT, "■○†", ALL, (REQUEST, TRANSFER), (TRANSFER,)),
            *_on_both(EAT, DRINK, lockers=(REQUEST,)),
            _claim(SLEEP, COMING, ALL, (), (TRANSFER,)),
            *_on_host(COUNT),
        ),
    ),
    Act(
        "The host evicts as well",
        "The host evicts only leaves that are not locked. Data that is only on the host goes first: Cy's numbers are "
        "gone. Copies of data on the device go next: Ann's last question is now only on the device. What Ben's "
        "load-back reads is locked and stays.",
        ("EVICT-8", "FLOW-1"),
        _evict_on_the_host,
        (
            _claim(CAT, "■○†", ALL, (REQUEST, TRANSFER), (TRANSFER,)),
            *_on_both(EAT, lockers=(REQUEST,)),
            _claim(DRINK, ALL, NOTHING, (REQUEST,), ()),
            _claim(SLEEP, COMING, ALL, (), (TRANSFER,)),
        ),
    ),
    Act(
        "A reset during a transfer",
        "The reset drops everything while Ben's load-back is still running. When that transfer ends, it has no "
        "effect, and old locks and tickets are refused. Every page on both tiers is free: none was lost.",
        ("EVICT-9", "FLOW-4"),
        lambda stage: stage.driver.reset(),
        (),
    ),
)


@dataclass(frozen=True, slots=True)
class ScriptPart:
    """A part of the story. Its acts run one after the other on one cache, which is opened with its configuration."""

    config: CacheConfig
    acts: tuple[Act, ...]

    def lacks(self, adapter: type[CacheAdapter]) -> list[Capability]:
        """The capabilities that this part needs and the adapter does not declare."""
        needs = needs_of(self.config) | {Capability.SNAPSHOT}
        return [capability for capability in Capability if capability in needs - adapter.capabilities]


HOST_PART = ScriptPart(STORY, HOST_ACTS)
STORAGE_PART = ScriptPart(STORED_STORY, STORAGE_ACTS)
"""Every adapter that plays the story plays the first part. The second is left out for one that lacks storage."""

ACTS = (*HOST_ACTS, *STORAGE_ACTS)


@dataclass(frozen=True, slots=True)
class Scene:
    """An act that was run, and the picture of the cache after it. Acts are numbered from 1."""

    number: int
    act: Act
    picture: Picture


def parts_of(adapter: type[CacheAdapter]) -> tuple[ScriptPart, ...]:
    """The parts that an adapter can play; none without what the first one needs."""
    if HOST_PART.lacks(adapter):
        return ()
    return (HOST_PART,) if STORAGE_PART.lacks(adapter) else (HOST_PART, STORAGE_PART)


def run_story(adapter: type[CacheAdapter]) -> Iterator[Scene]:
    """Run all acts that the adapter can play, each part on a new cache.

    Raises InvariantError with the act if an invariant is violated or the cache does not do what the act describes,
    and ConfigurationError if the cache cannot be opened.
    """
    number = 0
    for part in parts_of(adapter):
        stage = ShownCache(adapter(part.config), part.config)
        try:
            for act in part.acts:
                number += 1
                yield Scene(number, act, _run(stage, number, act))
        finally:
            stage.close()


def _run(stage: ShownCache, number: int, act: Act) -> Picture:
    try:
        act.play(stage)
        picture = stage.picture()
        require_claims(act, picture)
    except InvariantError as error:
        raise InvariantError(f"act {number}, {act.title!r}: {error}") from error
    return picture
