"""The script of the story: what is played in each act, what is told of it, and what must be seen afterwards."""

from __future__ import annotations

from hicache.testing.story.act import Act, Claim
from hicache.testing.story.picture import REQUEST, TRANSFER
from hicache.testing.story.stage import Stage
from hicache.types import Component

TITLE = "A prefix cache on two tiers"

INTRODUCTION = (
    "A server keeps what its model computed for a prompt, so that the next prompt that begins alike goes on from "
    "there. A small device (GPU memory) and a larger host (CPU memory) share the work, and a tree of prefixes knows "
    "what is where. Its nodes are drawn page by page; a page is four words. Ann and Ben talk with a cat that rhymes, "
    "and Cy wants to hear numbers."
)

CAT = "You are a cat who talks in rhyme."
EAT = "What do you eat? Fish is a treat."
DRINK = "And what to drink? Milk, I should think."
SLEEP = "Where do you sleep? On coats of sheep."
COUNT = "Now count in rhyme: one two, my shoe, three four, the door, five six, some sticks."

ALL, COMING, NOTHING = "■■■", "○○○", "···"


def _on_both(*texts: str, lockers: tuple[str, ...] = ()) -> tuple[Claim, ...]:
    return tuple(Claim(text, ALL, ALL, lockers, ()) for text in texts)


def _on_host(*texts: str) -> tuple[Claim, ...]:
    return tuple(Claim(text, NOTHING, ALL, (), ()) for text in texts)


def _compute(stage: Stage) -> None:
    stage.compute(f"{CAT} {EAT}")
    stage.start_transfers()


def _begin_alike(stage: Stage) -> None:
    stage.compute(CAT)
    stage.start_transfers()
    stage.begin("Ben", f"{CAT} {SLEEP}")


def _run_short(stage: Stage) -> None:
    stage.cache("Ben")
    stage.leave("Ben")
    stage.finish_transfers()
    stage.compute(COUNT)
    stage.finish_transfers()


def _look_up(stage: Stage) -> None:
    stage.look_up("Ann", f"{CAT} {EAT} {DRINK}", anchor=CAT, best=f"{CAT} {EAT}")


def _load(stage: Stage) -> None:
    stage.load("Ann", f"{CAT} {EAT}")
    stage.start_transfers()


def _go_on(stage: Stage) -> None:
    stage.finish_transfers()
    stage.begin("Ann", f"{CAT} {EAT} {DRINK}")
    stage.claim("Ann")


def _lose_a_window(stage: Stage) -> None:
    stage.cache("Ann")
    stage.finish_transfers()
    stage.driver.evict(Component.SWA, len(CAT.split()))


def _load_around(stage: Stage) -> None:
    stage.look_up("Ben", f"{CAT} {SLEEP} And when it rains?", anchor="", best=f"{CAT} {SLEEP}")
    stage.load("Ben", f"{CAT} {SLEEP}")
    stage.start_transfers()


def _press_host(stage: Stage) -> None:
    stage.driver.evict_host(Component.FULL, len(f"{COUNT} {DRINK}".split()))


ACTS = (
    Act(
        "A prompt is computed and cached",
        "Ann's prompt was computed, and the tree takes over its four pages as one node. With write-through its copy "
        "to the host begins at once: host pages are set aside, and half of the layers are there by now. Until all "
        "are, the transfer keeps the node locked on the device.",
        ("HOST-1", "HOST-3"),
        _compute,
        (Claim(f"{CAT} {EAT}", ALL, COMING, (TRANSFER,), ()),),
    ),
    Act(
        "The copy is acknowledged",
        "All bytes are there, and only now does the tree say so: the node is on both tiers. The transfer's lock is "
        "gone. From here on the device can drop these pages, and nothing is lost.",
        ("HOST-3", "FLOW-2"),
        Stage.finish_transfers,
        _on_both(f"{CAT} {EAT}"),
    ),
    Act(
        "A second prompt begins alike",
        "Ben's prompt begins as Ann's does. The node is split where they part, and both halves keep their copies. A "
        "state is good for one length only, so Ann's stays below; Ben computed one for the upper half, and it alone "
        "is on its way to the host. His request locks what it reads, and has pages of its own for the rest.",
        ("INS-8", "LOCK-1"),
        _begin_alike,
        (Claim(CAT, ALL, "■■○", (REQUEST, TRANSFER), ()), *_on_both(EAT)),
    ),
    Act(
        "Demoted, not deleted",
        "Ben is done, and his part is cached. Then Cy's prompt needs four pages where two are free. The least recently "
        "used leaf has to leave the device: Ann's question. There is a copy of it, so it stays in the tree, on the "
        "host alone.",
        ("EVICT-7", "EVICT-2"),
        _run_short,
        (*_on_both(CAT), *_on_host(EAT), *_on_both(SLEEP, COUNT)),
    ),
    Act(
        "A match has two ends",
        "Ann goes on asking. The best match is the deepest node of her prompt at which everything is there, on one "
        "tier or the other. The device anchor is the deepest that can be used at once. What lies between them can be "
        "loaded. Looking has moved nothing.",
        ("MATCH-5", "MATCH-12", "MATCH-9"),
        _look_up,
        (*_on_both(CAT), *_on_host(EAT), *_on_both(SLEEP, COUNT)),
    ),
    Act(
        "Loading back, layer by layer",
        "Device pages are taken for what comes, and to have them Ben's leaf is demoted. Half of the layers have "
        "arrived: a model may run these while the rest is on its way. Meanwhile the transfer locks the path on the "
        "device, and on the host what it reads.",
        ("HOST-4", "HOST-6", "FLOW-1"),
        _load,
        (
            Claim(CAT, ALL, ALL, (TRANSFER,), ()),
            Claim(EAT, COMING, ALL, (), (TRANSFER,)),
            *_on_host(SLEEP),
            *_on_both(COUNT),
        ),
    ),
    Act(
        "Arrived, claimed and in use",
        "The load is acknowledged, so the node is on both tiers again. Ann's request locked it before it claimed the "
        "load: at no moment was it without a lock. Pages for her next question come from Cy's leaf, which is demoted "
        "in turn.",
        ("HOST-4", "FLOW-10", "LOCK-1"),
        _go_on,
        (*_on_both(CAT, EAT, lockers=(REQUEST,)), *_on_host(SLEEP, COUNT)),
    ),
    Act(
        "A window is evicted: a tombstone",
        "Ann's question is cached, and her request goes on from there. Then room is needed for windows. Hers reaches "
        "back over four pages, so of the first two she needs FULL alone. Their SWA leaves the device, and the state, "
        "which ranks below, with it. Left there is a tombstone.",
        ("EVICT-3", "EVICT-4", "LOCK-1"),
        _lose_a_window,
        (
            Claim(CAT, "■††", ALL, (REQUEST,), ()),
            *_on_both(EAT, DRINK, lockers=(REQUEST,)),
            *_on_host(SLEEP, COUNT),
        ),
    ),
    Act(
        "No match ends at a tombstone",
        "Ben is back. All FULL data of his first pages is on the device, and yet his anchor is the root: nothing on "
        "his way is complete there. Only what his best match lacks is loaded: its own pages and state, and the SWA of "
        "the window before its end. The state further up is of no use to him, and stays away.",
        ("MATCH-3", "MATCH-5", "HOST-4"),
        _load_around,
        (
            Claim(CAT, "■○†", ALL, (REQUEST, TRANSFER), (TRANSFER,)),
            *_on_both(EAT, DRINK, lockers=(REQUEST,)),
            Claim(SLEEP, COMING, ALL, (), (TRANSFER,)),
            *_on_host(COUNT),
        ),
    ),
    Act(
        "The host runs short as well",
        "Of the host's leaves that nobody locks, those go first that are on the host alone: Cy's numbers are "
        "forgotten. Copies of what is on the device go next: Ann's last question is on the device alone from now on. "
        "What Ben's load reads meanwhile is locked, and stays.",
        ("EVICT-8", "FLOW-1"),
        _press_host,
        (
            Claim(CAT, "■○†", ALL, (REQUEST, TRANSFER), (TRANSFER,)),
            *_on_both(EAT, lockers=(REQUEST,)),
            Claim(DRINK, ALL, NOTHING, (REQUEST,), ()),
            Claim(SLEEP, COMING, ALL, (), (TRANSFER,)),
        ),
    ),
    Act(
        "A reset in the middle of a transfer",
        "Everything is dropped while Ben's load is still running. Its end acts on nothing any more, and old locks and "
        "tickets are refused. Every page on both tiers is free: none was lost on the way.",
        ("EVICT-9", "FLOW-4"),
        lambda stage: stage.driver.reset(),
        (),
    ),
)
