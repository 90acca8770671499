"""A request that waits for a load, and the stages of that load."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.testing.adapter import Admission
from hicache.testing.driving.driver import Driver
from hicache.types import TransferKind

from .scenario import admit, allocate_all, key_of, put_on_host
from .transfers import pending_transfer

ON_DEVICE, CACHED, PROMPT = [1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5]
"""The pages on the device, the pages on either tier, and the pages of the prompt, which has one more token."""


def admit_waiting(driver: Driver) -> Admission:
    """Admit a request whose prompt is cached on the device, then on the host alone, and then not at all."""
    put_on_host(driver, ON_DEVICE, CACHED)
    driver.load(key_of(driver, ON_DEVICE))
    admission = admit(driver, PROMPT, tail=1)
    cached = len(CACHED) * driver.config.page_size
    assert (admission.loading, admission.cached_tokens) == (True, cached), (
        f"HOST-4: expected a request that waits for {cached} cached tokens, got {admission}"
    )
    return admission


def queued(driver: Driver, _: Admission) -> None:
    """The load has not started."""


def running(driver: Driver, _: Admission) -> None:
    """One layer of the load has moved."""
    driver.step()
    driver.advance(pending_transfer(driver, TransferKind.LOAD).ticket)


def arrived(driver: Driver, _: Admission) -> None:
    """The load has ended, and the request was not resumed."""
    driver.step()
    driver.complete_all()


def resumed(driver: Driver, admission: Admission) -> None:
    """The load has ended, and the request was resumed."""
    arrived(driver, admission)
    assert driver.resume(admission.request) is not None, (
        "FLOW-4: the load has ended: expected the request to resume, but it still waits"
    )


def failed(driver: Driver, _: Admission) -> None:
    """The load has failed, and the request was not resumed."""
    driver.step()
    driver.fail(pending_transfer(driver, TransferKind.LOAD).ticket, 0)
    driver.step()


def failed_without_room(driver: Driver, admission: Admission) -> None:
    """The load has failed, and resume found no slots for the pages that were not loaded."""
    failed(driver, admission)
    slots = allocate_all(driver)
    assert driver.resume(admission.request) is None, (
        "POOL-3: no slot is free for the pages that were not loaded: expected None from resume"
    )
    driver.free(slots)


def replaced(driver: Driver, admission: Admission) -> None:
    """The load has failed, and the request was resumed with new slots for the pages that were not loaded."""
    failed(driver, admission)
    assert driver.resume(admission.request) is not None, (
        "REQ-5: there is room for the pages that were not loaded: expected the request to resume"
    )


Stage = Callable[[Driver, Admission], None]

BEFORE_RESUME: tuple[Stage, ...] = (queued, running, arrived, failed, failed_without_room)
"""The stages before the request is resumed, in which it must not compute."""

STAGES = pytest.mark.parametrize("stage", [*BEFORE_RESUME, resumed, replaced], ids=lambda stage: stage.__name__)
