"""FETCH-9, FLOW-4: a node that storage refuses does not count as stored, and is offered again a few times."""

from __future__ import annotations

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Pool

from .scenario import FULL, evict_all, put
from .storage_scenes import (
    LONG,
    OTHER,
    PAIR,
    PROMPT,
    expected_pages,
    in_storage,
    long_prompt_variant,
    object_keys,
    pools,
    prefetch,
    store,
    stored_components,
)

THROUGH = [WritePolicy.WRITE_THROUGH]
STEPPED = [Capability.STEPPED_STORAGE]
MARKED = [*STEPPED, Capability.MARKS]
USES = 10


@clause("FETCH-9", "FLOW-4", needs=MARKED, write_policies=THROUGH, page_sizes=[16])
def test_a_node_with_a_refused_page_does_not_count_as_stored(driver: Driver) -> None:
    for pool in pools(driver):
        driver.reset()
        store(driver).empty()
        kept = object_keys(driver, pool, PAIR)
        store(driver).faults.refused = set(kept[-1:])
        put(driver, PAIR)
        driver.drain()
        marks = stored_components(driver)
        assert marks == {PAIR: frozenset()}, f"FETCH-9: a page of {pool.value} was refused, got {marks}"
        store(driver).faults.refused = set()
        put(driver, PAIR)
        driver.drain()
        marks = stored_components(driver)
        assert marks == {PAIR: frozenset(driver.config.components)}, (
            f"FLOW-4: nothing is refused any more, and it was used again, got {marks}"
        )
        assert expected_pages(driver, PAIR) == len(PAIR), f"FETCH-9: in storage is {in_storage(driver, PAIR)}"


@clause("FETCH-9", "FLOW-4", needs=MARKED, write_policies=THROUGH, page_sizes=[16])
def test_a_refused_node_is_offered_again_after_a_match(driver: Driver) -> None:
    store(driver).faults.failing_sets = 1
    put(driver, PAIR)
    driver.drain()
    driver.match(driver.key(driver.prompt(PAIR)))
    driver.drain()
    assert stored_components(driver)[PAIR], "FLOW-4: it was refused once, and a request used it since"


@clause("FLOW-9", "FETCH-9", write_policies=THROUGH, page_sizes=[16])
def test_the_child_of_a_refused_node_is_not_offered(driver: Driver) -> None:
    store(driver).faults.refused = set(object_keys(driver, Pool.KV, PROMPT)[1:2])
    put(driver, PROMPT[:2])
    put(driver, PROMPT)
    driver.drain()
    below = set(object_keys(driver, Pool.KV, PROMPT)[2:])
    assert not below & store(driver).offered, "FLOW-9: its parent was refused, and it was given to storage"
    store(driver).faults.refused = set()
    put(driver, PROMPT)
    driver.drain()
    assert below <= store(driver).written, "FLOW-4: nothing is refused any more, both are offered with the next use"


@clause("FLOW-4", "FETCH-9", needs=STEPPED, write_policies=THROUGH, page_sizes=[16])
def test_a_node_that_is_always_refused_is_offered_three_times(driver: Driver) -> None:
    key = object_keys(driver, Pool.KV, PROMPT)[0]
    store(driver).faults.refused = {key}
    for _ in range(USES):
        put(driver, PROMPT)
        driver.drain()
    tries = sum(key in call.keys for call in store(driver).calls if call.verb == "set")
    assert 1 < tries < USES, (
        f"FLOW-4: {USES} uses, each time refused: expected more than 1 and less than {USES} offers, got {tries}"
    )
    put(driver, OTHER)
    driver.drain()
    assert all(in_storage(driver, OTHER)[Pool.KV]), "FLOW-4: another prompt is not refused: expected it in storage"


@clause("FETCH-9", "FLOW-9", write_policies=THROUGH, page_sizes=[1], needs=MARKED)
def test_a_node_with_one_failed_batch_is_stored_with_the_next_use(driver: Driver) -> None:
    for lost in (0, 130, 299):
        with long_prompt_variant(driver) as long:
            key = object_keys(long, Pool.KV, LONG)[lost]
            store(long).empty()
            store(long).faults.refused = {key}
            put(long, LONG)
            long.drain()
            assert not any(stored_components(long).values()), f"FETCH-9: page {lost} of {len(LONG)} was refused"
            store(long).faults.refused = set()
            put(long, LONG)
            long.drain()
            missing = [page for page, there in enumerate(in_storage(long, LONG)[Pool.KV]) if not there]
            assert not missing, f"FLOW-4: page {lost} was refused once, of the second offer lack {missing}"
            evict_all(long)
            long.restart()
            came = prefetch(long, LONG)
            assert came == len(LONG), f"FLOW-9: {len(LONG)} pages are in storage, {came} came"


@clause("EVENT-1", "EVENT-2", needs=[Capability.EVENTS, Capability.STORAGE, Capability.COUNTERS], page_sizes=[16])
def test_a_refused_node_is_not_reported(driver: Driver) -> None:
    store(driver).faults.refused = set(object_keys(driver, Pool.KV, PAIR)[-1:])
    put(driver, PAIR)
    driver.evict(FULL, driver.config.capacity_tokens[FULL])
    driver.drain()
    events = [event for event in driver.adapter.events() if event.tier == "storage"]
    assert not events, f"EVENT-1: storage has only a part of the node: expected no events, got {events}"
    counters = driver.adapter.counters()
    assert counters["bytes_stored"] == 0, f"EVENT-2: nothing was stored: expected 0 bytes, got {counters}"
    assert counters["stores_failed"] == 1, f"EVENT-2: expected one failed store to be counted, got {counters}"
