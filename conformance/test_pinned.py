"""POOL-6: with a GPU, host memory is pinned, so that copies are asynchronous and need no staging buffer."""

from __future__ import annotations

from hicache.config import ExecutorKind
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Pool

from .scenario import key_of, put_on_host

STREAMS = [ExecutorKind.STREAMS]


def require_pinned(driver: Driver, when: str) -> None:
    """All host pools that have layers are pinned."""
    pools = [pool for pool in Pool if driver.adapter.layers(pool)]
    pageable = [pool.value for pool in pools if not driver.adapter.is_pinned(pool)]
    assert not pageable, f"POOL-6: {when}, the host memory of {pageable} is not pinned"


@clause("POOL-6", needs=[Capability.BYTES], executors=STREAMS)
def test_host_memory_is_pinned_where_there_is_a_gpu(driver: Driver) -> None:
    require_pinned(driver, "nothing is cached")


@clause("POOL-6", needs=[Capability.BYTES], executors=STREAMS)
def test_host_memory_stays_pinned(driver: Driver) -> None:
    put_on_host(driver, [1, 2])
    driver.load(key_of(driver, [1, 2]))
    require_pinned(driver, "after a backup and a load")
    driver.reset()
    require_pinned(driver, "after a reset")
