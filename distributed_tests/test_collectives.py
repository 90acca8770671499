"""Every rank creates the same groups and makes the same collectives; a rank that skips one is named."""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from typing import Any

from hicache.config import CacheConfig
from hicache.errors import RankError
from hicache.optional_torch import distributed, torch
from hicache.testing.adapter import CacheAdapter
from hicache.testing.contract import clause
from hicache.testing.ranks.driver import RankDriver
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.world import RankWorld, mesh_of

from .configurations import ALL_MESHES, CP2_TP2, TP2, configuration, on_meshes
from .rank_actions import KINDS, NEEDS

VERBS = ("new_group", "new_subgroups", "new_subgroups_by_enumeration")


COLLECTIVE_TIMEOUT_S = 2.0
"""The timeout of a collective in tests where a rank does not join."""


def asked_for() -> list[str]:
    """Record from now on the calls of torch.distributed that create groups, with their arguments."""
    heard: list[str] = []
    for verb in VERBS:
        setattr(distributed, verb, _heard(getattr(distributed, verb), heard))
    return heard


def _heard(verb: Any, heard: list[str]) -> Any:
    @wraps(verb)
    def listening(*arguments: Any, **options: Any) -> Any:
        heard.append(f"{verb.__name__}{arguments} {sorted(options.items(), key=str)}")
        return verb(*arguments, **options)

    return listening


def opens(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[str]:
    """The groups that this rank creates when a cache is opened."""
    heard = asked_for()
    RankDriver(adapter_type, config, world).end()
    return heard


def steps_elsewhere(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[str]:
    """The devices of a step's tensors, while the default device is `meta`."""
    driver = RankDriver(adapter_type, config, world)
    before = set(world.devices)
    with torch.device("meta"):
        driver.adapter.step()
    driver.end()
    return sorted(world.devices | before)


@clause("RANK-6", needs=NEEDS)
@on_meshes(*ALL_MESHES)
def test_all_ranks_create_the_same_groups_in_the_same_order(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    results = launch.values(opens, adapter_type, configuration(adapter_type, stop_policy=None))
    for rank, heard in enumerate(results):
        assert heard == results[0], f"RANK-6: expected the groups of rank 0 {results[0]}, got on rank {rank} {heard}"


@clause("RANK-3", needs=NEEDS)
@on_meshes(TP2, CP2_TP2)
def test_a_collective_names_the_device_of_its_tensor(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    results = launch.values(steps_elsewhere, adapter_type, configuration(adapter_type, stop_policy=None))
    expected = [{"gloo": "cpu", "nccl": "cuda"}[launch.backend]]
    for rank, devices in enumerate(results):
        assert devices == expected, f"RANK-3: expected the tensors of rank {rank} on {expected}, got {devices}"


def steps_idle(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[int]:
    """The number of collectives of each of a few steps, with and without transfers under way."""
    driver = RankDriver(adapter_type, config, world)
    driver.put(driver.key(driver.prompt([1, 2])))
    heard = []
    for _ in range(4):
        before = sum(map(len, world.calls.values()))
        driver.step()
        heard.append(sum(map(len, world.calls.values())) - before)
        if driver.rank == 0:
            driver.let_end(*KINDS)
    driver.end()
    return heard


def skips_a_step(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> str:
    """The last rank skips one step, and continues with the next comparison; returns the error of each rank."""
    driver = RankDriver(adapter_type, config, world)
    driver.put(driver.key(driver.prompt([1, 2])))
    try:
        if driver.rank != mesh_of(world.topology).ranks - 1:
            driver.adapter.step()
        driver.adapter.evict(config.components[0], 1)
        driver.compare("eviction")
    except RankError as error:
        return str(error)
    return "nothing"


@clause("RANK-2", needs=NEEDS)
@on_meshes(*ALL_MESHES)
def test_a_rank_that_skips_a_step_is_named(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    last = launch.mesh.topology(launch.mesh.ranks - 1)
    config = configuration(adapter_type, stop_policy=None)
    # A rank that hangs fails here: the launch kills it at its own deadline.
    errors = replace(launch, timeout_s=COLLECTIVE_TIMEOUT_S).values(skips_a_step, adapter_type, config)
    groups = {axis: getattr(last, f"{axis}_rank") for axis in ("tp", "cp", "pp")}
    # A group that the cache has opened itself is named by its ranks.
    named = [f"rank {place} of {name} " for axis, place in groups.items() for name in (axis, "ranks")]
    assert any(word in text for text in errors[:-1] for word in named), (
        f"RANK-2: expected a waiting rank to name the last one, as in {named}; got {errors}"
    )
    assert "nothing" not in errors[:-1], f"RANK-8: expected an error on each rank but the last, got {errors}"


@clause("RANK-2", needs=NEEDS)
@on_meshes(TP2)
def test_every_step_takes_the_same_number_of_collectives(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    heard = launch.values(steps_idle, adapter_type, configuration(adapter_type, stop_policy=None))
    assert len({tuple(one) for one in heard}) == 1, f"RANK-2: expected as many on each rank, got {heard}"
    assert all(heard[0]), f"RANK-2: expected each step to be agreed upon, also an idle one, got {heard[0]} collectives"
