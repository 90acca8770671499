"""The host slots that SGLang's prefetches hold, by operation, and those that wait to be freed."""

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
"""The component of each of SGLang's host pools, by the pool's name."""

Held = list[tuple[str, torch.Tensor]]
"""Names of SGLang's host pools, with slots in them."""


def held_for_caller(operation: Any, transfers: Iterable[Any], *, is_worked_on: bool) -> Held:
    """The slots of an operation that a request waits for. `transfers`: those of its other pools.

    Slots that are not completed belong to the thread that works on the operation, which frees them at its end.
    """
    indices = operation.host_indices
    if indices is None:
        return held_by(transfers)
    end = len(indices) if is_worked_on else operation.completed_tokens
    return [(NAMES[FULL], indices[:end]), *held_by(transfers)]


def held_by_thread(operation: Any, transfers: Iterable[Any]) -> Held:
    """The slots that a thread holds of an operation without a waiting request. `transfers`: it frees them too."""
    indices = operation.host_indices
    if indices is None:
        return []
    return [(NAMES[FULL], indices[operation.completed_tokens :]), *held_by(transfers)]


def held_by(transfers: Iterable[Any]) -> Held:
    """The host slots of transfers that have their own."""
    own = [one for one in transfers if one.host_indices is not None and one.indices_from_pool is None]
    return [(one.name.value, one.host_indices) for one in own]


def held_until_next_step(controller: Any) -> Held:
    """The slots that were given back and will be freed by the next step."""
    extra = {name.value: several for name, several in controller.extra_host_mem_release_queues.items()}
    queues = {NAMES[FULL]: controller.host_mem_release_queue, **extra}
    return [(name, slots) for name, several in queues.items() for slots in several.queue]


def view_of(held: Held, pools: SglangHostPools) -> FetchView | None:
    """The view of these slots for a snapshot, or None when there are none."""
    parts: dict[str, list[Slots]] = {}
    for name, slots in held:
        if len(slots):
            parts.setdefault(COMPONENT[name], []).append(pools.shown(COMPONENT[name], slots))
    host: Mapping[str, Slots] = {component: np.concatenate(several) for component, several in parts.items()}
    return FetchView(host) if host else None
