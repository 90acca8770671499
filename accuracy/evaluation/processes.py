"""Passes in other processes: in a new process over the same storage, or on the ranks of a group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from hicache.testing.load import load_adapter
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.world import Mesh, RankWorld
from hicache.types import Pool, Tier

from ..engine.cache_config import on_replica
from .comparison import ComparedPass, compared, differences, missing_hits, missing_partial_hits
from .evaluate import ScoredPass
from .subject import Subject

START_S = 300.0
"""The time for processes to start and to open the model."""

DEADLINE_FACTOR = 10
"""All passes of one process may take this many times as long as the first pass."""

LOST_PAGES = "lost pages"
"""The name of the pass before which a rank loses some of its stored pages."""

LOST_SHARE = 8
"""One of this many stored objects is lost."""


def ask_new_process(subject: Subject, folder: Path, first: ScoredPass) -> ScoredPass:
    """Run one pass in a new process, with a new cache over the storage in a folder.

    Raises RanksFailedError with the traceback of the process, or with its stack when the deadline has passed.
    """
    passes: list[ScoredPass] = _launched(1, first, answer_in_new_process, subject, folder)
    return passes[0]


def ask_ranks(subject: Subject, ranks: int, first: ScoredPass) -> list[Mapping[str, ScoredPass]]:
    """Passes by name, for each rank of a tensor-parallel group. Each rank runs the whole model, with its own cache.

    The passes are: the first one, one from each tier below the device and, in float32, one after a rank has lost stored
    pages. Raises RanksFailedError with the traceback of every rank.
    """
    with TemporaryDirectory() as folder:
        return _launched(ranks, first, answer_on_rank, subject, Path(folder))


def answer_in_new_process(_: RankWorld, threads: int, subject: Subject, folder: Path) -> ScoredPass:
    """The function that `ask_new_process` runs in the new process."""
    torch.set_num_threads(threads)
    with closing(subject.passes(load_adapter(subject.adapter), folder)) as passes:
        return subject.ask(passes)


def answer_on_rank(world: RankWorld, threads: int, subject: Subject, folder: Path) -> dict[str, ScoredPass]:
    """The function that `ask_ranks` runs on each rank, over its own storage."""
    torch.set_num_threads(threads)
    adapter, own = load_adapter(subject.adapter), folder / f"rank{world.rank}"
    opening = subject.passes(lambda config: adapter.on_rank(on_replica(config, world.topology), world), own)
    with closing(opening) as passes:
        answered = {"first": subject.ask(passes)}
        for tier in (Tier.HOST, Tier.STORAGE):
            passes.drop_above(tier)
            answered[tier.value] = subject.ask(passes)
        if subject.dtype is torch.float32:
            passes.drop_above(Tier.STORAGE)
            if world.rank == 1:
                _lose_pages(own)
            answered[LOST_PAGES] = subject.ask(passes)
    return answered


def _launched(ranks: int, first: ScoredPass, entry: Callable[..., Any], subject: Subject, folder: Path) -> list[Any]:
    deadline_s = START_S + DEADLINE_FACTOR * first.seconds
    with TemporaryDirectory() as rendezvous:
        mesh = Mesh(tp_size=ranks, cp_size=1, pp_size=1)
        launch = Launch(mesh, "gloo", Path(rendezvous), deadline_s, deadline_s, is_recorded=True)
        # Another number of threads would add sums in another order.
        return launch.values(entry, torch.get_num_threads(), subject, folder)


def _lose_pages(folder: Path) -> None:
    """Lose some of the stored objects: KV objects no longer exist, objects of other pools exist and cannot be read.

    Only the files of objects have a plus sign in their names, which begin with the pool.
    """
    for file in sorted(folder.rglob("*+*"))[::LOST_SHARE]:
        if file.name.startswith(f"{Pool.KV.value}."):
            file.unlink()
        else:
            file.write_bytes(b"")


def compared_ranks(
    first: ScoredPass, by_rank: Sequence[Mapping[str, ScoredPass]], dtype: torch.dtype, page_size: int
) -> Iterator[ComparedPass]:
    """For each pass name, the pass of rank 0 with the problems of all ranks. `first`: the first pass of one rank alone.

    Its figures compare rank 0 with rank 0's own first pass.
    """
    for name in by_rank[0]:
        passes = [own[name] for own in by_rank]
        problems = [
            problem
            for rank, own in enumerate(passes)
            for problem in (
                *differences(f"rank {rank}: {name}", dtype, first, own, same_bytes=name != LOST_PAGES),
                *_missing_hits(f"rank {rank}: {name}", name, own, page_size),
                *_rank_differences(f"rank {rank} beside rank 0: {name}", dtype, passes[0], own),
            )
        ]
        yield compared(f"{len(passes)} ranks: {name}", by_rank[0]["first"], passes[0], problems)


def _missing_hits(place: str, name: str, own: ScoredPass, page_size: int) -> Iterator[str]:
    if name in (Tier.HOST.value, Tier.STORAGE.value):
        yield from missing_hits(place, Tier(name), page_size, own)
    if name == LOST_PAGES:
        yield from missing_partial_hits(place, page_size, own)


def _rank_differences(place: str, dtype: torch.dtype, zeroth: ScoredPass, own: ScoredPass) -> Iterator[str]:
    yield from differences(place, dtype, zeroth, own, same_bytes=True)
    for number, (one, other) in enumerate(zip(zeroth.requests, own.requests, strict=True)):
        if one.hits != other.hits:
            yield f"{place}: request {number}: expected {one.hits}, got {other.hits}"
