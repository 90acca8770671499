"""The libraries of the extras `testing` and `accuracy`: which are missing, and which release is not supported."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

LIBRARIES = ("hypothesis", "jinja2", "matplotlib", "pytest", "pytest_benchmark", "xdist", "yaml", "rich", "typer")
"""By the name that each is imported under, in the order of the extra in pyproject.toml."""

OLDEST_TRANSFORMERS, BEFORE_TRANSFORMERS = "5.19", "6"
"""The range of pyproject.toml: with 5.16.1, families with an indexer answer otherwise from a cache than without one."""

INSTALL_COMMAND = "pip install 'hicache[testing]'"


def missing_libraries(libraries: Iterable[str] = LIBRARIES) -> list[str]:
    """Those that are not installed. Imports none of them."""
    return [name for name in libraries if find_spec(name) is None]


def unsupported_transformers() -> str:
    """Why the transformers that is installed cannot be used, in words; nothing where it can, or where there is none."""
    try:
        found = version("transformers")
    except PackageNotFoundError:
        return ""
    if _numbers(OLDEST_TRANSFORMERS) <= _numbers(found) < _numbers(BEFORE_TRANSFORMERS):
        return ""
    expected = f"{OLDEST_TRANSFORMERS} or later and before {BEFORE_TRANSFORMERS}"
    return f"transformers {found} is not supported, {expected} is: pip install 'hicache[accuracy]'"


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", release)[:3])
