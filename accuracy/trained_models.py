"""The trained models as an engine serves them, each inspected once for several tests."""

from __future__ import annotations

import torch

from .engine.served_model import ServedModel
from .evaluation.subject import opened


def trained_model(name: str, dtype: torch.dtype) -> ServedModel:
    """A trained model on the CPU."""
    model, _ = opened(name, dtype, "cpu")
    return model
