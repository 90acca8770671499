"""The reader of JSON, TOML and YAML."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hicache.errors import ConfigurationError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_table(source: str) -> dict[str, Any]:
    """Read a JSON string, or `@path` of a .json, .toml, .yaml or .yml file, into a table.

    Raises ConfigurationError naming the file when it is missing, malformed, of another kind, no table, or says the
    same key twice.
    """
    name = name_of_source(source)
    try:
        table = _parse(Path(name)) if source.startswith("@") else _parse_json(source)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{name}: {error}") from error
    if not isinstance(table, dict):
        raise ConfigurationError(f"{name}: the top level is a {type(table).__name__}, not a table")
    return table


def name_of_source(source: str) -> str:
    """What an error calls a source: its path, or "inline JSON"."""
    return source[1:] if source.startswith("@") else "inline JSON"


def _parse(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return _parse_json(text)
    if path.suffix == ".toml":
        return tomllib.loads(text)
    if path.suffix in (".yaml", ".yml"):
        return _parse_yaml(text)
    raise ValueError(f"cannot tell the format from the ending {path.suffix!r}; known: .json .toml .yaml .yml")


def _parse_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_table_of)


def _table_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _refuse_repeated(key for key, _ in pairs)
    return dict(pairs)


def _parse_yaml(text: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
            node = super().compose_mapping_node(anchor)
            _refuse_repeated(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            return node

    try:
        return yaml.load(text, Loader)  # noqa: S506 - a SafeLoader that reads each key once
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _refuse_repeated(keys: Iterable[str]) -> None:
    repeated = [key for key, count in Counter(keys).items() if count > 1]
    if repeated:
        raise ValueError(f"the key {repeated[0]!r} is given twice")
