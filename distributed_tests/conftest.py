"""Starts the ranks of a test: `launch` for the mesh of the test, over gloo, and over NCCL if there are enough GPUs.

A scenario is a function at the top of a module, `act(world, adapter_type, config, ...)`. `launch.values(act, ...)`
calls it in one process for each rank and returns the results by rank. It opens a RankDriver, calls the same
verbs on every rank, uses `driver.rank` for what differs, and ends with `driver.end()`. The driver checks each rank
against every law, and compares the trees of the ranks at `step` and `drain`, and at `compare` where a test calls
it. `launch.outcomes` is for ranks that are meant to fail. A test names its meshes with `@on_meshes(...)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from hicache.testing.adapter import CacheAdapter
from hicache.testing.devices import gpu_count
from hicache.testing.plugin.options import QUICK, use_profiles_in
from hicache.testing.plugin.selection import subject_of
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.world import Mesh

use_profiles_in(Path(__file__).parent)

DEADLINE_S = 90.0
"""The limit for one launch, on a busy machine."""

TIMEOUT_S = 30.0
"""The timeout of a collective that a rank does not join. Tests of such ranks set a shorter one."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on its meshes."""
    marker = metafunc.definition.get_closest_marker("meshes")
    if marker is None:
        return
    meshes: Sequence[Mesh] = marker.args
    if QUICK.switch(metafunc.config):
        meshes = [mesh for mesh in meshes if mesh.ranks > 1][:1]
    metafunc.parametrize("mesh", meshes, ids=[mesh.name for mesh in meshes])


@pytest.fixture(scope="session")
def adapter_type(pytestconfig: pytest.Config) -> type[CacheAdapter]:
    """The class under test. A rank's process imports it by its module and name."""
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
    """Starts one process for each rank of the mesh, in its own folder. Change it with `dataclasses.replace`."""
    return Launch(mesh, transport, tmp_path, DEADLINE_S, TIMEOUT_S, is_recorded=True)
