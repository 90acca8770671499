"""Hits that go on inside a page: they have what was computed after the same prefix, and as much of it as is cached.

A cache that copies parts of pages into those of a request has more ways to mix up prefixes. No test needs to see them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from hicache.testing.adapter import Admission, Capability
from hicache.testing.contract import clause
from hicache.types import Key

from .scenario import FULL, Scenario

REQUESTS = (Capability.REQUESTS,)


def in_common(key: Key, computed: Sequence[Key]) -> int:
    """How many tokens a prompt begins with that one of these begins with too."""

    def common(other: Key) -> int:
        equal = [one == two for one, two in zip(key.tokens, other.tokens, strict=False)]
        return [*equal, False].index(False)

    return max(common(other) for other in computed)


def require_own_prefix(driver: Scenario, computed: list[Key], pages: Sequence[int]) -> None:
    """KEY-7: a prompt is given what was computed for its beginning, and nothing else. It is computed then, too."""
    key = driver.key([*driver.prompt(pages), 0])
    admission = driver.admit(key)
    assert admission is not None, f"REQ-5: expected {len(key.tokens)} tokens to be admitted, as nothing else runs"
    reached, most = admission.cached_tokens + admission.copied_tokens, in_common(key, computed)
    assert reached <= most, f"KEY-7: of {list(pages)} {most} tokens were computed after their prefix, got {reached}"
    # A cache may copy a part where it computes. With BYTES the driver compares what is in the table then.
    driver.checkpoint(admission.request, len(key.tokens))
    driver.finish(admission.request)
    computed.append(key)


def require_own_prefixes(driver: Scenario) -> None:
    """Ask for prompts that begin with the second page of what was computed, or with the beginning of a similar one."""
    computed = [driver.key([*driver.prompt([1, 2]), 0])]
    for pages in ([2], [3], [2, 1], [4, 2]):
        require_own_prefix(driver, computed, pages)


@clause("KEY-7", needs=REQUESTS, components=[FULL], verbs=False, alone=True)
@pytest.mark.parametrize("is_first_last", [False, True], ids=["first-ends-first", "first-ends-last"])
def test_a_page_that_two_requests_computed_keeps_its_prefix(driver: Scenario, is_first_last: bool) -> None:
    running = [driver.admit_pages([1, 2], tail=1) for _ in range(2)]
    for admission in running:
        driver.checkpoint(admission.request, len(driver.prompt([1, 2])) + 1)
    for admission in reversed(running) if is_first_last else running:
        driver.finish(admission.request)
    require_own_prefixes(driver)


@clause("KEY-7", needs=REQUESTS, components=[FULL], verbs=False, alone=True)
def test_a_page_that_was_given_back_unwritten_keeps_its_prefix(driver: Scenario) -> None:
    for other, waiting in short_of_pages(driver):
        again = other.admit(other.key([*other.prompt([1, 2]), 0]))
        if again is not None:
            other.checkpoint(again.request, len(other.prompt([1, 2])) + 1)
        other.abort(waiting.request)
        if again is not None:
            other.finish(again.request)
        require_own_prefixes(other)


def short_of_pages(driver: Scenario) -> Iterator[tuple[Scenario, Admission]]:
    """Caches with two prompts, beside a request that has computed nothing and has taken a few more pages each time."""
    pages = driver.config.capacity_tokens[FULL] // driver.config.page_size
    for count in range(max(1, pages - 9), pages):
        other = driver.open_variant()
        other.run([1, 2], tail=1)
        other.run([5, 6, 7], tail=1)
        waiting = other.admit(other.key([*other.prompt([100] * count), 0]))
        if waiting is not None:
            yield other, waiting
        other.adapter.close()


@clause("MATCH-21", needs=REQUESTS, page_sizes=[3, 16], verbs=False)
def test_a_hit_goes_on_inside_a_page(driver: Scenario) -> None:
    size = driver.config.page_size
    first = driver.admit_pages([1, 2], tail=1)
    shared = driver.prompt([1, 2])[: 2 * size - 1]
    # With MAMBA there is a state where a chunk ended.
    for tokens in (len(shared), 2 * size + 1):
        driver.checkpoint(first.request, tokens)
    driver.finish(first.request)
    admission = driver.admit(driver.key([*shared, 0, 0]))
    assert admission is not None, "REQ-5: nothing else runs: expected a prompt of three pages to be admitted"
    found = (admission.cached_tokens, admission.copied_tokens)
    assert found == (size, size - 1), f"MATCH-21: expected a page and {size - 1} tokens of the next one, got {found}"
