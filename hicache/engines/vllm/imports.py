"""Makes vLLM's cache importable without a GPU and without its C extensions.

The cache itself is pure Python. What it imports beside that, and never calls, is replaced by stubs; packages whose own
`__init__` would import models and kernels are imported without it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import sys
import warnings
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

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


@functools.cache  # reads the disk, and is called at each import
def vllm_version() -> str | None:
    """The installed release of vLLM, or None."""
    try:
        return importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return None


def prepare_vllm() -> str:
    """Make modules such as `vllm.v1.core` importable; returns vLLM's version.

    May be called again. Raises ImportError when vLLM is not installed.
    """
    version = vllm_version()
    if version is None:
        raise ImportError("vllm is not installed: pip install --no-deps vllm, in an environment of its own")
    if "vllm" not in sys.modules:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        sys.meta_path.insert(0, StubFinder(STUBBED))
        _import_bare()
        sys.modules.update(dict.fromkeys(LEFT_OUT))  # type: ignore[arg-type]  # None: an import of it fails
    return version


def import_from(module: str, *names: str) -> Any:
    """Import a module of vLLM, ignoring its warnings; returns the module, or the tuple of these names in it."""
    prepare_vllm()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        imported = importlib.import_module(module)
    return tuple(getattr(imported, name) for name in names) if names else imported


def _import_bare() -> None:
    spec = find_spec("vllm")
    assert spec is not None, "vllm has metadata but no modules"
    assert spec.submodule_search_locations, "vllm is not a package"
    root = Path(next(iter(spec.submodule_search_locations))).parent
    for name in BARE:
        package = ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")))]
        package.__spec__ = ModuleSpec(name, None, is_package=True)
        sys.modules[name] = package
