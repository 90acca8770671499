"""Storage hangs on one rank: every rank goes on without it at the same step, and so are its slots given back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from hicache.config import CacheConfig, ExecutorKind
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.testing.ranks.driver import RankDriver, config_on
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.world import RankWorld, mesh_of
from hicache.testing.storage.misbehaving import BACKEND, CallGate, Script, script

from .configurations import PP2_TP2, TP2, configuration, on_meshes
from .rank_actions import MARKS_NEEDS
from .stored_prompt import PROMPT, begin, prompt_key, taken_on_host

LIMIT_S = 3600.0
OTHER = (7, 8)

NEEDS = (*MARKS_NEEDS, Capability.DEADLINES)

Seen = tuple[str, int | None, bool, bool, int | None]
"""The verb; pages of the prefetch; whether storage was abandoned, and attached again; and pages of another prefetch."""


@contextmanager
def scripted(
    adapter_type: type[CacheAdapter], config: CacheConfig, world: RankWorld
) -> Iterator[tuple[RankDriver, Script]]:
    """A driver whose storage follows a script of this rank."""
    own = config_on(config, world)
    assert own.storage is not None, f"{own.name} has storage"
    with script() as (name, told):
        options = {"inner": own.storage.backend, "inner_options": own.storage.options, "script": name}
        changed = replace(
            own.storage, backend=BACKEND, options=options, executor=ExecutorKind.THREADED, answer_timeout_s=LIMIT_S
        )
        driver = RankDriver(adapter_type, replace(own, storage=changed), world)
        try:
            yield driver, told
        finally:
            told.behave()
            driver.adapter.close()


def hang_in_a_query(driver: RankDriver, told: Script, *, is_here: bool) -> CallGate:
    """Let the query of a prefetch hang for longer than it may, on this rank or on another one."""
    gate = told.hang("exists")
    if not is_here:
        gate.open()
    driver.step()
    assert gate.entered.wait(LIMIT_S), "the thread of storage takes the query"
    if is_here:
        driver.advance_clock(2 * LIMIT_S)
    return gate


def abandons(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[Seen]:
    """Each rank in turn hangs in a query: at the next step, and in a reset."""
    found: list[Seen] = []
    with scripted(adapter_type, config, world) as (driver, told):
        driver.put(prompt_key(driver))
        driver.drain()
        driver.reset()
        for slow in range(mesh_of(world.topology).ranks):
            for verb in ("step", "reset"):
                ticket = begin(driver)
                gate = hang_in_a_query(driver, told, is_here=driver.rank == slow)
                (driver.step if verb == "step" else driver.reset)()
                tokens = driver.check_prefetch(ticket) if verb == "step" else None
                is_abandoned = shown_abandoned(driver)
                driver.put(driver.key(driver.prompt(OTHER)))
                driver.step()
                gate.open()
                while shown_abandoned(driver):
                    driver.step()
                driver.reset()
                is_attached = driver.attach_storage()
                other = begin(driver)
                driver.drain()
                found.append((verb, tokens, is_abandoned, is_attached, driver.check_prefetch(other)))
                driver.reset()
        left = taken_on_host(driver)
        assert not left, f"FLOW-13: all calls have ended: expected no host slot to be taken, got {left}"
    return found


def shown_abandoned(driver: RankDriver) -> bool:
    """Whether an abandoned backend is still in a call, as this rank shows it."""
    storage = driver.snapshot().storage
    return storage is not None and storage.abandoned is not None


@clause("FLOW-13", "RANK-1", "RANK-2", needs=NEEDS)
@on_meshes(TP2, PP2_TP2)
def test_storage_that_is_silent_on_one_rank_is_abandoned_on_all(
    launch: Launch, adapter_type: type[CacheAdapter]
) -> None:
    config = configuration(adapter_type)
    came = len(PROMPT) * config.page_size
    expected = {"step": (0, True, True, came), "reset": (None, True, True, came)}
    for rank, found in enumerate(launch.values(abandons, adapter_type, config)):
        for number, (verb, *seen) in enumerate(found):
            assert tuple(seen) == expected[verb], (
                f"FLOW-13: storage is silent on rank {number // 2}, {verb}: expected the tokens of its prefetch, "
                f"whether it is abandoned and attached again, and the tokens of the next prefetch {expected[verb]}, "
                f"on rank {rank} {seen}"
            )
