"""open_groups on stand-ins: which groups a rank creates in torch, and when."""

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
from hicache.parallel.rank_monitor import RankMonitor
from hicache.parallel.torch_group import _make_groups, open_groups
from hicache.tests.parallel.stand_ins import TP_2, Later, Members, lone_monitor, record_reductions

TWO_BY_TWO_BY_TWO = topology_of(0, tp_size=2, cp_size=2, pp_size=2, dp_size=1)


def test_every_rank_creates_all_groups_in_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    created: dict[int, list[Any]] = {}
    for rank, place in enumerate(places(TWO_BY_TWO_BY_TWO)):
        created[rank] = []

        def new_group(ranks: list[int], rank: int = rank, **options: Any) -> Members:
            created[rank].append((ranks, options))
            return Members(ranks, rank, [])

        monkeypatch.setattr(distributed, "new_group", new_group)
        own = _make_groups(place, torch.device("cpu"), 5, lone_monitor(place))
        assert list(own) == ["tp", "cp", "pp"], f"RANK-4: rank {rank} has groups along {list(own)}"
        for axis, group in own.items():
            assert group.rank == getattr(place, f"{axis}_rank"), f"RANK-5: rank {rank} is {group.rank} of {axis}"
    lists = [ranks for ranks, _ in created[0]]
    assert len(lists) == 12, f"RANK-6: expected four groups along each of three axes, got {lists}"
    for rank, calls in created.items():
        assert calls == created[0], f"RANK-6: rank {rank} creates {calls}, rank 0 creates {created[0]}"


def test_the_timeout_of_gloo_is_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[Any] = []

    def new_group(ranks: list[int], **options: Any) -> Members:
        created.append(options)
        return Members(ranks, 1, [])

    monkeypatch.setattr(distributed, "new_group", new_group)
    _make_groups(TP_2, torch.device("cpu"), 5, lone_monitor(TP_2))
    expected = [{"timeout": timedelta(seconds=5), "backend": "gloo"}]
    assert created == expected, (
        f"RANK-8: with another timeout a process with an unfinished call cannot end: expected {expected}, got {created}"
    )


def test_a_single_rank_needs_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[Any] = []
    monkeypatch.setattr(distributed, "new_group", lambda ranks, **_: created.append(ranks))
    groups = _make_groups(SINGLE_RANK, torch.device("cpu"), 5, lone_monitor(SINGLE_RANK))
    assert groups == {}, f"expected no group for a single rank, got {groups}"
    assert created == [], f"expected no group in torch, got {created}"


def test_torch_makes_no_group_before_every_rank_has_reached_the_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[Any] = []
    monkeypatch.setattr(distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(distributed, "new_group", lambda ranks, **_: created.append(ranks))
    with pytest.raises(RankError, match=r"rank 0 of world did not reach call 0 \(opening\)"):
        open_groups(TP_2, HashStore(), "cpu", 0.2)
    assert created == [], f"RANK-8: NCCL would wait for rank 0 in a group of {created}"


def test_each_group_is_opened_with_one_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    reduced = record_reductions(Later(0), monkeypatch)
    monkeypatch.setattr(RankMonitor, "wait_for_all", lambda *_: None)
    monkeypatch.setattr(distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 8)
    monkeypatch.setattr(distributed, "new_group", lambda ranks, **_: Members(ranks, 0, []))
    groups = open_groups(TWO_BY_TWO_BY_TWO, HashStore(), "cpu", 5)
    assert len(reduced) == len(groups) == 3, (
        f"NCCL connects in the first collective: expected 3 groups with one each, got {len(groups)} and {len(reduced)}"
    )


def test_a_mesh_that_is_not_the_world_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 4)
    with pytest.raises(ConfigurationError, match="is rank 1 of 2, torch says rank 1 of 4"):
        open_groups(TP_2, HashStore(), "cpu", 5)
    assert world_rank(TP_2) == 1, f"expected torch and the mesh to differ in the size alone, got {world_rank(TP_2)}"


def test_a_device_without_a_backend_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the device of a group is cpu or cuda, got meta"):
        open_groups(TP_2, HashStore(), "meta", 5)
