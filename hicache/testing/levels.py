"""Level: a part of the contract that is verified as a whole, and that a gate can require."""

from __future__ import annotations

from enum import Enum


class Level(str, Enum):
    """A part of the contract that is verified as a whole."""

    DEVICE = "device"
    HOST = "host"
    STORAGE = "storage"
    RANKS = "ranks"
    MODELS = "models"


NOTHING = "nothing"
"""What a gate can require in the place of levels."""
