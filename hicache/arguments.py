"""Checks of a verb's arguments: a wrong one raises at once, with its name and its value, and nothing has changed."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from hicache.errors import ArgumentError, SlotError
from hicache.types import Slots

T = TypeVar("T")

SLOT_TYPE = np.dtype(np.int64)


def require_integer(name: str, value: object) -> int:
    """The value, an integer. Raises ArgumentError for another type, such as a float or a bool."""
    # Not isinstance: a bool would pass as an integer.
    if type(value) is not int and not isinstance(value, np.integer):
        raise ArgumentError(f"{name} is {value!r} ({type(value).__name__}), not an integer")
    return int(value)


def require_count(name: str, value: object) -> int:
    """The value, an integer, 0 or more. Raises ArgumentError for anything else."""
    number = require_integer(name, value)
    if number < 0:
        raise ArgumentError(f"{name} is {number}, not 0 or more")
    return number


def require_type(name: str, value: object, kind: type[T]) -> T:
    """The value, of this type. Raises ArgumentError for another one."""
    if not isinstance(value, kind):
        raise ArgumentError(f"{name} is {value!r} ({type(value).__name__}), not a {kind.__name__}")
    return value


def require_slots(slots: object) -> Slots:
    """The slots, int64 of one dimension. Raises SlotError for anything else."""
    if not isinstance(slots, np.ndarray) or slots.dtype != SLOT_TYPE or slots.ndim != 1:
        form = f"{slots.dtype} of shape {slots.shape}" if isinstance(slots, np.ndarray) else repr(slots)
        raise SlotError(f"slots must be int64 of one dimension, got {form}")
    return slots
