"""Interposer: stands before torch.distributed's own verbs, for a cache that calls them without groups of ours."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import distributed

from hicache.testing.ranks.call import Call
from hicache.testing.ranks.roll_call import RollCall
from hicache.testing.violation import violation

RollCallOf = Callable[[Sequence[int], int], RollCall]
"""Gives the roll call of a group, by its ranks and by the place of this rank in it."""


class Interposer:
    """Compares each call before torch.distributed sees it. A call's purpose is the name of the function that makes it.

    `device`: where the tensors of collectives live; one that is elsewhere breaks RANK-3.
    """

    def __init__(self, roll_call_of: RollCallOf, device: str) -> None:
        self._roll_call_of = roll_call_of
        self._device = torch.device(device)

    def install(self) -> None:
        """Take the place of `all_reduce`, `broadcast` and `barrier` until this process ends."""
        for verb, operation in (("all_reduce", _reduction), ("broadcast", _broadcast), ("barrier", _barrier)):
            setattr(distributed, verb, self._before(getattr(distributed, verb), operation))

    def _before(self, verb: Callable[..., Any], operation: Callable[..., str]) -> Callable[..., Any]:
        @wraps(verb)
        def compared(*arguments: Any, group: Any = None, **options: Any) -> Any:
            tensor = next((one for one in (*arguments, *options.values()) if isinstance(one, torch.Tensor)), None)
            call = Call(operation(*arguments[1:], **options), sys._getframe(1).f_code.co_name, _count(tensor))  # noqa: SLF001
            if tensor is not None and tensor.device.type != self._device.type:
                raise violation("RANK-3", str(call), f"a tensor on {self._device}", f"one on {tensor.device}")
            ranks = distributed.get_process_group_ranks(group)
            self._roll_call_of(ranks, ranks.index(distributed.get_rank())).answer(call, "")
            return verb(*arguments, group=group, **options)

        return compared


def _reduction(op: Any = distributed.ReduceOp.SUM, *_: Any, **__: Any) -> str:
    return str(op).rpartition(".")[2]


def _broadcast(src: int | None = None, *_: Any, **options: Any) -> str:
    return f"broadcast from rank {options.get('group_src', src)}"


def _barrier(*_: Any, **__: Any) -> str:
    return "barrier"


def _count(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.numel()
