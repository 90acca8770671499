"""Interposer: wraps the functions of torch.distributed, for a cache that does not use the kit's groups."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import signature
from typing import Any

import torch
from torch import distributed

from hicache.testing.ranks.call import Call
from hicache.testing.ranks.compared_calls import ComparedCalls
from hicache.testing.violation import violation

ComparedCallsOf = Callable[[Sequence[int], int], ComparedCalls]
"""Returns the compared calls of a group, given its ranks and this rank's index among them."""


class Interposer:
    """Compares each call before torch.distributed runs it. A call's purpose is the name of the calling function.

    `device`: the device of the collectives' tensors; a tensor on another device violates RANK-3.
    """

    def __init__(self, compared_calls_of: ComparedCallsOf, device: str) -> None:
        self._compared_calls_of = compared_calls_of
        self._device = torch.device(device)

    def install(self) -> None:
        """Replace `all_reduce`, `broadcast` and `barrier` until this process ends."""
        for verb, operation in (("all_reduce", _reduction), ("broadcast", _broadcast), ("barrier", _barrier)):
            setattr(distributed, verb, self._before(getattr(distributed, verb), operation))

    def _before(self, verb: Callable[..., Any], operation: Callable[[Mapping[str, Any]], str]) -> Callable[..., Any]:
        form = signature(verb)

        @wraps(verb)
        def compared(*arguments: Any, **options: Any) -> Any:
            given = form.bind(*arguments, **options).arguments
            tensor, group = given.get("tensor"), given.get("group")
            count = 0 if tensor is None else tensor.numel()
            call = Call(operation(given), sys._getframe(1).f_code.co_name, count)  # noqa: SLF001
            if tensor is not None and tensor.device.type != self._device.type:
                raise violation("RANK-3", str(call), f"a tensor on {self._device}", f"one on {tensor.device}")
            ranks = distributed.get_process_group_ranks(group)
            self._compared_calls_of(ranks, ranks.index(distributed.get_rank())).compare(call, "")
            return verb(*arguments, **options)

        return compared


def _reduction(given: Mapping[str, Any]) -> str:
    return str(given.get("op", distributed.ReduceOp.SUM)).rpartition(".")[2]


def _broadcast(given: Mapping[str, Any]) -> str:
    return f"broadcast from rank {given.get('group_src', given.get('src'))}"


def _barrier(_: Mapping[str, Any]) -> str:
    return "barrier"
