"""erase: fill one component of a model's cache with zeros, as if a server had lost it without noticing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hicache.types import Component

LAYER_TYPES: Mapping[Component, str] = {
    Component.FULL: "full_attention",
    Component.SWA: "sliding_attention",
    Component.MAMBA: "linear_attention",
}
"""The type of the layers whose data each component holds."""


def erase(cache: Any, component: Component, layer_types: list[str]) -> None:
    """Replace the data of all layers of one component by zeros."""
    for layer, kind in zip(cache.layers, layer_types, strict=True):
        if kind != LAYER_TYPES[component]:
            continue
        if component is Component.MAMBA:
            layer.conv_states[0].zero_()
            layer.recurrent_states[0].zero_()
        else:
            layer.keys, layer.values = torch.zeros_like(layer.keys), torch.zeros_like(layer.values)
