"""use_source: imports an engine from the source tree that `--engine-source` names, and from no other place."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from hicache.config import read_table
from hicache.errors import ConfigurationError
from hicache.testing.plugin.options import ENGINE_SOURCE

FOLDERS = ("python", "src", "")
"""Where a repository has its packages; the first of them that has one."""


def use_source(path: Path) -> Callable[[], None]:
    """Put the packages of a source tree before all others, in this process and in those that it starts.

    Returns what undoes it. Raises ConfigurationError if the tree has no package, or is written for another Python.
    """
    root = packages_of(path)
    _require_python(path, root)
    before, paths = {name: os.environ.get(name) for name in ("PYTHONPATH", ENGINE_SOURCE.variable)}, sys.path[:]
    sys.path[:] = [str(root), *(one for one in paths if one != str(root))]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), before["PYTHONPATH"])))
    os.environ[ENGINE_SOURCE.variable] = str(path.resolve())

    def undo() -> None:
        sys.path[:] = paths
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

    return undo


def packages_of(path: Path) -> Path:
    """The folder of a source tree that has its packages. Raises ConfigurationError if there is none."""
    for root in (path.resolve() / name for name in FOLDERS):
        if any(file.parent.name.isidentifier() for file in root.glob("*/*.py")):
            return root
    raise ConfigurationError(f"{path} {'has no Python package' if path.is_dir() else 'is not a folder'}")


def _require_python(path: Path, root: Path) -> None:
    """Raise ConfigurationError if the project is not for this Python."""
    for file in (root / "pyproject.toml", path / "pyproject.toml"):
        wanted = str(read_table(file).get("project", {}).get("requires-python", "")) if file.is_file() else ""
        for comparison, version in re.findall(r"(>=|<)\s*([\d.]+)", wanted):
            is_newer = sys.version_info >= tuple(int(part) for part in version.strip(".").split("."))
            if is_newer != (comparison == ">="):
                raise ConfigurationError(f"{path} needs Python {wanted}, this is {sys.version.split()[0]}")
