"""Some of the injected divergences: the groups of the cache name the rank and the call, and what torch's checks see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hicache.parallel.mesh import world_size
from hicache.tests.proof.divergence import ranks
from hicache.tests.proof.divergence.injected import CHANGES, KINDS, Case, draw
from hicache.tests.proof.divergence.opinions import Agreement, detail, ours

SMALL = ("tp3", "tp2-cp2")


def small(kind: str) -> Case:
    """The first case of a kind on three or four ranks."""
    return next(case for seed in range(1000) if (case := draw(seed)).kind == kind and case.mesh in SMALL)


@pytest.mark.parametrize("seed", range(3 * len(KINDS)))
def test_a_case_has_one_rank_that_makes_other_calls_and_an_end_that_all_reach(seed: int) -> None:
    case = draw(seed)
    different = [rank for rank in range(world_size(case.topology)) if case.made_by(rank) != case.calls]
    assert different == [case.rank], f"{case}: expected one rank to make other calls, got {different}"
    axes = {call.axis for call in case.calls}
    assert case.first_different < len(case.calls) - len(axes), f"{case}: it is invisible after the last decision"


def test_a_seed_gives_one_case() -> None:
    assert draw(7) == draw(7), f"expected the same case twice, got {draw(7)} and {draw(7)}"
    kinds = {draw(seed).kind for seed in range(len(KINDS))}
    assert kinds == set(KINDS), f"expected each kind once, missing {set(KINDS) - kinds}"


@pytest.mark.parametrize("kind", CHANGES)
def test_every_other_rank_names_the_rank_and_the_call(kind: str, tmp_path: Path) -> None:
    case = small(kind)
    opinion = ours(case, tmp_path)
    assert opinion.of(case) is Agreement.ALL, f"RANK-2: {case}, from call {case.first_different} on: got {opinion}"


def test_where_no_rank_diverges_none_is_named(tmp_path: Path) -> None:
    case = replace(small("skips a call"), rank=-1)
    ended = [outcome.value for outcome in ranks.ours(case, tmp_path)]
    expected = [ranks.Ended(None, None)] * world_size(case.topology)
    assert ended == expected, f"RANK-2: no rank diverges: expected {expected}, got {ended}"


def test_the_check_of_torch_agrees_where_the_sizes_differ(tmp_path: Path) -> None:
    # The flight recorder is asked at night alone: gloo ends a process here, and its records of the other
    # ranks depends on who comes first.
    case = next(
        case for seed in range(1000) if (case := draw(seed)).kind == "passes more values" and case.mesh == "tp3"
    )
    opinion = detail(case, tmp_path)
    assert opinion.of(case) is Agreement.ALL, f"{case}: expected rank {case.rank} and its call, got {opinion}"
