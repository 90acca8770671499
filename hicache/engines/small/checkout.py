"""The checkout of an engine that is on no index, which the user names."""

from __future__ import annotations

import os
from pathlib import Path


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
