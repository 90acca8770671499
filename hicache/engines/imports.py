"""Imports modules of other projects without their warnings, and packages without their own `__init__`."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import sys
import warnings
from collections.abc import Iterable, Mapping
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from hicache.testing.engine_source import packages_of
from hicache.testing.plugin.options import ENGINE_SOURCE


@functools.cache  # reads the disk, and is called at each import
def installed_release(package: str) -> str | None:
    """The installed release of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def require_release(package: str, release: str | None, environment: Mapping[str, str]) -> str:
    """Set the variables of a package that have no value yet; returns its release.

    Raises ImportError when the release is None: the package is not installed.
    """
    if release is None:
        raise ImportError(f"{package} is not installed: pip install --no-deps {package}, in an environment of its own")
    set_defaults(environment)
    return release


def set_defaults(environment: Mapping[str, str]) -> None:
    """Set the variables that have no value yet."""
    for name, value in environment.items():
        os.environ.setdefault(name, value)


def package_root(package: str) -> Path:
    """The folder that a package is imported from: in the source tree of `--engine-source`, if there is one.

    Raises ImportError if the package is not in it, or without a source tree is not installed.
    """
    return _package_root(package, os.environ.get(ENGINE_SOURCE.variable))


@functools.cache
def _package_root(package: str, source: str | None) -> Path:
    if source:
        root = packages_of(Path(source))
        if not any((root / package).glob("*.py")):
            raise ImportError(f"{root} has no package {package}")
        return root
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(
            f"{package} is not installed: pip install --no-deps {package}, in an environment of its own, or name its "
            f"source tree with {ENGINE_SOURCE.flag}"
        )
    return Path(next(iter(spec.submodule_search_locations))).parent


def import_quietly(module: str, *names: str) -> Any:
    """Import a module, ignoring its warnings; returns the module, or the tuple of these names in it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        imported = importlib.import_module(module)
    return tuple(getattr(imported, name) for name in names) if names else imported


def add_bare(name: str, path: Path, kind: type[ModuleType] = ModuleType) -> ModuleType:
    """Add a package without its own `__init__`, which would import models and kernels; returns it.

    Its modules are imported from `path` as usual. A package that is there already stays.
    """
    known = sys.modules.get(name)
    if known is None:
        known = kind(name)
        known.__path__ = [str(path)]
        known.__spec__ = ModuleSpec(name, None, is_package=True)
        sys.modules[name] = known
    return known


def add_installed_bare(names: Iterable[str], kind: type[ModuleType] = ModuleType) -> None:
    """Add packages of an engine without their own `__init__`."""
    for name in names:
        parts = name.split(".")
        add_bare(name, package_root(parts[0]).joinpath(*parts), kind)
