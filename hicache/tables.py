"""The reader of JSON, TOML and YAML."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from hicache.errors import ConfigurationError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_table(source: str) -> dict[str, Any]:
    """Read a JSON string, or `@path` of a .json, .toml, .yaml or .yml file, into a table.

    Raises ConfigurationError naming the file when it is missing, malformed, of another kind, or no table.
    """
    name = source[1:] if source.startswith("@") else "inline JSON"
    try:
        table = _parse(Path(name)) if source.startswith("@") else json.loads(source)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{name}: {error}") from error
    if not isinstance(table, dict):
        raise ConfigurationError(f"{name}: the top level is a {type(table).__name__}, not a table")
    return table


def _parse(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return json.loads(text)
    if path.suffix == ".toml":
        return tomllib.loads(text)
    if path.suffix in (".yaml", ".yml"):
        return _parse_yaml(text)
    raise ValueError(f"cannot tell the format from the ending {path.suffix!r}; known: .json .toml .yaml .yml")


def _parse_yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
