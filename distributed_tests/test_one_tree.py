"""All ranks serve the same requests: they have the same tree after each step, at any speed of their transfers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from hicache.config import CacheConfig, WritePolicy
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.testing.plugin.options import adapter_path
from hicache.testing.ranks.digest import digest_of
from hicache.testing.ranks.driver import RankDriver
from hicache.testing.ranks.launch import ENDED, Launch
from hicache.testing.ranks.outcome import RankFiles, RankOutcome, RanksFailedError
from hicache.testing.ranks.world import Mesh, RankWorld
from hicache.types import StopPolicy

from .configurations import ALL_MESHES, CP2_TP2, PP2_TP2, TP1, TP2, configuration, on_meshes
from .random_workload import RandomWorkload
from .rank_actions import NEEDS, STORAGE_NEEDS
from .rank_machine import RankMachine
from .stored_prompt import advance_batches, ask_for_pages, brought, put_in_storage

ROUNDS = 25
REORDERED_ROUNDS = 15

SHARE = 10
"""Divides the number of examples of a profile, since each step runs on every rank."""

MET = {"MIN progress", "MIN completed", "MIN prefetch end", "MIN capacities"}
"""The collectives that the examples of the profile ci must reach."""

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


@clause("RANK-1", "RANK-2", needs=NEEDS)
@on_meshes(*ALL_MESHES)
def test_ranks_with_a_host_tier_hold_one_tree(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    require_same(launch.values(runs_workload, adapter_type, configuration(adapter_type, stop_policy=None), 1))


@clause("RANK-1", "RANK-2", "RANK-3", "FETCH-7", needs=STORAGE_NEEDS)
@on_meshes(TP1, *ALL_MESHES)
def test_ranks_with_storage_hold_one_tree(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    results = launch.values(runs_workload, adapter_type, configuration(adapter_type), 2)
    require_same(results)
    expected = {{"gloo": "cpu", "nccl": "cuda"}[launch.backend]} if launch.mesh.ranks > 1 else set()
    devices = [set(seen) for _, _, seen in results]
    assert devices == [expected] * len(results), (
        f"RANK-3: expected the tensors of collectives by {launch.backend} on {expected} on each rank, got {devices}"
    )


@clause("RANK-1", "RANK-2", "FETCH-7", needs=STORAGE_NEEDS)
@pytest.mark.parametrize("policy", [StopPolicy.BEST_EFFORT, StopPolicy.TIMEOUT], ids=lambda policy: policy.value)
@on_meshes(TP2)
def test_ranks_that_do_not_wait_hold_one_tree(
    launch: Launch, adapter_type: type[CacheAdapter], policy: StopPolicy
) -> None:
    require_same(launch.values(runs_workload, adapter_type, configuration(adapter_type, stop_policy=policy), 3))


@clause("RANK-1", "RANK-2", needs=NEEDS)
@on_meshes(TP2)
def test_ranks_that_back_up_what_must_leave_hold_one_tree(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    config = configuration(adapter_type, write_policy=WritePolicy.WRITE_BACK, stop_policy=None)
    require_same(launch.values(runs_workload, adapter_type, config, 4))


def reversed_order(config: CacheConfig) -> CacheConfig:
    """The same configuration with the opposite order of components, sidecars and capacities."""
    assert config.host is not None, f"{config.name} has a host tier"
    host = replace(config.host, capacity_tokens=_reversed(config.host.capacity_tokens))
    return replace(
        config,
        components=config.components[::-1],
        capacity_tokens=_reversed(config.capacity_tokens),
        host=host,
    )


def _reversed(table: Mapping[str, int]) -> dict[str, int]:
    return dict(reversed(list(table.items())))


def runs_workload_reordered(
    world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig
) -> tuple[str, int, list[list[str]]]:
    """The final tree, the pages of a prefetch that was cut, and the collectives of each group, in any order."""
    driver = RankDriver(adapter_type, reversed_order(config) if world.rank == 1 else config, world)
    put_in_storage(driver, with_prefixes=True)
    ticket = ask_for_pages(driver)
    # Rank 1 lacks some of the batches, the others have read all.
    advance_batches(driver, 1 << 10 if driver.rank != 1 else 1)
    came = brought(driver, ticket)
    RandomWorkload(driver, 7).run(REORDERED_ROUNDS)
    # A group that the cache has opened itself has another name on other ranks.
    calls = sorted([f"{call} of {call.count}" for call in made] for made in world.calls.values())
    return digest_of(driver.snapshot()).text, came, calls


@clause("FETCH-7", "RANK-1", "RANK-2", needs=STORAGE_NEEDS)
@on_meshes(TP2, CP2_TP2)
def test_the_order_of_mappings_changes_nothing(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    config = configuration(adapter_type, stop_policy=StopPolicy.BEST_EFFORT)
    results = launch.values(runs_workload_reordered, adapter_type, config)
    tree, came, calls = results[0]
    assert came == 0, f"FETCH-7: a pool has not come on rank 1, so nothing is kept; got {came} pages"
    for rank, (own_tree, own_came, own_calls) in enumerate(results):
        assert own_came == came, f"FETCH-7: expected {came} pages on every rank, on rank {rank} came {own_came}"
        assert own_calls == calls, f"RANK-2: expected the collectives of rank 0 {calls}, on rank {rank} {own_calls}"
        assert own_tree == tree, f"RANK-1: expected one tree, on rank {rank}:\n{own_tree}\non rank 0:\n{tree}"


@on_meshes(PP2_TP2, CP2_TP2, TP2)
@clause(
    *("RANK-1", "RANK-2", "RANK-4", "RANK-7", "FETCH-7", "FLOW-7", "POOL-1"),
    needs=(*STORAGE_NEEDS, Capability.REQUESTS, Capability.SIZES, Capability.BYTES),
)
def test_ranks_hold_one_tree_whatever_happens_on_each(adapter_type: type[CacheAdapter], mesh: Mesh) -> None:
    bound = {"adapter_type": adapter_type, "mesh": mesh, "met": set[str]()}
    machine: type[RankMachine] = type(RankMachine.__name__, (RankMachine,), bound)
    examples = max(5, settings().max_examples // SHARE)
    run_state_machine_as_test(machine, settings=settings(max_examples=examples))
    # The examples of ci are the same each time; a few random ones may miss a collective.
    missed = MET - machine.met if settings().derandomize else set()
    assert not missed, f"{examples} examples did not reach {sorted(missed)}; they reached {sorted(machine.met)}"


@clause("RANK-1", "RANK-2", needs=STORAGE_NEEDS)
def test_a_workload_on_the_processes_of_torchrun(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    assert __package__ is not None, "the suite is a package"
    # Where this process finds the suite and the adapter, the ranks find them too.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", __package__, "--adapter", adapter_path(pytestconfig), "--rounds", "5"]
    command += ["--outcomes", str(tmp_path)]
    ended = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=120)
    if ended.returncode:
        told = [RankFiles(tmp_path, rank).outcome() for rank in range(2)]
        how, causes = f"left no outcome:\n{ended.stderr}", () if any(told) else (ENDED,)
        raise RanksFailedError([found or RankOutcome(rank, None, how, causes) for rank, found in enumerate(told)])
    assert "tp2 by gloo: one tree after each of 5 rounds" in ended.stdout, (
        f"expected the summary line, got {ended.stdout}"
    )
