"""Opinion: the ranks and the call that are named for a case: by us, by torch's level DETAIL, by its flight recorder."""

from __future__ import annotations

import io
import logging
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from torch.distributed.flight_recorder import fr_trace

from hicache.parallel.mesh import axis_ranks, places, world_size
from hicache.tests.cache.parallel.processes import Outcome
from hicache.tests.proof.divergence import ranks
from hicache.tests.proof.divergence.injected import Case


class Agreement(str, Enum):
    """How much of what was injected is named."""

    ALL = "rank and call"
    RANK = "rank, another call"
    BOTH = "call, both of two ranks"
    OTHER = "other ranks"
    NONE = "nothing"


@dataclass(frozen=True, slots=True)
class Opinion:
    """World ranks that are said to have diverged, and the index of the call, if it is said; the words."""

    named: frozenset[int]
    call: int | None
    words: str

    def of(self, case: Case) -> Agreement:
        """How far it agrees with what was injected."""
        if not self.named:
            return Agreement.NONE
        is_call = self.call == case.first_different
        if self.named == {case.rank}:
            return Agreement.ALL if is_call else Agreement.RANK
        if case.rank in self.named and len(self.named) == 2 == world_size(case.topology):
            return Agreement.BOTH if is_call else Agreement.RANK
        return Agreement.OTHER


def _others(case: Case, outcomes: Sequence[Outcome]) -> list[tuple[int, ranks.Ended]]:
    """The ranks into which nothing was injected, and how they ended; without those whose process died."""
    return [(rank, one.value) for rank, one in enumerate(outcomes) if rank != case.rank and one.value is not None]


def _ranks_in(words: str) -> frozenset[int]:
    return frozenset(int(number) for number in re.findall(r"\d+", words))


def ours(case: Case, folder: Path) -> Opinion:
    """What all other ranks raise; nothing if one of them raises nothing, or something else."""
    others = _others(case, ranks.ours(case, folder))
    words = {ended.error for _, ended in others}
    if len(others) < world_size(case.topology) - 1 or len(words) > 1 or None in words:
        return Opinion(frozenset(), None, f"the ranks differ: {others}")
    (error,) = words
    named = _ranks_in(" ".join(re.findall(r"\(world ranks? ([\d, ]+)\)", str(error))))
    axes = len({call.axis for call in case.calls})
    opened = axes + 3  # collectives of the opening, and from 1
    for index, call in enumerate(case.calls):
        number = case.number(index) + 1  # after the barrier of the opening
        silent = f"of {call.axis} did not reach call {number} ({call.verb.value} {call.purpose})"
        if f"as collective {opened + index} (world" in str(error) or silent in str(error):
            return Opinion(named, index, str(error))
    return Opinion(named, None, str(error))


def detail(case: Case, folder: Path) -> Opinion:
    """The rank that most of the other ranks name, and the first call in which one of them does."""
    said = [
        (rank, ended.call)
        for of, ended in _others(case, ranks.detail(case, folder))
        if ended.call is not None
        for rank in _named_by_detail(case, of, ended)
    ]
    if not said:
        return Opinion(frozenset(), None, "no rank is named")
    counts = Counter(rank for rank, _ in said)
    most = frozenset(rank for rank, count in counts.items() if count == max(counts.values()))
    return Opinion(most, min(call for rank, call in said if rank in most), f"ranks and calls: {said}")


def _named_by_detail(case: Case, rank: int, ended: ranks.Ended) -> list[int]:
    """The world ranks that the error of this rank names, which has the ranks of its group."""
    members = _group_of(case, rank, case.calls[ended.call or 0].axis)
    named = re.findall(r"but Rank (\d+) is running|Ranks? ([\d, ]+) failed to pass monitoredBarrier", ended.error or "")
    return [members[place] for words in named for place in _ranks_in(" ".join(words))]


def recorder(case: Case, folder: Path) -> Opinion:
    """The ranks of the first collective about which torch's own analyser of the flight recorder complains."""
    ranks.recorder(case, folder)
    groups = dict(_groups_of(case))
    for rank in range(world_size(case.topology)):
        path = folder / f"rank{rank}"
        # Gloo leaves out which ranks a group has.
        trace: dict[str, Any] = pickle.loads(path.read_bytes())  # noqa: S301 - a child of this process wrote it
        trace["pg_config"] = {
            name: {"name": name, "desc": "undefined", "ranks": str(list(members))}
            for name, (_, members) in groups.items()
            if rank in members
        }
        path.write_bytes(pickle.dumps(trace))
    found = sorted(_complaints(case, groups, _analysed(folder)))
    if not found:
        return Opinion(frozenset(), None, "the analyser finds nothing")
    first = found[0][0]
    named = frozenset(rank for index, accused in found if index == first for rank in accused)
    return Opinion(named, first, f"calls and ranks: {found}")


def _analysed(folder: Path) -> Sequence[Any]:
    """The collectives as the analyser sees them."""
    database = folder / "database"
    logging.disable()
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            fr_trace.main([str(folder), "--prefix", "rank", "--output", str(database)])
    finally:
        logging.disable(logging.NOTSET)
    _, found = pickle.loads(database.read_bytes())  # noqa: S301 - written above
    collectives: Sequence[Any] = found.collectives
    return collectives


def _complaints(
    case: Case, groups: Mapping[str, tuple[str, Sequence[int]]], collectives: Sequence[Any]
) -> Iterator[tuple[int, list[int]]]:
    for one in collectives:
        accused = sorted({*(one.missing_ranks or ()), *(one.mismatch_collectives or ())})
        axis, _ = groups[one.group_id]
        along = [index for index, call in enumerate(case.calls) if call.axis == axis]
        if accused:
            # A rank that calls twice has one more call than there are.
            yield along[min(one.collective_seq_id, len(along)) - 1], accused


def _groups_of(case: Case) -> Iterator[tuple[str, tuple[str, Sequence[int]]]]:
    """By torch's name the axis and the world ranks of each group. Torch counts them from 1, in the order of making."""
    lists = [(axis, members) for axis, of_axis in axis_ranks(case.topology).items() for members in of_axis]
    for number, group in enumerate((group for group in lists if len(group[1]) > 1), start=1):
        yield str(number), group


def _group_of(case: Case, rank: int, axis: str) -> Sequence[int]:
    return next(members for members in axis_ranks(places(case.topology)[rank])[axis] if rank in members)


OPINIONS: Mapping[str, Callable[[Case, Path], Opinion]] = {"hicache": ours, "DETAIL": detail, "recorder": recorder}
