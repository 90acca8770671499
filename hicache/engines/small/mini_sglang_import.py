"""Makes mini-sglang's CacheManager and radix cache importable from a checkout, without its kernels, sockets and models.

The modules of the cache are the engine's own. What stands in: a comparison of two keys, which is C++ there; pinned host
memory, which needs a GPU; and the two packages whose `__init__` imports all kernels and all sockets.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from hicache.engines.imports import add_bare, add_installed_bare, import_quietly, package_root
from hicache.engines.interface import find_interface
from hicache.optional_torch import torch


@dataclass(frozen=True, slots=True)
class MiniSglang:
    """What an adapter uses of the engine: classes, and the module with the global context."""

    cache_manager: Any
    radix_handle: Any
    req: Any
    sampling_params: Any
    core: Any


def prepare_mini_sglang() -> MiniSglang:
    """Import the engine's cache. Raises ImportError if it is not there, or has another interface."""
    find_interface("minisgl").require("minisgl")
    add_installed_bare(("minisgl", "minisgl.scheduler"))
    utilities = add_bare("minisgl.utils", package_root("minisgl") / "minisgl" / "utils")
    for module, names in {"misc": ("align_down", "div_ceil", "div_even"), "registry": ("Registry",)}.items():
        found = import_quietly(f"minisgl.utils.{module}", *names)
        vars(utilities).update(zip(names, found, strict=True))
    sys.modules.setdefault("minisgl.kernel", _kernel())
    cache = import_quietly("minisgl.scheduler.cache")
    vars(cache)["torch"] = _Unpinned()
    core = import_quietly("minisgl.core")
    return MiniSglang(
        cache_manager=cache.CacheManager,
        radix_handle=import_quietly("minisgl.kvcache.radix_cache").RadixCacheHandle,
        req=core.Req,
        sampling_params=core.SamplingParams,
        core=core,
    )


def _kernel() -> ModuleType:
    kernel = ModuleType("minisgl.kernel")
    vars(kernel)["fast_compare_key"] = equal_elements
    return kernel


def equal_elements(first: torch.Tensor, second: torch.Tensor) -> int:
    """How many elements two keys have in common at their start."""
    length = min(len(first), len(second))
    differing = (first[:length] != second[:length]).nonzero()
    return int(differing[0]) if len(differing) else length


class _Unpinned:
    """torch, whose `empty` gives memory that is not pinned: there is no GPU that reads it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, *sizes: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        """An empty tensor."""
        return torch.empty(*sizes, **options)
