"""The functions of torch.distributed, wrapped in this process: their calls are compared, their devices recorded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from typing import Any

from hicache.optional_torch import distributed, torch
from hicache.testing.ranks.calls import CollectiveCall, ComparedCalls
from hicache.testing.violation import violation

ComparedCallsOf = Callable[[str, Sequence[int], int], ComparedCalls]
"""Returns the compared calls of a group, given its name, its ranks and this rank's index among them."""


VERBS = ("all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "send", "recv")

POINT_TO_POINT = ("send", "recv")

NO_DATA = "meta"
"""The device of a tensor without data: a collective on it may hang."""


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
            tensor, group = given.get("tensor"), given.get("group") or distributed.group.WORLD
            count = 0 if tensor is None else tensor.numel()
            call = CollectiveCall(operation(given), sys._getframe(1).f_code.co_name, count)  # noqa: SLF001
            if tensor is not None and tensor.device.type != self._device.type:
                raise violation("RANK-3", str(call), f"a tensor on {self._device}", f"one on {tensor.device}")
            ranks = distributed.get_process_group_ranks(group)
            place = ranks.index(distributed.get_rank())
            self._compared_calls_of(_name(group, ranks), ranks, place).compare(call, "")
            return verb(*arguments, **options)

        return compared


def _name(group: Any, ranks: Sequence[int]) -> str:
    """The name of a group. Several may have the same ranks, and torch numbers them alike on each rank."""
    own = f"ranks {', '.join(map(str, ranks))}"
    return own if group is None or group is distributed.group.WORLD else f"{own} of group {group.group_name}"


def _reduction(given: Mapping[str, Any]) -> str:
    return str(given.get("op", distributed.ReduceOp.SUM)).rpartition(".")[2]


def _broadcast(given: Mapping[str, Any]) -> str:
    return f"broadcast from rank {given.get('group_src', given.get('src'))}"


def _barrier(_: Mapping[str, Any]) -> str:
    return "barrier"


class DeviceRecorder:
    """Wraps the functions of torch.distributed in this process. `seen`: device types, such as `cuda`.

    `backends`: those of groups of several ranks in which a collective has returned, such as `nccl`. A tensor without
    data is refused with InvariantError.
    """

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.backends: set[str] = set()

    def install(self) -> None:
        """Record every call from now on, until this process ends."""
        for verb in VERBS:
            setattr(distributed, verb, self._before(getattr(distributed, verb)))

    def _before(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        form = signature(verb)
        is_collective = verb.__name__ not in POINT_TO_POINT

        @wraps(verb)
        def watched(*arguments: Any, **options: Any) -> Any:
            devices = {tensor.device.type for tensor in _tensors((*arguments, *options.values()))}
            self.seen |= devices
            if NO_DATA in devices:
                raise violation("RANK-3", verb.__name__, "a tensor on the device of the group", f"one on {NO_DATA}")
            # Asked before the call: a group may be aborted meanwhile.
            shared = (
                _shared_backend(form.bind(*arguments, **options).arguments.get("group")) if is_collective else set()
            )
            result = verb(*arguments, **options)
            self.backends |= shared
            return result

        return watched


def _shared_backend(group: Any) -> set[str]:
    """The backend of a group, if the group has several ranks."""
    is_shared = distributed.is_initialized() and distributed.get_world_size(group) > 1
    return {str(distributed.get_backend(group))} if is_shared else set()


def _tensors(given: Iterable[Any]) -> Iterator[torch.Tensor]:
    for one in given:
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, list | tuple):
            yield from _tensors(one)


@contextmanager
def compare_new_groups(all_ranks: ComparedCalls) -> Iterator[None]:
    """Inside the block, a rank that makes another group than the others, or none, is named on every rank (RANK-6)."""
    new_group = distributed.new_group

    @wraps(new_group)
    def compared(ranks: Sequence[int] | None = None, *arguments: Any, **options: Any) -> Any:
        members = "all ranks" if ranks is None else f"ranks {', '.join(map(str, ranks))}"
        all_ranks.compare(CollectiveCall("new_group", members, 0), "")
        return new_group(ranks, *arguments, **options)

    distributed.new_group = compared
    try:
        yield
    finally:
        distributed.new_group = new_group
