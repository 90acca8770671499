"""EVICT-2: the hits that LFU and SLRU use: each request that matched a node counts once."""

from __future__ import annotations

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .scenario import FULL, MAMBA, find, has, insert_fresh, key_of, put
from .tree_view import hits


@clause("EVICT-2", page_sizes=[1, 16], needs=[Capability.SNAPSHOT, Capability.HITS], bigram=True)
def test_a_request_counts_at_every_node_of_its_path(driver: Driver) -> None:
    for pages in ([1], [1, 2], [1, 3]):
        insert_fresh(driver, pages)
    for pages in ([1], [1, 2], [1, 2], [1, 3], [1, 3, 9]):
        driver.match(key_of(driver, pages))
    found, expected = hits(driver), {(1,): 5, (1, 2): 2, (1, 3): 2}
    assert found == expected, f"EVICT-2: of five requests expected hits {expected}, got {found}"


@clause("EVICT-2", page_sizes=[1, 16], needs=[Capability.SNAPSHOT, Capability.HITS], bigram=True)
def test_a_chunked_request_that_matches_again_is_not_counted(driver: Driver) -> None:
    insert_fresh(driver, [1])
    insert_fresh(driver, [1, 2])
    driver.match(key_of(driver, [1, 2]))
    for _ in range(3):
        find(driver, [1, 2])
    found, expected = hits(driver), {(1,): 1, (1, 2): 1}
    assert found == expected, f"EVICT-2: one request, which looked four times: expected {expected}, got {found}"


@clause("EVICT-2", page_sizes=[1, 16], needs=[Capability.SNAPSHOT, Capability.HITS], bigram=True)
def test_a_match_inside_a_node_counts_for_the_part_that_matched(driver: Driver) -> None:
    insert_fresh(driver, [1, 2, 3])
    driver.match(key_of(driver, [1, 2, 3]))
    driver.match(key_of(driver, [1, 2, 9]))
    insert_fresh(driver, [1, 2])
    driver.match(key_of(driver, [1, 2, 9]))
    found = {pages: count for pages, count in hits(driver).items() if len(pages) > 1}
    # With MAMBA the match that splits the node finds no state at its end, so only the other one is a hit.
    expected = {(1, 2): 2 if has(driver, MAMBA) else 3, (1, 2, 3): 1}
    assert found == expected, f"EVICT-2: one request for all, two for its beginning: expected {expected}, got {found}"


@clause("EVICT-2", page_sizes=[1, 16], needs=[Capability.SNAPSHOT, Capability.HITS], bigram=True)
def test_a_match_that_finds_nothing_is_not_counted(driver: Driver) -> None:
    insert_fresh(driver, [1])
    for pages in ([], [2], [2, 1]):
        driver.match(key_of(driver, pages))
    assert hits(driver) == {(1,): 0}, f"EVICT-2: no request matched it: expected no hits, got {hits(driver)}"


@clause("EVICT-2", page_sizes=[1, 16], needs=[Capability.SNAPSHOT, Capability.HITS])
def test_the_parent_keeps_the_hits_of_an_evicted_child(driver: Driver) -> None:
    put(driver, [1])
    put(driver, [1, 2])
    for _ in range(3):
        driver.match(key_of(driver, [1, 2]))
    before = hits(driver)[1,]
    driver.evict(FULL, 1)
    assert hits(driver) == {(1,): before}, f"EVICT-2: {before} requests matched page 1, got {hits(driver)}"
