"""Makes vLLM's cache importable without a GPU and without its C extensions.

The cache itself is pure Python. What it imports beside that, and never calls, is replaced by stubs; packages whose own
`__init__` would import models and kernels are imported without it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from hicache.engines.imports import add_installed_bare, import_quietly, package_root, set_defaults
from hicache.engines.stubs import StubFinder

CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1"

STUBBED = (
    *("vllm.config", "vllm.multimodal", "vllm.sampling_params", "vllm.compilation", "vllm.model_executor"),
    *("vllm.forward_context", "vllm.v1.attention.backend", "vllm.v1.hisparse.runtime"),
    "vllm.distributed.kv_transfer.kv_connector.factory",
)
"""Packages and modules that are replaced by stubs: the configuration, inputs other than text, models, the list of
connectors."""

BARE = (
    *("vllm", "vllm.distributed", "vllm.v1.structured_output", "vllm.distributed.kv_transfer"),
    *("vllm.distributed.kv_transfer.kv_connector", CONNECTOR, f"{CONNECTOR}.offloading"),
)
"""Packages that are imported without their own `__init__`."""

LEFT_OUT = ("vllm.fs_io_C",)
"""Compiled modules that vLLM has Python code in the place of. They need the libraries of CUDA: without them on every
machine, a test has one outcome everywhere."""

ENVIRONMENT: Mapping[str, str] = {
    "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "0",  # events name a block by its whole hash, not by 64 bits of it
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


def prepare_vllm() -> None:
    """Make modules such as `vllm.v1.core` importable.

    May be called again. Raises ImportError when vLLM is not there.
    """
    package_root("vllm")
    set_defaults(ENVIRONMENT)
    if "vllm" not in sys.modules:
        sys.meta_path.insert(0, StubFinder(STUBBED))
        add_installed_bare(BARE)
        sys.modules.update(dict.fromkeys(LEFT_OUT))  # type: ignore[arg-type]  # None: an import of it fails


def import_from(module: str, *names: str) -> Any:
    """Import a module of vLLM, ignoring its warnings; returns the module, or the tuple of these names in it."""
    prepare_vllm()
    return import_quietly(module, *names)
