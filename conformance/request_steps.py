"""The steps of a request, over prompts of whole pages."""

from __future__ import annotations

from collections.abc import Sequence

from hicache.testing.adapter import Admission
from hicache.testing.driving.driver import Driver
from hicache.types import Slots

from .scenario import MAMBA, key_of


def admit(driver: Driver, pages: Sequence[int], tail: int = 0) -> Admission:
    """Admit a request whose prompt is these pages and so many more tokens."""
    admission = driver.admit(driver.key([*driver.prompt(pages), *range(tail)]))
    assert admission is not None, f"REQ-5: expected a prompt of {len(pages)} pages and {tail} tokens to be admitted"
    return admission


def tokens_in_pages(driver: Driver, pages: int) -> int:
    """The number of tokens that make so many whole pages."""
    return pages * driver.config.page_size + int(driver.config.bigram)


def decode(driver: Driver, admission: Admission, pages: Sequence[int]) -> None:
    """Compute all of a request's prompt, and extend it page by page."""
    size = driver.config.page_size
    for page in pages:
        table = driver.extend(admission.request, driver.prompt([page])[-size:])
        assert table is not None, f"REQ-5: there is room for page {page}: expected a longer table, got None"


def run_request(driver: Driver, pages: Sequence[int]) -> int:
    """Admit and finish a request of these pages; the number of tokens that were cached."""
    admission = driver.admit(key_of(driver, pages))
    assert admission is not None, f"REQ-5: expected a prompt of {len(pages)} pages to be admitted"
    driver.finish(admission.request)
    return admission.cached_tokens


def longest_prompt_tokens(driver: Driver) -> int:
    """The number of tokens of the longest prompt that fits into an empty cache."""
    return min(tokens for name, tokens in driver.config.capacity_tokens.items() if name != MAMBA)


def allocate_all(driver: Driver) -> Slots:
    """Allocate every slot that is free or evictable in all pools at once."""
    sizes = [sizes for name, sizes in driver.adapter.sizes().items() if name != MAMBA]
    count = min(size.free + size.evictable for size in sizes)
    slots = driver.allocate(count)
    assert slots is not None, f"EVICT-1: {count} slots are free or evictable: expected them, got None"
    return slots
