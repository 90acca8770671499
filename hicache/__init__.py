"""A reference implementation of the hierarchical prefix cache, and the harness that verifies any such cache."""

from __future__ import annotations

from importlib import import_module
from os.path import realpath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hicache.cache import UnifiedRadixCache, open_cache
    from hicache.config import (
        BufferShape,
        CacheConfig,
        EvictionPolicy,
        ExecutorKind,
        ExtraConfig,
        Follows,
        HostConfig,
        IoBackend,
        Layout,
        ModelShape,
        PoolShape,
        Recency,
        StorageConfig,
        Topology,
        WritePolicy,
        read_extra_config,
    )
    from hicache.config_mapping import config_to_mapping, read_config
    from hicache.errors import HiCacheError
    from hicache.fingerprint import fingerprint_of_model
    from hicache.parallel.torch_group import open_groups
    from hicache.prometheus import CacheMetrics
    from hicache.request import Request, RequestManager
    from hicache.types import (
        EvictResult,
        InsertResult,
        LoadBack,
        MatchResult,
        Namespace,
        Sizes,
        StopPolicy,
    )

__version__ = "0.1.0"

# An editable install finds the package by the link src/hicache. Its modules are those of the checkout, under one path.
__file__, __path__ = realpath(__file__), [realpath(folder) for folder in __path__]

_MODULES = {
    "hicache.cache": ("UnifiedRadixCache", "open_cache"),
    "hicache.config": (
        "BufferShape",
        "CacheConfig",
        "EvictionPolicy",
        "ExecutorKind",
        "ExtraConfig",
        "Follows",
        "HostConfig",
        "IoBackend",
        "Layout",
        "ModelShape",
        "PoolShape",
        "Recency",
        "StorageConfig",
        "Topology",
        "WritePolicy",
        "read_extra_config",
    ),
    "hicache.config_mapping": ("config_to_mapping", "read_config"),
    "hicache.errors": ("HiCacheError",),
    "hicache.fingerprint": ("fingerprint_of_model",),
    "hicache.parallel.torch_group": ("open_groups",),
    "hicache.prometheus": ("CacheMetrics",),
    "hicache.request": ("Request", "RequestManager"),
    "hicache.types": ("EvictResult", "InsertResult", "LoadBack", "MatchResult", "Namespace", "Sizes", "StopPolicy"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "BufferShape",
    "CacheConfig",
    "CacheMetrics",
    "EvictResult",
    "EvictionPolicy",
    "ExecutorKind",
    "ExtraConfig",
    "Follows",
    "HiCacheError",
    "HostConfig",
    "InsertResult",
    "IoBackend",
    "Layout",
    "LoadBack",
    "MatchResult",
    "ModelShape",
    "Namespace",
    "PoolShape",
    "Recency",
    "Request",
    "RequestManager",
    "Sizes",
    "StopPolicy",
    "StorageConfig",
    "Topology",
    "UnifiedRadixCache",
    "WritePolicy",
    "__version__",
    "config_to_mapping",
    "fingerprint_of_model",
    "open_cache",
    "open_groups",
    "read_config",
    "read_extra_config",
]


if not TYPE_CHECKING:  # a type checker would take any name for one of this module

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used: keys, tree and configuration import without torch."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'hicache' has no attribute {name!r}")
        return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
