"""What SGLang's prefetches hold of the host: by operation, and what waits to be freed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from hicache.testing.adapters.sglang_host_pools import NAMES, SglangHostPools
from hicache.testing.adapters.sglang_pools import FULL
from hicache.testing.snapshot import FetchView
from hicache.types import Slots

COMPONENT = {pool: component for component, pool in NAMES.items()}
"""The component that SGLang's host pool of a name is of."""

Held = list[tuple[str, torch.Tensor]]
"""Names of SGLang's host pools, and slots in them."""


def held_while_waited_for(operation: Any, transfers: Iterable[Any], *, is_worked_on: bool) -> Held:
    """What an operation holds that a request waits for. `transfers`: of its other pools.

    What was not completed is the thread's that works on it, which gives it back at its end.
    """
    indices = operation.host_indices
    if indices is None:
        return held_by(transfers)
    end = len(indices) if is_worked_on else operation.completed_tokens
    return [(NAMES[FULL], indices[:end]), *held_by(transfers)]


def held_by_thread(operation: Any, transfers: Iterable[Any]) -> Held:
    """What a thread keeps of an operation that nobody waits for any more. `transfers`: those it gives back as well."""
    indices = operation.host_indices
    if indices is None:
        return []
    return [(NAMES[FULL], indices[operation.completed_tokens :]), *held_by(transfers)]


def held_by(transfers: Iterable[Any]) -> Held:
    """The host slots of transfers that have some of their own."""
    own = [one for one in transfers if one.host_indices is not None and one.indices_from_pool is None]
    return [(one.name.value, one.host_indices) for one in own]


def waiting_to_be_freed(controller: Any) -> Held:
    """What was given back, and is freed by the next step."""
    extra = {name.value: several for name, several in controller.extra_host_mem_release_queues.items()}
    queues = {NAMES[FULL]: controller.host_mem_release_queue, **extra}
    return [(name, slots) for name, several in queues.items() for slots in several.queue]


def view_of(held: Held, pools: SglangHostPools) -> FetchView | None:
    """What a snapshot shows of it, or None where it is nothing."""
    parts: dict[str, list[Slots]] = {}
    for name, slots in held:
        if len(slots):
            parts.setdefault(COMPONENT[name], []).append(pools.shown(COMPONENT[name], slots))
    host: Mapping[str, Slots] = {component: np.concatenate(several) for component, several in parts.items()}
    return FetchView(host) if host else None
