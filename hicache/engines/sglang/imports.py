"""Makes SGLang's cache importable without CUDA: packages that the cache does not use are replaced by stubs."""

from __future__ import annotations

import contextlib
import importlib
import sys
import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from hicache.engines.imports import add_installed_bare, import_quietly, set_defaults
from hicache.engines.interface import find_interface
from hicache.engines.stubs import Stub, StubFinder

STUBBED = (
    *("triton", "sgl_kernel", "torchvision", "torchcodec", "pynvml", "cuda", "IPython", "tvm_ffi", "gguf"),
    *("compressed_tensors", "sentencepiece", "partial_json_parser"),
    *("sglang.srt.utils.hf_transformers", "sglang.srt.utils.hf_transformers_utils"),
    "sglang.srt.utils.hf_transformers_patches",
    *(f"sglang.srt.function_call.{name}_detector" for name in ("inkling", "kimik3")),
)
"""Packages that are replaced by stubs, with all their modules, if they are not installed or cannot be imported."""

BARE = ("sglang", "sglang.srt.configs")
"""Packages that are imported without their own `__init__`, which would import every model and every kernel."""

ENVIRONMENT: Mapping[str, str] = {"SGLANG_USE_CPU_ENGINE": "1", "HICACHE_HOST_MEMORY_RESERVE_BYTES": "0"}


class _BareModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        # The classes are those of the models, none of which is opened here; modules are imported as usual.
        if not name[:1].isupper():
            raise AttributeError(name)
        return Stub


def prepare_sglang() -> str:
    """Make modules such as `sglang.srt.mem_cache` importable; returns the release whose interface it has or is next to.

    May be called again. Raises ImportError when SGLang is not there.
    """
    found = find_interface("sglang")
    set_defaults(ENVIRONMENT)
    if "sglang" not in sys.modules:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _probe()
            sys.meta_path.insert(0, StubFinder(STUBBED))
            add_installed_bare(BARE, _BareModule)
    return found.interface.release


def import_from(module: str, *names: str) -> Any:
    """Import a module of SGLang, ignoring its warnings; returns the module, or the tuple of these names in it."""
    prepare_sglang()
    return import_quietly(module, *names)


def _probe() -> None:
    """Let torch and transformers detect the installed packages before stubs hide them."""
    importlib.import_module("torch.utils._triton").has_triton()
    probes = vars(importlib.import_module("transformers.utils.import_utils"))
    for name, probe in probes.items():
        if name.startswith("is_") and name.endswith("_available") and hasattr(probe, "cache_info"):
            with contextlib.suppress(TypeError):  # some need a version as argument
                probe()
