"""REQ-2: an abort at any point of a request releases everything."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.testing.adapter import Admission, Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .checks import require_requests_released
from .scenario import FULL, admit, allocate_all, decode, evict_all, longest_prompt_tokens, put, tokens_in_pages
from .tree_view import device_slots, nodes

LOOKING = (Capability.SNAPSHOT, Capability.SIZES)

Stage = Callable[[Driver], Admission]


def started(driver: Driver) -> Admission:
    """Admitted, nothing computed."""
    return admit(driver, [1, 2, 3])


def started_with_a_tail(driver: Driver) -> Admission:
    """Admitted with a prompt that ends inside a page, nothing computed."""
    return admit(driver, [1, 2, 3], tail=1)


def started_on_a_hit(driver: Driver) -> Admission:
    """Admitted with a part of the prompt cached."""
    put(driver, [1, 2])
    return admit(driver, [1, 2, 3])


def computed_a_chunk(driver: Driver) -> Admission:
    """A chunk of the prompt is computed and cached."""
    admission = started(driver)
    driver.checkpoint(admission.request, tokens_in_pages(driver, 2))
    return admission


def computed_part_of_a_page(driver: Driver) -> Admission:
    """The computed chunk ends inside a page."""
    admission = started_with_a_tail(driver)
    driver.checkpoint(admission.request, tokens_in_pages(driver, 3) + 1)
    return admission


def computed_on_a_hit(driver: Driver) -> Admission:
    """The whole prompt is computed and cached, after a hit."""
    admission = started_on_a_hit(driver)
    driver.checkpoint(admission.request, tokens_in_pages(driver, 3))
    return admission


def computed_what_another_did(driver: Driver) -> Admission:
    """Another request computed the same pages meanwhile."""
    admission = started(driver)
    put(driver, [1, 2, 3])
    driver.checkpoint(admission.request, tokens_in_pages(driver, 2))
    return admission


def decoding(driver: Driver) -> Admission:
    """Tokens were decoded."""
    admission = started(driver)
    decode(driver, admission, [4, 5])
    return admission


def decoding_past_the_window(driver: Driver) -> Admission:
    """The prompt is cached, and decoding has moved the window past it."""
    admission = computed_on_a_hit(driver)
    decode(driver, admission, range(4, 11))
    return admission


def cached_past_the_window(driver: Driver) -> Admission:
    """The decoded tokens are cached as well."""
    admission = decoding_past_the_window(driver)
    driver.checkpoint(admission.request, tokens_in_pages(driver, 10))
    return admission


def out_of_slots(driver: Driver) -> Admission:
    """An extension failed for lack of slots."""
    admission = decoding(driver)
    other = allocate_all(driver)
    table = driver.extend(admission.request, driver.prompt([6]))
    assert table is None, f"POOL-3: all slots are held, and the table grew to {table}"
    driver.free(other)
    return admission


STAGES: tuple[Stage, ...] = (
    *(started, started_with_a_tail, started_on_a_hit, computed_a_chunk, computed_part_of_a_page, computed_on_a_hit),
    *(computed_what_another_did, decoding, decoding_past_the_window, cached_past_the_window, out_of_slots),
)


@clause("REQ-2", needs=LOOKING, page_sizes=[1, 16], bigram=True)
@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
def test_an_abort_releases_everything(driver: Driver, stage: Stage) -> None:
    admission = stage(driver)
    before = device_slots(driver, FULL).keys()
    driver.abort(admission.request)
    require_requests_released(driver, f"aborted when {stage.__name__}")
    added = device_slots(driver, FULL).keys() - before
    assert not added, f"REQ-2: an abort cached {added}"
    evict_all(driver)
    assert not nodes(driver), f"REQ-2: aborted when {stage.__name__}, {nodes(driver).keys()} cannot be evicted"


@clause("REQ-2", "REQ-5", needs=LOOKING)
def test_a_request_that_waits_holds_nothing(driver: Driver) -> None:
    put(driver, [1, 2])
    other = admit(driver, [8])
    sizes = driver.adapter.sizes()
    prompt = driver.key([*driver.prompt([1, 2]), *range(longest_prompt_tokens(driver))])
    for _ in range(driver.config.capacity_tokens[FULL] // driver.config.page_size):
        assert driver.admit(prompt) is None, f"POOL-3: {len(prompt.tokens)} tokens do not fit"
    after = driver.adapter.sizes()
    for component, before in sizes.items():
        room = before.free + before.evictable, after[component].free + after[component].evictable
        assert room[0] == room[1], (
            f"REQ-2: expected a refused request to take no {component} slots, free and evictable before and after: "
            f"{room}"
        )
    driver.finish(other.request)
    require_requests_released(driver, "one request finished and another never started")
