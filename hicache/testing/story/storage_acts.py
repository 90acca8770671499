"""The acts with storage: pages are written, leave device and host, and come back for a later prompt."""

from __future__ import annotations

from hicache.testing.story.act import ALL, COMING, NOTHING, Act, Claim
from hicache.testing.story.picture import TRANSFER
from hicache.testing.story.prompts import CAT, COUNT, DRINK, EAT
from hicache.testing.story.stage import ShownCache
from hicache.types import Component

ASKED = f"{CAT} {EAT}"


def _on_all(*texts: str) -> tuple[Claim, ...]:
    return tuple(_claim(text, ALL, ALL) for text in texts)


def _claim(text: str, device: str, host: str) -> Claim:
    """An unlocked node with data in storage."""
    return Claim(text, device, host, ALL, (), (), is_in_tree=True)


def _in_storage(*texts: str, host: str = NOTHING) -> tuple[Claim, ...]:
    return tuple(Claim(text, NOTHING, host, ALL, (), (), is_in_tree=False) for text in texts)


def _write(stage: ShownCache) -> None:
    stage.compute(ASKED)
    stage.start_writes()


def _evict_from_both(stage: ShownCache) -> None:
    stage.compute(COUNT)
    stage.finish_transfers()
    stage.driver.evict(Component.FULL, len(ASKED.split()))
    stage.driver.evict_host(Component.FULL, len(ASKED.split()))


def _prefetch(stage: ShownCache) -> None:
    stage.prefetch("Ann", f"{ASKED} {DRINK}")


def _find(stage: ShownCache) -> None:
    stage.finish_prefetch("Ann", ASKED)
    stage.look_up("Ann", f"{ASKED} {DRINK}", anchor="", best=ASKED)


def _load(stage: ShownCache) -> None:
    stage.load("Ann", ASKED)
    stage.start_transfers()


def _use(stage: ShownCache) -> None:
    stage.finish_transfers()
    stage.begin("Ann", f"{ASKED} {DRINK}")
    stage.claim("Ann")
    stage.cache("Ann")
    stage.finish("Ann")
    stage.finish_transfers()


STORAGE_ACTS = (
    Act(
        "Storage, the third tier",
        "This is another cache, which has storage as well. Ann's prompt was computed, and its backup to the host has "
        "ended. Only then the host pages are written to storage, in batches, each of one pool. The write locks "
        "the pages on the host until storage has taken all of them.",
        ("FETCH-9", "HOST-3"),
        _write,
        (Claim(ASKED, ALL, ALL, COMING, (), (TRANSFER,), is_in_tree=True),),
    ),
    Act(
        "On three tiers",
        "Storage has taken every page, and the lock is released. The node is now on all three tiers. Storage is large, "
        "other servers can read it, and what it has outlives the server.",
        ("FETCH-9", "STORE-4"),
        ShownCache.finish_transfers,
        _on_all(ASKED),
    ),
    Act(
        "Out of the tree, but not lost",
        "Cy's numbers were computed, backed up and written. Then room is needed, first on the device and then on the "
        "host, and Ann's prompt, which was not used for the longest time, leaves both. The tree has no node for it any "
        "more. Only storage has its pages.",
        ("EVICT-2", "EVICT-8"),
        _evict_from_both,
        (*_in_storage(ASKED), *_on_all(COUNT)),
    ),
    Act(
        "A prefetch from storage",
        "Ann asks her next question. While her request waits for its turn, the cache asks storage for the longest "
        "prefix of the prompt: the first four pages, and the state at their end. Host pages are allocated, and storage "
        "reads into them, batch by batch. Nothing has entered the tree yet.",
        ("FETCH-4", "STORE-2"),
        _prefetch,
        (*_in_storage(ASKED, host=COMING), *_on_all(COUNT)),
    ),
    Act(
        "The prefetch enters the tree",
        "All pages have come, and the tree takes them over as a node on the host. Now Ann's prompt is matched. The "
        "best match is the end of this node, and the device anchor is the root, so all four pages can be loaded back.",
        ("FETCH-4", "MATCH-12"),
        _find,
        (_claim(ASKED, NOTHING, ALL), *_on_all(COUNT)),
    ),
    Act(
        "From the host to the device",
        "The load-back copies the same pages on to the device, and half of the layers have arrived. Storage is not "
        "read into the device itself: what comes from it takes the way over the host.",
        ("HOST-4", "HOST-6"),
        _load,
        (Claim(ASKED, COMING, ALL, ALL, (), (TRANSFER,), is_in_tree=True), *_on_all(COUNT)),
    ),
    Act(
        "Only the new part is computed",
        "Ann's request used the four pages, and computed only her new question; Cy's leaf was demoted to make room. "
        "The new node was backed up, and then written. It follows its parent: storage has everything that precedes it.",
        ("FETCH-9", "HOST-4"),
        _use,
        (*_on_all(ASKED, DRINK), _claim(COUNT, NOTHING, ALL)),
    ),
    Act(
        "A restart",
        "The server ends, and starts again with an empty tree. Every page of device and host is free. Storage still "
        "has all prompts, and the next request that begins like one of them can prefetch what it shares.",
        ("FLOW-9", "STORE-4"),
        ShownCache.restart,
        _in_storage(ASKED, DRINK, COUNT),
    ),
)
