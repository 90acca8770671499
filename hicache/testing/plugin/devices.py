"""Devices: which of those that configurations name this machine has."""

from __future__ import annotations

from functools import cache


@cache
def missing_device(device: str) -> str:
    """Why a cache cannot be opened on a device, by torch's name of it, or nothing."""
    if device == "cpu":
        return ""
    # Heavy, and only asked for where a configuration needs more than a CPU.
    import torch

    return "" if torch.cuda.is_available() else f"torch finds no CUDA device for {device!r} on this machine"


@cache
def gpu_count() -> int:
    """How many CUDA devices torch finds."""
    import torch

    return torch.cuda.device_count()
