"""open_groups on stand-ins: which groups a rank asks torch for, and when."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import distributed
from torch.distributed import HashStore  # type: ignore[attr-defined]

from hicache.config import SINGLE_RANK
from hicache.errors import ConfigurationError, RankError
from hicache.parallel.mesh import places, topology_of, world_rank
from hicache.parallel.roll_call import RollCall
from hicache.parallel.torch_group import _make_groups, open_groups
from hicache.tests.parallel.stand_ins import TP_2, Later, Members, a_roll_call, hand_back

TWO_BY_TWO_BY_TWO = topology_of(0, tp_size=2, cp_size=2, pp_size=2, dp_size=1)


def test_every_rank_asks_for_all_groups_in_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[int, list[Any]] = {}
    for rank, place in enumerate(places(TWO_BY_TWO_BY_TWO)):
        asked[rank] = []

        def new_group(ranks: list[int], rank: int = rank, **options: Any) -> Members:
            asked[rank].append((ranks, options))
            return Members(ranks, rank, [])

        monkeypatch.setattr(distributed, "new_group", new_group)
        own = _make_groups(place, torch.device("cpu"), 5, a_roll_call(place))
        assert list(own) == ["tp", "cp", "pp"], f"RANK-4: rank {rank} has groups along {list(own)}"
        for axis, group in own.items():
            assert group.rank == getattr(place, f"{axis}_rank"), f"RANK-5: rank {rank} is {group.rank} of {axis}"
    lists = [ranks for ranks, _ in asked[0]]
    assert len(lists) == 12, f"RANK-6: four groups along each of three axes, asked for were {lists}"
    for rank, calls in asked.items():
        assert calls == asked[0], f"RANK-6: rank {rank} asked for {calls}, rank 0 for {asked[0]}"


def test_gloo_gives_up_with_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def new_group(ranks: list[int], **options: Any) -> Members:
        asked.append(options)
        return Members(ranks, 1, [])

    monkeypatch.setattr(distributed, "new_group", new_group)
    _make_groups(TP_2, torch.device("cpu"), 5, a_roll_call(TP_2))
    expected = [{"timeout": timedelta(seconds=5), "backend": "gloo"}]
    assert asked == expected, f"RANK-8: a process with an unfinished call could not end: {asked}"


def test_a_rank_alone_needs_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(distributed, "new_group", lambda ranks, **_: asked.append(ranks))
    assert _make_groups(SINGLE_RANK, torch.device("cpu"), 5, a_roll_call(SINGLE_RANK)) == {}, "nobody to agree with"
    assert asked == [], f"torch was asked for {asked}"


def test_torch_makes_no_group_before_every_rank_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(distributed, "new_group", lambda ranks, **_: asked.append(ranks))
    with pytest.raises(RankError, match=r"rank 0 of world did not come to call 0 \(opening\)"):
        open_groups(TP_2, HashStore(), "cpu", 0.2)
    assert asked == [], f"RANK-8: NCCL would wait for rank 0 in a group of {asked}"


def test_groups_are_open_when_their_ranks_have_met_there(monkeypatch: pytest.MonkeyPatch) -> None:
    given = hand_back(Later(0), monkeypatch)
    monkeypatch.setattr(RollCall, "assemble", lambda *_: None)
    monkeypatch.setattr(distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 8)
    monkeypatch.setattr(distributed, "new_group", lambda ranks, **_: Members(ranks, 0, []))
    groups = open_groups(TWO_BY_TWO_BY_TWO, HashStore(), "cpu", 5)
    assert len(given) == len(groups) == 3, (
        f"NCCL connects with the first collective: {len(given)} in {len(groups)} groups"
    )


def test_a_mesh_that_is_not_the_world_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 4)
    with pytest.raises(ConfigurationError, match="is rank 1 of 2, torch says rank 1 of 4"):
        open_groups(TP_2, HashStore(), "cpu", 5)
    assert world_rank(TP_2) == 1, "the rank is right, the size is not"


def test_a_device_without_a_backend_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="groups are on cpu or cuda, not on meta"):
        open_groups(TP_2, HashStore(), "meta", 5)
