"""Processes: a subject is asked by others than this one: a new one over the same storage, or the ranks of a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from hicache.testing.adapter import load_adapter
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.mesh import Mesh
from hicache.testing.ranks.world import RankWorld
from hicache.types import Pool, Tier

from ..engine.cache_room import on_replica
from .scored_pass import ScoredPass
from .subject import Subject

START_S = 300.0
"""Until processes have started, and have opened the model."""

PATIENCE = 10
"""How much longer than the first pass all that one process asks may take."""

LESS = "less in storage"
"""The pass before which a rank has lost some of its pages."""

LOST_ONE_OF = 8


def ask_anew(subject: Subject, folder: Path, first: ScoredPass) -> ScoredPass:
    """One pass by a new process, with a new cache over the storage in a folder.

    Raises RanksFailedError, which holds its traceback, or says where it was when its time was over.
    """
    passes: list[ScoredPass] = _launched(1, first, answer_anew, subject, folder)
    return passes[0]


def ask_ranks(subject: Subject, ranks: int, first: ScoredPass) -> list[Mapping[str, ScoredPass]]:
    """Passes by name, for each rank of a tensor-parallel group: the model is whole on each, its cache is shared out.

    From no tier, from each tier below the device, and, in float32, from storages of which one has lost pages. Raises
    RanksFailedError, which holds the traceback of every rank.
    """
    with TemporaryDirectory() as folder:
        return _launched(ranks, first, answer_on_rank, subject, Path(folder))


def answer_anew(_: RankWorld, threads: int, subject: Subject, folder: Path) -> ScoredPass:
    """What `ask_anew` has a process do."""
    torch.set_num_threads(threads)
    with closing(subject.passes(load_adapter(subject.adapter), folder)) as passes:
        return subject.ask(passes)


def answer_on_rank(world: RankWorld, threads: int, subject: Subject, folder: Path) -> dict[str, ScoredPass]:
    """What `ask_ranks` has each process do, over storage of its own."""
    torch.set_num_threads(threads)
    adapter, own = load_adapter(subject.adapter), folder / f"rank{world.rank}"
    opening = subject.passes(lambda config: adapter.on_rank(on_replica(config, world.topology), world), own)
    with closing(opening) as passes:
        answered = {"first": subject.ask(passes)}
        for tier in (Tier.HOST, Tier.STORAGE):
            passes.lose_above(tier)
            answered[tier.value] = subject.ask(passes)
        if subject.dtype is torch.float32:
            passes.lose_above(Tier.STORAGE)
            if world.rank == 1:
                _lose_some(own)
            answered[LESS] = subject.ask(passes)
    return answered


def _launched(ranks: int, first: ScoredPass, entry: Callable[..., Any], subject: Subject, folder: Path) -> list[Any]:
    deadline_s = START_S + PATIENCE * first.seconds
    with TemporaryDirectory() as meeting:
        mesh = Mesh(tp_size=ranks, cp_size=1, pp_size=1)
        launch = Launch(mesh, "gloo", Path(meeting), deadline_s, deadline_s, is_recorded=True)
        # Sums are added up in another order by another number of threads.
        return launch.values(entry, torch.get_num_threads(), subject, folder)


def _lose_some(folder: Path) -> None:
    """Lose some of the objects: KV is not there when it is asked for, and what goes with it not when it is read.

    The files of objects alone have a plus sign in their names, which begin with the pool.
    """
    for file in sorted(folder.rglob("*+*"))[::LOST_ONE_OF]:
        if file.name.startswith(f"{Pool.KV.value}."):
            file.unlink()
        else:
            file.write_bytes(b"")
