"""Tables as text in JSON, TOML and YAML, written without the libraries that read them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

SEPARATORS = {"toml": " = ", "yaml": ": ", "yml": ": "}


def written(table: Mapping[str, Any], ending: str) -> str:
    """A table of tables, lists, text, numbers and bools, in the format of an ending."""
    if ending == "json" or (ending != "toml" and not table):  # empty text is no table in YAML
        return json.dumps(table)
    return "".join(f"{line}\n" for line in _entries(table, SEPARATORS[ending]))


def _entries(table: Mapping[str, Any], separator: str) -> Iterator[str]:
    for key, value in table.items():
        yield f"{_quoted(key)}{separator}{_inline(value, separator)}"


def _inline(value: Any, separator: str) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(_entries(value, separator)) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_inline(one, separator) for one in value) + "]"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bool):
        return str(value).lower()
    return _with_point(repr(value)) if isinstance(value, float) else str(value)


def _quoted(text: str) -> str:
    return '"' + "".join(char if char.isalnum() else f"\\U{ord(char):08x}" for char in text) + '"'


def _with_point(number: str) -> str:
    """1.0e+22 for 1e+22, which YAML would read as text."""
    digits, exponent, power = number.partition("e")
    return f"{digits}{'' if '.' in digits else '.0'}{exponent}{power}"
