"""CONF: whole configurations: the same in every format, and refused by the name of the key."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter
from hicache.testing.configurations import standard_configurations
from hicache.testing.contract import clause

OPTIONS = "options"
"""The name of tables whose keys are those of a storage backend."""

Table = dict[str, Any]


def _configurations(adapter_type: type[CacheAdapter]) -> list[CacheConfig]:
    """What the adapter runs on."""
    return list(adapter_type.configurations() or standard_configurations(adapter_type.capabilities))


def _largest(adapter_type: type[CacheAdapter]) -> Table:
    """The table with the most keys that the cache has."""
    tables = [deepcopy(dict(adapter_type.config_table(config))) for config in _configurations(adapter_type)]
    return max(tables, key=lambda table: len(json.dumps(table)))


def _inline_toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {_inline_toml(one)}" for key, one in value.items()) + "}"
    return "[" + ", ".join(map(_inline_toml, value)) + "]" if isinstance(value, list) else json.dumps(value)


def _toml(table: Table) -> str:
    return "".join(f"{json.dumps(key)} = {_inline_toml(value)}\n" for key, value in table.items())


FORMATS: Mapping[str, Callable[[Table], str]] = {
    "json": json.dumps,
    "toml": _toml,
    "yaml": json.dumps,  # YAML reads JSON
    "yml": lambda table: "".join(f"{key}: {json.dumps(value)}\n" for key, value in table.items()),
}


def _tables(value: Any, path: str = "") -> Iterator[tuple[str, Table]]:
    """Each table inside one, and itself, with the path to it. Leaves out those with the keys of a backend."""
    if isinstance(value, dict):
        yield path, value
        for key, one in value.items():
            if key != OPTIONS:
                yield from _tables(one, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for place, one in enumerate(value):
            yield from _tables(one, f"{path}[{place}]")


NEVER: Mapping[str, tuple[Any, ...]] = {
    "device": ("cdua",),
    "dtype": ("bfloat61",),
    "page_size": (0, -16),
    "shape": ([], [0]),
}
"""By key, if a cache has one of this name: what it takes in no design."""


def _wrong(key: str, value: object) -> Iterator[Any]:
    """Values that a key cannot take: of another type than the one it has, and those of NEVER."""
    yield 7.5 if isinstance(value, str) else "wrong"
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield True
    yield from NEVER.get(key, ())


def _refusal(adapter_type: type[CacheAdapter], table: Table) -> str:
    """Why the table is refused, or empty."""
    try:
        adapter_type.read_config(json.dumps(table))
    except NotImplementedError:
        raise
    except Exception as refusal:  # noqa: BLE001 - which error it is, is the cache's choice
        return str(refusal)
    return ""


def _without_parts(found: Mapping[str, tuple[str, tuple[str, ...]]]) -> dict[str, str]:
    """The refusals that lack one of the parts that they must have."""
    return {place: refusal for place, (refusal, parts) in found.items() if any(part not in refusal for part in parts)}


@clause("CONF-6")
def test_what_is_written_is_read_as_an_equal_configuration(adapter_type: type[CacheAdapter]) -> None:
    for config in _configurations(adapter_type):
        table = adapter_type.config_table(config)
        read = adapter_type.read_config(json.dumps(table))
        assert read == config, f"CONF-6: expected {config}, got {read} from {table}"


@clause("CONF-6")
def test_a_file_in_any_format_is_the_same_configuration(adapter_type: type[CacheAdapter], tmp_path: Path) -> None:
    table = _largest(adapter_type)
    expected = adapter_type.read_config(json.dumps(table))
    for ending, written in FORMATS.items():
        path = tmp_path / f"cache.{ending}"
        path.write_text(written(table), encoding="utf-8")
        read = adapter_type.read_config(f"@{path}")
        assert read == expected, f"CONF-6: expected {expected} from {path.name}, got {read}"


@clause("CONF-7")
def test_an_unknown_key_is_refused_with_the_one_most_like_it(adapter_type: type[CacheAdapter]) -> None:
    table, found = _largest(adapter_type), {}
    for path, part in _tables(table):
        for key in list(part):
            whole, misspelled = dict(part), f"{key[:1]}x{key[1:]}"
            part[misspelled] = part.pop(key)
            found[f"{path}.{misspelled}"] = (_refusal(adapter_type, table), (misspelled, repr(key)))
            part.clear()
            part.update(whole)
    wrong = _without_parts(found)
    assert not wrong, f"CONF-7: {next(iter(wrong))}: expected a refusal with the key and the known one, got {wrong}"


@clause("CONF-7")
def test_a_value_of_another_type_is_refused_with_its_key(adapter_type: type[CacheAdapter]) -> None:
    table, found = _largest(adapter_type), {}
    for path, part in _tables(table):
        for key, value in list(part.items()):
            # An error need not show what may be a secret.
            for wrong in () if key == OPTIONS else _wrong(key, value):
                part[key] = wrong
                shown = () if isinstance(wrong, list) else (str(wrong),)
                found[f"{path}.{key} = {wrong}"] = (_refusal(adapter_type, table), (key, *shown))
            part[key] = value
    taken = _without_parts(found)
    assert not taken, f"CONF-7: {next(iter(taken))}: expected a refusal with the key and the value, got {taken}"
