"""Starts the ranks of a test: `launch` for the mesh of the test, by gloo, and by NCCL where there are GPUs enough.

A scenario is a function at the top of a module, `act(world, adapter_type, config, ...)`. `launch.values(act, ...)`
calls it in one process for each rank and gives what each returned, by rank. It opens a RankDriver, drives the same
verbs on every rank, lets what differs depend on `driver.rank`, and ends with `driver.end()`. The driver holds each rank
to every law, and the ranks to one tree, wherever they agree: at `step` and `drain`, and at `compare` where a test asks
for it. `launch.outcomes` is for ranks that are meant to fail. A test names its meshes with `@over(...)`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hicache.testing.adapter import CacheAdapter
from hicache.testing.plugin.devices import gpu_count
from hicache.testing.plugin.profiles import register_profiles
from hicache.testing.plugin.subject import subject_of
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.mesh import Mesh

register_profiles()

DEADLINE_S = 90.0
"""For all of one launch, on a busy machine."""

TIMEOUT_S = 30.0
"""Until a rank that does not come to a collective is missed. Tests of ranks that do not come take less."""


@pytest.fixture(scope="session")
def adapter_type(pytestconfig: pytest.Config) -> type[CacheAdapter]:
    """The class under test. A process finds it by its module and name."""
    return subject_of(pytestconfig).adapter


@pytest.fixture(params=["gloo", "nccl"])
def transport(request: pytest.FixtureRequest, mesh: Mesh) -> str:
    """The backend of torch.distributed."""
    name = str(request.param)
    if name == "nccl" and gpu_count() < mesh.ranks:
        pytest.skip(f"NCCL needs a GPU for each rank: {mesh.ranks}, and this machine has {gpu_count()}")
    return name


@pytest.fixture
def launch(mesh: Mesh, transport: str, tmp_path: Path) -> Launch:
    """Starts one process for each rank of the mesh, in a folder of its own. Change it with `dataclasses.replace`."""
    return Launch(mesh, transport, tmp_path, DEADLINE_S, TIMEOUT_S, is_recorded=True)
