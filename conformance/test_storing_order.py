"""FETCH-9, FLOW-9: when a node is stored, and after which other nodes."""

from __future__ import annotations

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Pool, StorageKind, Tier, TransferKind

from .scenario import FULL, MAMBA, evict_all, evict_host, put
from .storage_scenes import (
    PAIR,
    PROMPT,
    complete_job,
    in_storage,
    object_keys,
    pending_job,
    prefetch,
    put_in_storage_alone,
    shows_marks,
    storage_variant,
    store,
    stored_components,
)
from .transfers import pending_transfer
from .tree_view import host_slots, nodes, pins, prefixes

STEPPED = [Capability.STEPPED]
STEPPED_STORAGE = [Capability.STEPPED_STORAGE]
THROUGH = [WritePolicy.WRITE_THROUGH]
BACK = [WritePolicy.WRITE_BACK]


@clause("FETCH-9", needs=[*STEPPED, Capability.MARKS], write_policies=THROUGH)
def test_a_node_is_stored_when_its_backup_is_acknowledged(driver: Driver) -> None:
    put(driver, PAIR)
    driver.step()
    driver.complete(pending_transfer(driver, TransferKind.BACKUP).ticket)
    assert not driver.pending_storage(), "FETCH-9: the copy was not taken over, and storage is asked already"
    driver.step()
    pending_job(driver, StorageKind.STORE)
    assert not store(driver).objects, "FLOW-2: storage has not answered, and has objects"
    assert not any(stored_components(driver).values()), (
        f"FETCH-9: storage has not answered, yet {stored_components(driver)}"
    )
    complete_job(driver, StorageKind.STORE)
    assert stored_components(driver) == {PAIR: frozenset(driver.config.components)}, (
        f"FETCH-9: storage has taken all that the host has of {PAIR}, got {stored_components(driver)}"
    )


@clause("FETCH-9", needs=STEPPED, write_policies=THROUGH)
def test_a_node_whose_backup_failed_is_not_stored(driver: Driver) -> None:
    put(driver, PROMPT)
    driver.step()
    driver.fail(pending_transfer(driver, TransferKind.BACKUP).ticket, parts_done=0)
    driver.step()
    driver.step()
    assert not driver.pending_storage(), f"FETCH-9: nothing was backed up, yet {driver.pending_storage()}"
    assert not store(driver).offered, "FETCH-9: nothing was backed up, and storage was given objects"


@clause("FETCH-9", "LOCK-7", needs=STEPPED_STORAGE, write_policies=THROUGH)
def test_a_node_stays_on_the_host_while_it_is_being_stored(driver: Driver) -> None:
    start_storing(driver)
    evict_all(driver)
    evict_host(driver)
    assert host_slots(driver, FULL).keys() == prefixes(*PAIR), "FETCH-9: storage is reading what was to be evicted"
    complete_job(driver, StorageKind.STORE)
    assert not pins(driver, Tier.HOST), f"FETCH-9: storage has it all, yet pinned is {pins(driver, Tier.HOST)}"
    evict_host(driver)
    assert not nodes(driver), f"FETCH-9: nothing is read any more, yet {nodes(driver).keys()} stays"
    assert prefetch(driver, PAIR) == len(PAIR), "FETCH-9: storage has all of it"


@clause("FETCH-9", "INS-8", needs=STEPPED_STORAGE, write_policies=THROUGH)
def test_both_parts_of_a_node_that_was_split_while_being_stored_are_in_storage(driver: Driver) -> None:
    start_storing(driver)
    put(driver, (PAIR[0], 9))
    complete_job(driver, StorageKind.STORE)
    marks = stored_components(driver) if shows_marks(driver) else {}
    for pages in (PAIR[:1], PAIR) if marks else ():
        expected = set(driver.config.components) - ({MAMBA} if pages != PAIR else set())
        assert marks[pages] == expected, (
            f"FETCH-9: {pages} is a part of a stored node: expected {expected} to be stored, got {marks}"
        )
    driver.drain()
    driver.restart()
    assert prefetch(driver, PAIR) == len(PAIR), "FETCH-9: both parts are in storage"


@clause("FETCH-9", "FLOW-9", needs=STEPPED_STORAGE, write_policies=THROUGH)
def test_a_child_is_stored_after_its_parent(driver: Driver) -> None:
    put(driver, PROMPT[:2])
    put(driver, PROMPT)
    driver.step()
    driver.complete_all()
    first = pending_job(driver, StorageKind.STORE)
    driver.complete_storage(first.ticket)
    there = in_storage(driver, PROMPT)[Pool.KV]
    assert there == [True, True, False, False], f"FLOW-9: the parent goes first, in storage are {there}"
    driver.step()
    pending_job(driver, StorageKind.STORE)
    complete_job(driver, StorageKind.STORE)
    assert all(in_storage(driver, PROMPT)[Pool.KV]), "FLOW-9: the child comes after its parent"


@clause("FETCH-9", "FLOW-9", needs=STEPPED_STORAGE, write_policies=BACK)
def test_with_write_back_a_leaf_is_stored_after_its_parent_left_the_device(driver: Driver) -> None:
    put(driver, PROMPT[:2])
    put(driver, PROMPT)
    driver.evict(FULL, 1)
    driver.drain()
    assert host_slots(driver, FULL).keys() == prefixes(*PROMPT) - prefixes(*PROMPT[:2]), "EVICT-7: the leaf left"
    assert not store(driver).offered, "FLOW-9: its parent is not in storage, and nothing that is below may be"
    evict_all(driver)
    driver.drain()
    assert all(in_storage(driver, PROMPT)[Pool.KV]), "FLOW-9: the parent left the device too: expected both in storage"
    driver.restart()
    assert prefetch(driver, PROMPT) == len(PROMPT), "FLOW-9: the whole prompt is in storage"


@clause("FETCH-9", write_policies=THROUGH)
def test_a_stored_node_is_not_stored_again(driver: Driver) -> None:
    put(driver, PROMPT)
    driver.drain()
    before = calls(driver, "set")
    put(driver, PROMPT)
    driver.drain()
    assert calls(driver, "set") == before, "FETCH-9: all of it is in storage, and was given to it again"


@clause("FETCH-9")
def test_a_prefetched_node_is_not_stored_again(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    before = calls(driver, "set")
    assert prefetch(driver, PROMPT) == len(PROMPT), "FETCH-4: all of it is in storage"
    driver.load(driver.key(driver.prompt(PROMPT)))
    driver.drain()
    assert calls(driver, "set") == before, "FETCH-9: it came from storage, and was given to it again"


@clause("FETCH-9", components=(MAMBA,), write_policies=THROUGH)
def test_a_state_that_is_inserted_later_is_stored_alone(driver: Driver) -> None:
    put(driver, PROMPT)
    driver.drain()
    before = len(store(driver).calls)
    put(driver, PROMPT[:2])
    driver.drain()
    given = [key for call in store(driver).calls[before:] if call.verb == "set" for key in call.keys]
    assert given == object_keys(driver, Pool.MAMBA, PROMPT)[1:2], (
        f"FETCH-9: storage lacks one state, given were {given}"
    )


@clause("FETCH-9", "FLOW-9", needs=STEPPED_STORAGE, write_policies=THROUGH, page_sizes=[16])
def test_closing_a_cache_while_it_stores_leaves_no_incomplete_prefix(driver: Driver) -> None:
    start_storing(driver)
    batches = pending_job(driver, StorageKind.STORE).batches
    for done in range(1, batches):
        driver.advance_storage(pending_job(driver, StorageKind.STORE).ticket)
        there = in_storage(driver, PAIR)
        assert not any(there[Pool.KV]), f"FLOW-9: KV comes last, after {done} of {batches} batches there is {there}"
    with storage_variant(driver) as other:
        assert prefetch(other, PAIR) == 0, "FLOW-9: of a prompt without KV nothing can be used"


@clause("FETCH-9", page_sizes=[16])
def test_prefix_keys_are_passed_only_if_the_option_is_set(driver: Driver) -> None:
    for is_asked in (False, True):
        with storage_variant(driver, extra={"hicache_storage_pass_prefix_keys": is_asked}) as other:
            store(other).empty()
            put_in_storage_alone(other, PROMPT[:2], PROMPT)
            prefetch(other, PROMPT[:2])
            prefetch(other, PROMPT)
            scope = object_keys(other, Pool.KV, PROMPT)[0].partition("/")[0]
            own = [key.removeprefix(f"{scope}/") for key in object_keys(other, Pool.KV, PROMPT)]
            expected = {(), tuple(own[:2])} if is_asked else {()}
            for verb in ("set", "get"):
                given = {call.prefix_keys for call in store(other).calls if call.verb == verb}
                assert given == expected, (
                    f"FETCH-9: asked for: {is_asked}, expected the prefix keys {expected} in {verb}, got {given}"
                )


def start_storing(driver: Driver) -> None:
    """Cache the pair, and start to store it."""
    put(driver, PAIR)
    driver.step()
    driver.complete_all()
    pending_job(driver, StorageKind.STORE)


def calls(driver: Driver, verb: str) -> int:
    """How often the cache called a verb of its backend."""
    return sum(call.verb == verb for call in store(driver).calls)
