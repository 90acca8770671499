"""Devices: whether this machine has the devices that configurations name."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from hicache.config import check_device
from hicache.errors import ConfigurationError

DRIVER_FILE = Path("/proc/driver/nvidia/version")
_VERSION = re.compile(r"\b\d{3,}\.\d+(\.\d+)?\b")


@cache
def missing_device(device: str) -> str:
    """The reason why a cache cannot be opened on a device, given by its torch name; empty when it can."""
    if device == "cpu":
        return ""
    # Imported here because torch is slow to import and is needed only for a device other than the CPU.
    from hicache.optional_torch import require_torch, torch

    try:
        check_device(device)
        require_torch(f"device {device!r}")
    except ConfigurationError as error:
        return str(error)
    return "" if torch.cuda.is_available() else f"torch finds no CUDA device for {device!r} on this machine"


def gpu_names() -> str:
    """The CUDA devices that torch finds, by name; empty without one."""
    from hicache.optional_torch import torch

    return ", ".join(dict.fromkeys(torch.cuda.get_device_name(number) for number in range(gpu_count())))


def driver() -> str:
    """The version of NVIDIA's driver, as the kernel has loaded it; empty without one."""
    found = _VERSION.search(DRIVER_FILE.read_text(encoding="utf-8")) if DRIVER_FILE.is_file() else None
    return found[0] if found else ""


@cache
def gpu_count() -> int:
    """The number of CUDA devices that torch finds; none where it is not installed."""
    from hicache.optional_torch import HAS_TORCH, torch

    return torch.cuda.device_count() if HAS_TORCH else 0
