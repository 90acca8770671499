"""A random workload on processes of torchrun: `torchrun --nproc-per-node 8 -m distributed_tests`.

Every process of torchrun is a rank, on all hosts. Ends with an error that names a rank, or with one line from rank 0.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from hicache.config import CacheConfig
from hicache.testing.hybrid_model import TINY_MODEL, reshaped
from hicache.testing.load import load_adapter
from hicache.testing.plugin.options import DEFAULT_ADAPTER
from hicache.testing.ranks.driver import RankDriver
from hicache.testing.ranks.outcome import RankFiles
from hicache.testing.ranks.process_world import ProcessWorld, join_torchrun
from hicache.testing.ranks.worker import raised
from hicache.testing.ranks.world import Mesh

from .configurations import configuration
from .random_workload import RandomWorkload

TIMEOUT_S = 60.0


def dividing(config: CacheConfig, mesh: Mesh) -> CacheConfig:
    """The configuration with a model whose heads and layers divide over the mesh."""
    layers = 2 * mesh.pp_size
    model = reshaped(
        TINY_MODEL,
        full_layers=layers,
        swa_layers=layers,
        mamba_layers=layers,
        kv_heads=mesh.tp_size,
        conv_elements=4 * mesh.tp_size,
        state_elements=4 * mesh.tp_size,
    )
    return replace(config, model=model)


def arguments() -> argparse.Namespace:
    """The command line. By default all processes are tensor-parallel ranks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--adapter", default=DEFAULT_ADAPTER, help="the cache, as module:Class")
    parser.add_argument("--backend", choices=["gloo", "nccl"], default="gloo")
    parser.add_argument("--cp", type=int, default=1, help="context-parallel ranks")
    parser.add_argument("--pp", type=int, default=1, help="stages of the pipeline")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--outcomes", type=Path, metavar="FOLDER", help="where a rank that fails says why")
    return parser.parse_args()


def main() -> None:
    """Run one of the ranks."""
    asked = arguments()
    mesh = Mesh(int(os.environ.get("WORLD_SIZE", "1")) // (asked.cp * asked.pp), asked.cp, asked.pp)
    world = join_torchrun(mesh, asked.backend, TIMEOUT_S)
    try:
        run(asked, mesh, world)
    except Exception as error:
        if asked.outcomes is not None:
            RankFiles(asked.outcomes, world.rank).write_outcome(raised(world.rank, error))
        raise
    world.await_end()


def run(asked: argparse.Namespace, mesh: Mesh, world: ProcessWorld) -> None:
    """Run the workload of one rank; rank 0 prints one line when it has ended well."""
    adapter_type = load_adapter(asked.adapter)
    driver = RankDriver(adapter_type, dividing(configuration(adapter_type), mesh), world)
    RandomWorkload(driver, asked.seed).run(asked.rounds)
    if world.rank == 0:
        calls = {axis: len(made) for axis, made in world.calls.items()}
        print(f"{mesh.name} by {asked.backend}: one tree after each of {asked.rounds} rounds; collectives: {calls}")  # noqa: T201


main()
