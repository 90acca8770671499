"""Ranks whose copies run on CUDA streams: a copy ends at another time on each, and all hold one tree after each step.

Where torch finds no GPU, each rank has a model of CUDA of its own, which runs its streams in another order.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.testing.ranks.driver import RankDriver
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.world import Mesh, RankWorld
from hicache.types import StopPolicy

from .configurations import PP2_TP2, TP1, TP2, class_on_streams, configuration, on_meshes, on_streams
from .random_workload import RandomWorkload
from .rank_actions import STORAGE_NEEDS
from .rank_machine import RankStreamsMachine

ROUNDS = 25

SHARE = 20
"""Divides the number of examples of a profile: each step runs on every rank, and on a model it is slow."""


def runs_workload(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig, seed: int) -> int:
    """Run a workload; the drivers compare the trees after each step. Returns how many collectives this rank joined."""
    driver = RankDriver(class_on_streams(adapter_type, seed), config, world)
    RandomWorkload(driver, seed).run(ROUNDS)
    return sum(map(len, world.calls.values()))


@clause("RANK-1", "RANK-2", "FETCH-7", "FLOW-2", needs=STORAGE_NEEDS)
@on_meshes(TP1, TP2, PP2_TP2)
def test_ranks_on_streams_hold_one_tree(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    class_on_streams(adapter_type, 0)
    for seed, stop_policy in enumerate((None, StopPolicy.BEST_EFFORT), 1):
        config = on_streams(configuration(adapter_type, stop_policy=stop_policy))
        counts = launch.again(seed).values(runs_workload, adapter_type, config, seed)
        assert len(set(counts)) == 1, (
            f"RANK-2: stop policy {stop_policy}: expected as many collectives on each rank, got {counts}"
        )


@on_meshes(TP2, PP2_TP2)
@clause(
    *("RANK-1", "RANK-2", "RANK-4", "RANK-7", "FETCH-7", "FLOW-2", "FLOW-7", "POOL-1"),
    needs=(*STORAGE_NEEDS, Capability.REQUESTS, Capability.SIZES, Capability.BYTES),
)
def test_ranks_on_streams_hold_one_tree_whatever_happens_on_each(adapter_type: type[CacheAdapter], mesh: Mesh) -> None:
    class_on_streams(adapter_type, 0)
    bound = {"adapter_type": adapter_type, "mesh": mesh, "met": set[str]()}
    machine: type[RankStreamsMachine] = type(RankStreamsMachine.__name__, (RankStreamsMachine,), bound)
    examples = max(5, settings().max_examples // SHARE)
    run_state_machine_as_test(machine, settings=settings(max_examples=examples))
    assert "MIN progress" in machine.met, f"expected ranks to agree on what has ended, they agreed on {machine.met}"
