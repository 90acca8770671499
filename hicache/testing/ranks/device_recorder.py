"""DeviceRecorder: records the devices of the tensors that are passed to torch.distributed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

import torch
from torch import distributed

from hicache.testing.violation import violation

VERBS = ("all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "send", "recv")

NO_DATA = "meta"
"""The device of a tensor without data: a collective on it may hang."""


class DeviceRecorder:
    """Wraps the functions of torch.distributed in this process. `seen`: device types, such as `cuda`.

    A tensor without data is refused with InvariantError.
    """

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def install(self) -> None:
        """Record every call from now on, until this process ends."""
        for verb in VERBS:
            setattr(distributed, verb, self._before(getattr(distributed, verb)))

    def _before(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(verb)
        def watched(*arguments: Any, **options: Any) -> Any:
            devices = {tensor.device.type for tensor in _tensors((*arguments, *options.values()))}
            self.seen |= devices
            if NO_DATA in devices:
                raise violation("RANK-3", verb.__name__, "a tensor on the device of the group", f"one on {NO_DATA}")
            return verb(*arguments, **options)

        return watched


def _tensors(given: Iterable[Any]) -> Iterator[torch.Tensor]:
    for one in given:
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, list | tuple):
            yield from _tensors(one)
