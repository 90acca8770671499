"""The driver over requests that wait for the host: the slots they own meanwhile, and the bytes they get."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hicache.config import WritePolicy
from hicache.errors import InvariantError
from hicache.request import Request
from hicache.testing.adapter import Admission
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.testing.driving.driver import Driver
from hicache.tests.kit.snapshots import FULL, MAMBA, SWA, tiny_config
from hicache.types import Handle

STACKS = [(FULL,), (FULL, SWA), (FULL, MAMBA), (FULL, SWA, MAMBA)]


def open_driver(*components: str, bigram: bool = False, adapter: type[ReferenceAdapter] = ReferenceAdapter) -> Driver:
    config = tiny_config(
        *components, page_size=2, pages=8, window=3, bigram=bigram, write_policy=WritePolicy.WRITE_THROUGH
    )
    return Driver(adapter(config), config)


def admit_loading(driver: Driver) -> Admission:
    """Admit a request with two pages that are only on the host, and with one page and one token of its own."""
    driver.put(driver.key(driver.prompt([1, 2])))
    driver.drain()
    for component in driver.config.components:
        driver.evict(component, 16)
    admission = driver.admit(driver.key([*driver.prompt([1, 2, 3]), 5]))
    assert admission, "REQ-5: a small request fits an empty device"
    assert (admission.loading, admission.cached_tokens) == (True, 4), f"HOST-4: got {admission}"
    return admission


@pytest.mark.parametrize("bigram", [False, True], ids=["tokens", "pairs"])
@pytest.mark.parametrize("components", STACKS)
def test_a_request_waits_and_continues(components: tuple[str, ...], bigram: bool) -> None:
    driver = open_driver(*components, bigram=bigram)
    request = admit_loading(driver).request
    assert driver.resume(request) is None, "the load has not begun"
    with pytest.raises(ValueError, match="waits for a load: resume it first"):
        driver.finish(request)
    driver.step()
    driver.complete_all()
    admission = driver.resume(request)
    assert admission, "the load has ended"
    assert (admission.loading, admission.cached_tokens) == (False, 4), f"FLOW-10: got {admission}"
    driver.finish(request)
    found = driver.match(driver.key(driver.prompt([1, 2, 3])))
    has_state = MAMBA not in components
    assert len(found.device_indices) == (6 if has_state else 4), f"REQ-1: got {found.device_indices}"


@pytest.mark.parametrize("components", STACKS)
def test_a_request_continues_with_less_after_a_failure(components: tuple[str, ...]) -> None:
    driver = open_driver(*components)
    request = admit_loading(driver).request
    driver.step()
    driver.fail(driver.pending()[0].ticket, parts_done=0)
    driver.step()
    admission = driver.resume(request)
    assert admission, "the load has ended"
    assert admission.cached_tokens == 0, f"FLOW-3: nothing came, got {admission.cached_tokens} tokens"
    driver.finish(request)


def test_a_request_that_waits_can_be_aborted() -> None:
    driver = open_driver(FULL, SWA, MAMBA)
    driver.abort(admit_loading(driver).request)
    driver.drain()
    protected = {name: sizes.protected for name, sizes in driver.adapter.sizes().items()}
    assert not any(protected.values()), f"REQ-2: expected nothing protected without requests, got {protected}"


class ResumesTooSoon(ReferenceAdapter):
    """`resume` returns before the load has ended."""

    def resume(self, request: Request) -> Admission | None:
        return Admission(request, request.table.copy(), 4, request.state, loading=False)


class WaitsOn(ReferenceAdapter):
    """`resume` returns an admission that is still loading."""

    def resume(self, request: Request) -> Admission | None:
        return Admission(request, request.table.copy(), 4, request.state, loading=True)


class DeliversLess(ReferenceAdapter):
    """`resume` reports one page less than was admitted."""

    def resume(self, request: Request) -> Admission | None:
        admission = super().resume(request)
        return admission and replace(admission, cached_tokens=admission.cached_tokens - 2)


class LosesItsSlots(ReferenceAdapter):
    """`resume` frees the slots of a waiting request."""

    def resume(self, request: Request) -> Admission | None:
        self.cache.free(request.table[4:])
        return None


DEFECTS = [
    (ResumesTooSoon, "REQ-3: position 0 of a hit"),
    (WaitsOn, "FLOW-4: resume: expected a request that does not load"),
    (DeliversLess, "FLOW-10: resume: expected 4 cached tokens, as admitted, got 2"),
    (LosesItsSlots, "POOL-1: .*the free list, got the caller as well"),
]


@pytest.mark.parametrize(("adapter", "message"), DEFECTS, ids=[adapter.__name__ for adapter, _ in DEFECTS])
def test_a_defect_is_found(adapter: type[ReferenceAdapter], message: str) -> None:
    driver = open_driver(FULL, adapter=adapter)
    request: Handle = admit_loading(driver).request
    if adapter is DeliversLess:
        driver.drain()
    with pytest.raises(InvariantError, match=message):
        driver.resume(request)
