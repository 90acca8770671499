"""Makes SGLang's cache importable where there is no CUDA: packages that it never needs for this are stood in for."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

STOOD_IN = (
    *("triton", "sgl_kernel", "torchvision", "torchcodec", "pynvml", "cuda", "IPython", "tvm_ffi", "gguf"),
    *("compressed_tensors", "sentencepiece", "partial_json_parser", "sglang.srt.utils.hf_transformers"),
    *("sglang.srt.utils.hf_transformers_utils", "sglang.srt.utils.hf_transformers_patches"),
)
"""Packages that are replaced, with all that lies in them, when they are not installed or need what is not there."""

BARE = ("sglang", "sglang.srt.configs")
"""Packages whose modules are imported, and whose own `__init__` is not run: it imports every model and every kernel."""

ABSENT = frozenset({"active"})
"""Names that are in no package that is stood in for: by triton's active driver SGLang tells whether there is a GPU."""

ENVIRONMENT: Mapping[str, str] = {"SGLANG_USE_CPU_ENGINE": "1", "HICACHE_HOST_MEMORY_RESERVE_BYTES": "0"}


class _AnythingType(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") or name in ABSENT:
            raise AttributeError(name)
        return cls

    def __call__(cls, *arguments: Any, **_: Any) -> Any:
        # As a decorator it gives back what it decorates.
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else cls

    def __getitem__(cls, _: Any) -> Any:
        return cls

    def __ge__(cls, _: Any) -> bool:
        # Others ask what is imported for its version.
        return True


class Anything(metaclass=_AnythingType):
    """What every name of a package that is stood in for is: a class, a decorator, a constant."""

    def __init_subclass__(cls, **_: Any) -> None:
        """Take any keyword of a class statement."""


class StandIn(MetaPathFinder, Loader):
    """Finds the packages that are stood in for, and loads modules in which every name is there."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        is_ours = any(fullname == name or fullname.startswith(f"{name}.") for name in STOOD_IN)
        return ModuleSpec(fullname, self, is_package=True) if is_ours else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _AnyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing has to run."""


class _BareModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        # Its classes are those of the models, none of which is opened here; its modules are imported as such.
        if not name[:1].isupper():
            raise AttributeError(name)
        return Anything


class _AnyModule(ModuleType):
    __version__ = "0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything


@functools.cache  # looked up on the disk, and asked for with each import
def sglang_version() -> str | None:
    """The installed release of SGLang, or None."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return None


def prepare_sglang() -> str:
    """Let modules such as `sglang.srt.mem_cache` be imported from here on; returns SGLang's version.

    May be called again. Raises ImportError when SGLang is not installed.
    """
    version = sglang_version()
    if version is None:
        raise ImportError("sglang is not installed: pip install --no-deps sglang, in an environment of its own")
    if "sglang" not in sys.modules:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _probe()
            sys.meta_path.insert(0, StandIn())
            _import_bare()
    return version


def import_from(module: str, *names: str) -> Any:
    """Import a module of SGLang, with its warnings ignored; returns the module, or the tuple of these names in it."""
    prepare_sglang()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        imported = importlib.import_module(module)
    return tuple(getattr(imported, name) for name in names) if names else imported


def _probe() -> None:
    """Let torch and transformers find out what is installed while it can still be seen."""
    importlib.import_module("torch.utils._triton").has_triton()
    probes = vars(importlib.import_module("transformers.utils.import_utils"))
    for name, probe in probes.items():
        if name.startswith("is_") and name.endswith("_available") and hasattr(probe, "cache_info"):
            with contextlib.suppress(TypeError):  # some ask for a version
                probe()


def _import_bare() -> None:
    spec = find_spec("sglang")
    assert spec is not None, "sglang has metadata and no modules"
    assert spec.submodule_search_locations, "sglang is no package"
    root = Path(next(iter(spec.submodule_search_locations))).parent
    for name in BARE:
        package = _BareModule(name)
        package.__path__ = [str(root.joinpath(*name.split(".")))]
        package.__spec__ = ModuleSpec(name, None, is_package=True)
        sys.modules[name] = package
