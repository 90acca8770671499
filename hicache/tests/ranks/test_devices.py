"""DeviceRecorder and Interposer: they record the devices of tensors, and refuse a tensor on the wrong device."""

from __future__ import annotations

from functools import wraps

import pytest
import torch
from torch import distributed

from hicache.errors import InvariantError
from hicache.testing.ranks.calls import ComparedCalls
from hicache.testing.ranks.interposer import VERBS, DeviceRecorder, Interposer


@pytest.fixture(autouse=True)
def entered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the collectives that were entered. Each is replaced by a function that does nothing."""
    verbs: list[str] = []

    def replace(verb: str) -> None:
        monkeypatch.setattr(distributed, verb, wraps(getattr(distributed, verb))(lambda *_, **__: verbs.append(verb)))

    for verb in (*VERBS, "barrier"):
        replace(verb)
    return verbs


def nothing_compared(*_: object) -> ComparedCalls:
    raise AssertionError("a tensor on another device is refused before it is compared")


def test_every_tensor_is_seen_also_one_in_a_list(entered: list[str]) -> None:
    recorder = DeviceRecorder()
    recorder.install()
    distributed.all_reduce(torch.ones(1))
    assert recorder.seen == {"cpu"}, f"RANK-3: expected to see the device of the tensor, got {recorder.seen}"
    with pytest.raises(InvariantError, match="RANK-3: all_gather: expected a tensor on the device of the group, got"):
        distributed.all_gather([torch.ones(1, device="meta")], torch.ones(1))
    assert recorder.seen == {"meta", "cpu"}, f"RANK-3: expected the tensors of the list, too, got {recorder.seen}"
    assert entered == ["all_reduce"], f"expected a tensor without data not to be passed on, got {entered}"


def test_a_tensor_on_another_device_is_refused_before_the_collective(entered: list[str]) -> None:
    Interposer(nothing_compared, "meta").install()
    with pytest.raises(
        InvariantError, match=r"RANK-3: MIN test_a_tensor\w+: expected a tensor on meta, got one on cpu"
    ):
        distributed.all_reduce(torch.ones(1), distributed.ReduceOp.MIN, None)
    assert not entered, f"RANK-3: expected the collective not to be entered, got {entered}"
