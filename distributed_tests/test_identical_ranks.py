"""All ranks serve the same requests: they have the same tree after each step, at any speed of their transfers."""

from __future__ import annotations

import pytest

from hicache.config import CacheConfig, WritePolicy
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.testing.ranks.digest import digest_of
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.rank_driver import RankDriver
from hicache.testing.ranks.world import RankWorld
from hicache.types import StopPolicy

from .configurations import ALL_MESHES, TP1, TP2, configuration, on_meshes
from .random_workload import RandomWorkload
from .rank_actions import NEEDS, STORAGE_NEEDS

ROUNDS = 25

RunResult = tuple[str, list[str], frozenset[str]]
"""The final tree; every collective of a rank, with its group, purpose and size; and the devices of their tensors."""


def runs_workload(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig, seed: int) -> RunResult:
    """Run a workload; the drivers compare the trees after each step."""
    driver = RankDriver(adapter_type, config, world)
    RandomWorkload(driver, seed).run(ROUNDS)
    calls = [f"{name}: {call} ({call.count})" for name, made in world.calls.items() for call in made]
    return digest_of(driver.snapshot()).text, calls, world.devices


def require_same(results: list[RunResult]) -> None:
    """RANK-1, and RANK-2 as far as the ranks are of one group."""
    trees = {tree for tree, *_ in results}
    assert len(trees) == 1, f"RANK-1: expected one tree on {len(results)} ranks, got:\n" + "\n---\n".join(trees)
    counts = [len(calls) for _, calls, _ in results]
    assert len(set(counts)) == 1, f"RANK-2: expected as many collectives on each rank, got {counts}"
    assert counts[0] or len(results) == 1, "RANK-2: expected ranks to agree on something, but no collective was seen"


@clause("RANK-1", "RANK-2", needs=(*NEEDS, Capability.REQUESTS))
@on_meshes(*ALL_MESHES)
def test_ranks_with_a_host_tier_hold_one_tree(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    require_same(launch.values(runs_workload, adapter_type, configuration(adapter_type, stop_policy=None), 1))


@clause("RANK-1", "RANK-2", "RANK-3", "FETCH-7", needs=(*STORAGE_NEEDS, Capability.REQUESTS))
@on_meshes(TP1, *ALL_MESHES)
def test_ranks_with_storage_hold_one_tree(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    results = launch.values(runs_workload, adapter_type, configuration(adapter_type), 2)
    require_same(results)
    expected = {{"gloo": "cpu", "nccl": "cuda"}[launch.backend]} if launch.mesh.ranks > 1 else set()
    devices = [set(seen) for _, _, seen in results]
    assert devices == [expected] * len(results), (
        f"RANK-3: expected the tensors of collectives by {launch.backend} on {expected} on each rank, got {devices}"
    )


@clause("RANK-1", "RANK-2", "FETCH-7", needs=(*STORAGE_NEEDS, Capability.REQUESTS))
@pytest.mark.parametrize("policy", [StopPolicy.BEST_EFFORT, StopPolicy.TIMEOUT], ids=lambda policy: policy.value)
@on_meshes(TP2)
def test_ranks_that_do_not_wait_hold_one_tree(
    launch: Launch, adapter_type: type[CacheAdapter], policy: StopPolicy
) -> None:
    require_same(launch.values(runs_workload, adapter_type, configuration(adapter_type, stop_policy=policy), 3))


@clause("RANK-1", "RANK-2", needs=(*NEEDS, Capability.REQUESTS))
@on_meshes(TP2)
def test_ranks_that_back_up_what_must_leave_hold_one_tree(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    config = configuration(adapter_type, write_policy=WritePolicy.WRITE_BACK, stop_policy=None)
    require_same(launch.values(runs_workload, adapter_type, config, 4))
