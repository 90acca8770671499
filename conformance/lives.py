"""What happens to requests, over prompts of whole pages."""

from __future__ import annotations

from collections.abc import Sequence

from hicache.testing.adapter import Admission
from hicache.testing.driving.driver import Driver
from hicache.types import Slots

from .trees import locks
from .verbs import MAMBA, key_of


def admitted(driver: Driver, pages: Sequence[int], tail: int = 0) -> Admission:
    """A request starts whose prompt is these pages and some tokens more."""
    admission = driver.admit(driver.key([*driver.prompt(pages), *range(tail)]))
    assert admission is not None, f"REQ-5: a prompt of {len(pages)} pages and {tail} tokens was not admitted"
    return admission


def tokens_of(driver: Driver, pages: int) -> int:
    """Tokens that make so many whole pages."""
    return pages * driver.config.page_size + int(driver.config.bigram)


def decode(driver: Driver, admission: Admission, pages: Sequence[int]) -> None:
    """The request computes all it has, and goes on page by page."""
    size = driver.config.page_size
    for page in pages:
        table = driver.extend(admission.request, driver.prompt([page])[-size:])
        assert table is not None, f"REQ-5: there was room to go on with page {page}"


def run(driver: Driver, pages: Sequence[int]) -> int:
    """A request of these pages from beginning to end; how many tokens it found."""
    admission = driver.admit(key_of(driver, pages))
    assert admission is not None, f"REQ-5: a prompt of {len(pages)} pages was not admitted"
    driver.finish(admission.request)
    return admission.cached_tokens


def largest(driver: Driver) -> int:
    """Tokens of the longest prompt that fits into an empty cache."""
    return min(tokens for name, tokens in driver.config.capacity_tokens.items() if name != MAMBA)


def take_all(driver: Driver) -> Slots:
    """Take every slot that is free or evictable in all pools at once."""
    sizes = [sizes for name, sizes in driver.adapter.sizes().items() if name != MAMBA]
    room = min(size.free + size.evictable for size in sizes)
    slots = driver.allocate(room)
    assert slots is not None, f"EVICT-1: {room} slots are free or evictable, got none"
    return slots


def require_all_given_back(driver: Driver, when: str) -> None:
    """No request holds a lock or a slot: what is not free can be evicted."""
    assert not driver.running, f"{when}: {len(driver.running)} requests still run"
    assert not locks(driver), f"REQ-2: {when}: locks {locks(driver)} are left"
    for component, sizes in driver.adapter.sizes().items():
        capacity = driver.config.capacity_tokens[component]
        assert sizes.free + sizes.evictable == capacity, f"REQ-2: {when}: of {capacity} {component} slots {sizes}"
