"""A request that waits for a load: how it comes to wait, and how far the load has come."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.testing.adapter import Admission
from hicache.testing.driving.driver import Driver
from hicache.types import TransferKind

from .lives import admitted, take_all
from .residences import put_on_host
from .under_way import pending
from .verbs import key_of

ON_DEVICE, CACHED, PROMPT = [1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5]
"""What the device has of the prompt, what both tiers have together, and the prompt, which has a token more."""


def waiting(driver: Driver) -> Admission:
    """A request whose prompt begins on the device, goes on on the host, and ends in nothing that is cached."""
    put_on_host(driver, ON_DEVICE, CACHED)
    driver.load(key_of(driver, ON_DEVICE))
    admission = admitted(driver, PROMPT, tail=1)
    cached = len(CACHED) * driver.config.page_size
    assert (admission.loading, admission.cached_tokens) == (True, cached), (
        f"HOST-4: a request waits for {cached} cached tokens, got {admission}"
    )
    return admission


def queued(driver: Driver, _: Admission) -> None:
    """The load has not begun."""


def running(driver: Driver, _: Admission) -> None:
    """A layer has arrived."""
    driver.step()
    driver.advance(pending(driver, TransferKind.LOAD).ticket)


def arrived(driver: Driver, _: Admission) -> None:
    """All is there, and the request does not know."""
    driver.step()
    driver.complete_all()


def resumed(driver: Driver, admission: Admission) -> None:
    """The request knows."""
    arrived(driver, admission)
    assert driver.resume(admission.request) is not None, "FLOW-4: the load has ended, and the request still waits"


def failed(driver: Driver, _: Admission) -> None:
    """The load has failed, and the request does not know."""
    driver.step()
    driver.fail(pending(driver, TransferKind.LOAD).ticket, 0)
    driver.step()


def failed_without_room(driver: Driver, admission: Admission) -> None:
    """The request knows, and there are no slots for what did not come."""
    failed(driver, admission)
    slots = take_all(driver)
    assert driver.resume(admission.request) is None, "POOL-3: no slot was left for what the load did not bring"
    driver.free(slots)


def replaced(driver: Driver, admission: Admission) -> None:
    """The request has slots of its own for what did not come."""
    failed(driver, admission)
    assert driver.resume(admission.request) is not None, "REQ-5: there is room for what the load did not bring"


Stage = Callable[[Driver, Admission], None]

BEFORE_THE_END: tuple[Stage, ...] = (queued, running, arrived, failed, failed_without_room)
"""Those in which the request must not compute."""

STAGES = pytest.mark.parametrize("stage", [*BEFORE_THE_END, resumed, replaced], ids=lambda stage: stage.__name__)
