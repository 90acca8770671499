"""A rank is killed between two steps: the others raise an error that names it, and keep every law."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

from hicache.config import CacheConfig
from hicache.errors import InvariantError
from hicache.testing.adapter import CacheAdapter
from hicache.testing.contract import clause
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.rank_driver import RankDriver
from hicache.testing.ranks.world import RankWorld

from .configurations import ALL_MESHES, configuration, on_meshes
from .rank_actions import KINDS, NEEDS

COLLECTIVE_TIMEOUT_S = 3.0
BOUND_S = 60.0
"""The limit from the kill to the errors of the other ranks, on a busy machine."""


def loses_one(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> tuple[str, float]:
    """Rank 1 is killed between two steps; the error of another rank, and after how long. Then all laws are checked."""
    driver = RankDriver(adapter_type, config, world)
    driver.put(driver.key(driver.prompt([1, 2])))
    driver.step()
    driver.let_end(*KINDS)
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        driver.adapter.step()
    except InvariantError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a cache raises, its message has to name the rank
        error_text = str(error)
    else:
        error_text = "nothing"
    took_s = time.monotonic() - begin
    driver.check()
    driver.adapter.close()
    return error_text, took_s


@clause("RANK-8", needs=NEEDS)
@on_meshes(*ALL_MESHES)
def test_the_other_ranks_name_a_killed_rank_and_lose_no_slot(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    config = configuration(adapter_type, stop_policy=None)
    # Not recorded: the error comes from the cache itself, not from the recorder.
    outcomes = replace(launch, timeout_s=COLLECTIVE_TIMEOUT_S, is_recorded=False).outcomes(
        loses_one, adapter_type, config
    )
    others = [outcome for outcome in outcomes if outcome.rank != 1]
    failed = [outcome for outcome in others if outcome.failure]
    assert not failed, "RANK-8: expected each other rank to end cleanly, got:\n" + "\n".join(
        one.failure for one in failed
    )
    for outcome in others:
        error_text, took_s = outcome.value
        assert "rank 1" in error_text, (
            f"RANK-8: expected the error of rank {outcome.rank} to name rank 1, got {error_text!r}"
        )
        assert took_s < BOUND_S, f"RANK-8: expected the error within {BOUND_S:g} s, it took {took_s:.1f} s"
