"""The trained models as an engine serves them, each looked at once for several tests."""

from __future__ import annotations

from functools import lru_cache

import torch

from .engine.served_model import ServedModel
from .models.shipped import trained


@lru_cache(maxsize=4)
def trained_model(name: str, dtype: torch.dtype) -> ServedModel:
    """A trained model on the CPU."""
    return ServedModel.of(trained(name, dtype))
