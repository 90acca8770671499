"""The slot census: every tensor of a cache that has a row for each slot, or for some slots, found from a few roots.

A cache that keeps something beside its pools, such as scales, drafts or routed experts, must bring it back with the
slots. The census fills each tensor with values of its own, so that a row that was not brought back differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from hicache.errors import ConfigurationError
from hicache.optional_torch import torch
from hicache.types import Component, Slots

LEAVES = (str, bytes, memoryview, int, float, complex, type(None), type, Enum, torch.dtype, torch.device)
FUNCTIONS = (FunctionType, MethodType, ModuleType)


@dataclass(frozen=True, slots=True, eq=False)
class SlotTensor:
    """A tensor that is indexed by slot.

    `path`: from the root, by names and numbers with dots. `rows`: the tensor with the axis of the slots first, without
    a copy. `tokens_per_row`: slots that follow each other and share a row.
    """

    path: str
    component: str
    tokens_per_row: int
    rows: torch.Tensor

    def fill(self, turn: int) -> None:
        """Give every row bytes that no other row has, and that it has in no other turn."""
        size = self.rows.numel() * self.rows.element_size()
        drawn = np.random.default_rng([turn, *self.path.encode()]).integers(0, 256, size, dtype=np.uint8)
        if self.rows.dtype == torch.bool:
            drawn &= 1
        self.rows.copy_(torch.from_numpy(drawn).view(self.rows.dtype).view(self.rows.shape))

    def read(self, slots: Slots) -> bytes:
        """The bytes of the rows that have some slots."""
        numbers = torch.from_numpy(np.unique(slots // self.tokens_per_row)).to(self.rows.device)
        found = self.rows.index_select(0, numbers).contiguous().cpu()
        return found.view(torch.uint8).numpy().tobytes()


def find_slot_tensors(
    roots: Mapping[str, object], counts: Mapping[str, int], page_size: int, axes: Mapping[str, int]
) -> list[SlotTensor]:
    """Every tensor below the roots whose axis of slots is as long as the slots of a component, or the rows with them.

    Walks attributes, mappings, lists and tuples. Memory that is found twice counts once. `counts`: the slots of each
    component, with the padding slots; a row may have as many tokens as divide the page size. `axes`: by the pattern of
    a path, the axis of the slots where it is not the first. Raises ConfigurationError where a length fits two
    components.
    """
    found: dict[tuple[int, int], SlotTensor] = {}
    for path, tensor in _tensors(roots):
        axis = next((axis for pattern, axis in axes.items() if fnmatchcase(path, pattern)), 0)
        if not tensor.numel() or tensor.dim() <= axis:
            continue
        fits = dict(_fits(tensor.shape[axis], counts, page_size))
        if len(fits) > 1:
            raise ConfigurationError(
                f"{path} has {tensor.shape[axis]} rows, which fits {sorted(fits)} of {dict(counts)}"
            )
        for component, tokens in fits.items():
            place = tensor.data_ptr(), tensor.numel() * tensor.element_size()
            found.setdefault(place, SlotTensor(path, component, tokens, tensor.movedim(axis, 0)))
    return list(found.values())


def _fits(length: int, counts: Mapping[str, int], page_size: int) -> Iterator[tuple[str, int]]:
    """The components whose slots so many rows have, with the slots of a row. A state has a row of its own."""
    for component, slots in counts.items():
        tokens = slots // length
        page = 1 if component == Component.MAMBA else page_size
        if tokens * length == slots and tokens and page % tokens == 0:
            yield component, tokens


def _tensors(roots: Mapping[str, object]) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor and array below the roots with its path, the nearest first. Each object is visited once."""
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = list(roots.items())
    for path, one in waiting:
        if id(one) in seen or isinstance(one, (*LEAVES, *FUNCTIONS)):
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            yield path, one
        elif isinstance(one, np.ndarray):
            if one.flags.writeable and one.dtype.kind in "biufc":
                yield path, torch.from_numpy(one)
        else:
            waiting += [(f"{path}.{name}", value) for name, value in _members(one)]


def _members(one: object) -> Iterator[tuple[object, object]]:
    if isinstance(one, Mapping):
        yield from one.items()
    elif isinstance(one, list | tuple):
        yield from enumerate(one)
    else:
        names = [name for owner in type(one).__mro__ for name in vars(owner).get("__slots__", ())]
        yield from ((name, getattr(one, name)) for name in names if hasattr(one, name))
        yield from getattr(one, "__dict__", {}).items()
