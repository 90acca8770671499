"""Old names of modules, kept for one release: an import of one warns and gives the module under its new name."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from warnings import warn

ADAPTERS, ENGINES, CACHES = "hicache.testing.adapters", "hicache.engines", "hicache.testing.caches"

MOVED: Mapping[str, str] = {
    "hicache.integrations.sglang": f"{ENGINES}.below_sglang",
    **{f"{ADAPTERS}.{name}": f"{CACHES}.{name}" for name in ("blocks", "dictionary", "offload", "paged_dictionary")},
    **{f"{ADAPTERS}.{name}": f"{CACHES}.reference" for name in ("modelled", "reference")},
    **{f"{ADAPTERS}.{name}": f"{ENGINES}.{name}.adapter" for name in ("sglang", "vllm")},
    **{f"{ADAPTERS}.sglang_{name}": f"{ENGINES}.sglang.{name}" for name in ("dsa", "ranks")},
    **{f"{ADAPTERS}.storage_{name}": f"{ENGINES}.{name}.storage" for name in ("lmcache", "sglang", "vllm")},
    f"{ADAPTERS}.storage_lmcache_l2": f"{ENGINES}.lmcache.storage_l2",
    **{f"{ADAPTERS}.vllm_{name}": f"{ENGINES}.vllm.{name}" for name in ("connector", "offload", "tiering")},
    f"{ADAPTERS}.vllm_simple_offload": f"{ENGINES}.vllm.simple_offload",
    f"{ADAPTERS}.lmcache_cpu": f"{ENGINES}.lmcache.cpu",
    **{f"{ADAPTERS}.{name}": f"{ENGINES}.small.{name}" for name in ("mini_sglang", "nano_vllm")},
}
"""By the old name of a public module, its new one."""


class _MovedModules(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        message = f"{old} has moved to {MOVED[old]}; the old name will be removed in 0.2"
        warn(message, DeprecationWarning, stacklevel=2)
        sys.modules[old] = import_module(MOVED[old])


def find_moved_modules() -> None:
    """Let the old names be imported."""
    if not any(isinstance(finder, _MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(_MovedModules())
