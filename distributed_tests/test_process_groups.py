"""All ranks create the same process groups, and the tensors of collectives are on the device of the group."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch import distributed

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter
from hicache.testing.contract import clause
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.rank_driver import RankDriver
from hicache.testing.ranks.world import RankWorld

from .configurations import ALL_MESHES, CP2_TP2, TP2, configuration, on_meshes
from .rank_actions import NEEDS

VERBS = ("new_group", "new_subgroups", "new_subgroups_by_enumeration")


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
