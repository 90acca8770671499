"""Imports modules of an engine from a checkout that the user names, without the `__init__` of its packages."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


def checkout(variable: str, package: str) -> Path | None:
    """The folder of an engine's package, in the checkout that a variable of the environment names; None without it.

    `package`: the folder, relative to the root of the checkout. Raises ImportError when the checkout lacks it.
    """
    named = os.environ.get(variable)
    if not named:
        return None
    path = Path(named).expanduser() / package
    if not path.is_dir():
        raise ImportError(f"{variable}={named} is not a checkout of the engine: it has no folder {package}")
    return path


def require_checkout(variable: str, package: str) -> Path:
    """The same, or an ImportError that says what to name."""
    path = checkout(variable, package)
    if path is None:
        raise ImportError(f"the engine is not on an index: set {variable} to the path of a checkout of its repository")
    return path


def add_bare(name: str, path: Path) -> ModuleType:
    """Add a package without its own `__init__`, which would import models and kernels; returns it.

    Its modules are imported from `path` as usual. A package that is there already stays.
    """
    known = sys.modules.get(name)
    if known is None:
        known = ModuleType(name)
        known.__path__ = [str(path)]
        known.__spec__ = ModuleSpec(name, None, is_package=True)
        sys.modules[name] = known
    return known


def import_names(module: str, *names: str) -> Any:
    """Import a module of an engine; returns the tuple of these names in it, or the one name."""
    imported = importlib.import_module(module)
    found = tuple(getattr(imported, name) for name in names)
    return found if len(found) > 1 else found[0]
