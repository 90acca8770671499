"""Checks of the outcomes of ranks: of all ranks when none is lost, and of the survivors when some are."""

from __future__ import annotations

from collections.abc import Mapping

from hicache.config import Topology
from hicache.parallel.mesh import axis_ranks
from hicache.tests.parallel.processes import Outcome


def check_agreed(outcomes: list[Outcome], mesh: Topology) -> None:
    """Check that each group of the mesh reduced the numbers of its own ranks."""
    for axis, lists in axis_ranks(mesh).items():
        for ranks in (ranks for ranks in lists if len(ranks) > 1):
            low, high = min(ranks), max(ranks)
            least, greatest = [low, -high, 2**62 + low], [high, -low, 2**62 + high]
            first = [low, -low, 2**62 + low]
            for place, rank in enumerate(ranks):
                expected = (axis, place, len(ranks), least, greatest, first)
                found = outcomes[rank].value[axis]
                assert found == expected, f"RANK-4: rank {rank} of {ranks}: expected {expected}, got {found}"


def check_named(outcomes: Mapping[int, Outcome], group: str, ranks: tuple[int, ...]) -> None:
    """Check that every survivor named these ranks of the group, began no collective in the next call, and ended.

    test_rank_monitor.py tests how long a survivor waits, on a virtual clock.
    """
    messages = {outcome.value[0].message for outcome in outcomes.values()}
    assert len(messages) == 1, f"RANK-8: the survivors raise {messages}"
    for rank, outcome in outcomes.items():
        first, second = outcome.value
        assert (first.group, first.ranks) == (group, ranks), f"RANK-8: expected {ranks}, rank {rank} says {first}"
        assert "(MIN progress)" in first.message, f"RANK-8: expected the purpose, MIN progress, in {first.message!r}"
        assert second.message == first.message, f"RANK-8: rank {rank} says {first.message}, then {second.message}"
        assert second.collectives == 0, (
            f"RANK-8: rank {rank} began {second.collectives} collectives in a group that has failed, expected none"
        )
        assert outcome.exit_code == 0, f"RANK-8: rank {rank} ended with {outcome.exit_code}"


def survivors(outcomes: list[Outcome], *lost: int) -> dict[int, Outcome]:
    """The outcomes of all ranks that were not lost, by rank."""
    return {rank: outcome for rank, outcome in enumerate(outcomes) if rank not in lost}
