"""What is expected of the ranks that survive, and of all when none is lost."""

from __future__ import annotations

from collections.abc import Mapping

from hicache.config import Topology
from hicache.parallel.mesh import axis_ranks
from hicache.tests.parallel.processes import Outcome


def check_agreed(outcomes: list[Outcome], mesh: Topology) -> None:
    """Each group of the mesh agreed on the numbers of its own ranks."""
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
    """Every survivor named these ranks of the group, refused the next call without a collective, and ended.

    How long a survivor waits is tested on a clock that the test moves, in test_roll_call.py.
    """
    messages = {outcome.value[0].message for outcome in outcomes.values()}
    assert len(messages) == 1, f"RANK-8: the survivors raise {messages}"
    for rank, outcome in outcomes.items():
        first, second = outcome.value
        assert (first.group, first.ranks) == (group, ranks), f"RANK-8: expected {ranks}, rank {rank} says {first}"
        assert "(MIN progress)" in first.message, f"RANK-8: the purpose is told: {first.message}"
        assert second.message == first.message, f"RANK-8: rank {rank} says {first.message}, then {second.message}"
        assert second.collectives == 0, (
            f"RANK-8: rank {rank} began {second.collectives} collectives in a group that has failed, expected none"
        )
        assert outcome.exit_code == 0, f"RANK-8: rank {rank} ended with {outcome.exit_code}"


def survivors(outcomes: list[Outcome], *lost: int) -> dict[int, Outcome]:
    """All but those that were lost, by rank."""
    return {rank: outcome for rank, outcome in enumerate(outcomes) if rank not in lost}
