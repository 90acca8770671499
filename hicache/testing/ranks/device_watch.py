"""DeviceWatch: sees on which devices the tensors lie that torch.distributed is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

import torch
from torch import distributed

VERBS = ("all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "send", "recv")


class DeviceWatch:
    """Stands before the verbs of torch.distributed in this process. `seen`: the types of devices, such as `cuda`."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def install(self) -> None:
        """Look at all that is given from now on, until this process ends."""
        for verb in VERBS:
            setattr(distributed, verb, self._before(getattr(distributed, verb)))

    def _before(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(verb)
        def watched(*arguments: Any, **options: Any) -> Any:
            self.seen.update(tensor.device.type for tensor in _tensors((*arguments, *options.values())))
            return verb(*arguments, **options)

        return watched


def _tensors(given: Iterable[Any]) -> Iterator[torch.Tensor]:
    for one in given:
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, list | tuple):
            yield from _tensors(one)
