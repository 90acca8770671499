"""REQ-5: which requests are admitted; an admitted request can be computed to its end."""

from __future__ import annotations

import pytest

from hicache.testing.adapter import Admission, Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .checks import require_requests_released
from .scenario import (
    MAMBA,
    admit,
    allocate_all,
    decode,
    find,
    has,
    hit_pages,
    key_of,
    longest_prompt_tokens,
    open_variant,
    put,
    run_request,
    tokens_in_pages,
)
from .tree_view import snapshot_values

LOOKING = (Capability.SNAPSHOT, Capability.SIZES)


def most_pages(driver: Driver) -> list[int]:
    """The longest prompt of whole pages that fits into an empty cache."""
    return list(range(1, longest_prompt_tokens(driver) // driver.config.page_size + 1 - int(driver.config.bigram)))


@clause("REQ-5", needs=LOOKING, bigram=True)
def test_a_request_that_fits_an_empty_cache_is_admitted_when_all_others_have_finished(driver: Driver) -> None:
    running: list[Admission] = []
    for first in range(100, 200, 10):
        admission = driver.admit(key_of(driver, [first, first + 1, first + 2]))
        if admission is None:
            break
        running.append(admission)
    assert 2 <= len(running) < 10, f"REQ-5: expected 2 to 9 admitted requests, got {len(running)}"
    assert driver.admit(key_of(driver, most_pages(driver))) is None, (
        "POOL-3: expected a request as large as the cache to be refused while others run"
    )
    for admission in running:
        driver.finish(admission.request)
    admission = admit(driver, most_pages(driver))
    driver.finish(admission.request)
    require_requests_released(driver, "all have finished")


@clause("REQ-5", "EVICT-1", needs=LOOKING, page_sizes=[1, 16], bigram=True)
def test_a_cache_full_of_finished_prompts_admits_a_request(driver: Driver) -> None:
    for first in range(100, 140, 10):
        run_request(driver, range(first, first + 6))
    assert run_request(driver, most_pages(driver)) == 0, "REQ-5: nothing of this prompt was cached"
    hit = hit_pages(driver, most_pages(driver))
    assert hit == len(most_pages(driver)), f"REQ-5: a prompt as long as the cache was computed, {hit} pages hit"


@clause("REQ-5", needs=LOOKING, bigram=True)
def test_an_admitted_request_can_be_computed_when_no_slot_is_free(driver: Driver) -> None:
    put(driver, [1, 2])
    pages = [1, 2, 3, 4, 5, 6]
    admission = admit(driver, pages)
    slots = allocate_all(driver)
    states = list(iter(driver.allocate_state, None)) if has(driver, MAMBA) else []
    for count in (3, 4, 6):
        driver.checkpoint(admission.request, tokens_in_pages(driver, count))
    driver.finish(admission.request)
    for state in states:
        driver.free_state(state)
    driver.free(slots)
    require_requests_released(driver, "a request finished that had no room but its own")
    find(driver, pages)


@clause("REQ-5", "EVICT-1", needs=LOOKING, components=(MAMBA,))
def test_without_a_slot_for_a_state_a_chunk_is_not_cached(driver: Driver) -> None:
    admission = admit(driver, [1, 2, 3])
    states = list(iter(driver.allocate_state, None))
    table = driver.checkpoint(admission.request, tokens_in_pages(driver, 2))
    assert table.tolist() == admission.table.tolist(), "REQ-5: a chunk that cannot be cached changed the table"
    assert hit_pages(driver, [1, 2]) == 0, "MATCH-4: no state was left for the chunk, and it hits"
    driver.free_state(states.pop())
    driver.checkpoint(admission.request, tokens_in_pages(driver, 3))
    assert hit_pages(driver, [1, 2, 3]) == 3, "REQ-5: there is a slot for a state again, and the chunk is not cached"
    driver.finish(admission.request)
    for state in states:
        driver.free_state(state)


@clause("REQ-5", needs=LOOKING, page_sizes=[1, 16, 64], bigram=True)
def test_an_extension_without_room_leaves_the_request_unchanged(driver: Driver) -> None:
    admission = admit(driver, [1, 2])
    driver.checkpoint(admission.request, tokens_in_pages(driver, 2))
    slots = allocate_all(driver)
    before = snapshot_values(driver.snapshot())
    for _ in range(3):
        table = driver.extend(admission.request, driver.prompt([3, 4]))
        assert table is None, f"POOL-3: no slot is left, and the table grew to {table}"
        assert snapshot_values(driver.snapshot()) == before, "POOL-3: an extension that does not fit changed the cache"
    driver.free(slots)
    decode(driver, admission, [3, 4])
    driver.finish(admission.request)
    find(driver, [1, 2, 3, 4])
    require_requests_released(driver, "a request finished that had to wait")


@clause("REQ-5", needs=LOOKING, components=(MAMBA,))
@pytest.mark.parametrize("pages", [[1, 2], [1, 2, 3], [7]], ids=str)
def test_one_state_suffices_for_one_request(driver: Driver, pages: list[int]) -> None:
    small = open_variant(driver, capacity_tokens={**driver.config.capacity_tokens, MAMBA: 1})
    for prompt in ([1, 2], pages, pages):
        run_request(small, prompt)
        require_requests_released(small, f"a request for {prompt} finished")
    small.adapter.close()
