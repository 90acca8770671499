"""How a file or a mapping says a CacheConfig: read_config, and config_to_mapping, which is its inverse."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from hicache.config import CacheConfig, WritePolicy, name_of_source, read_table
from hicache.errors import ConfigurationError

ConfigT = TypeVar("ConfigT")

LOG = logging.getLogger(__name__)

SELECTIVE = WritePolicy.WRITE_THROUGH_SELECTIVE

DEFAULT_BEFORE = 2
"""The default of `host.selective_hits` in earlier versions, which SGLang's threshold of 2 was said to be."""


def read_config(source: str | Path | Mapping[str, Any]) -> CacheConfig:
    """The configuration that a mapping says, a JSON string, or a .json, .toml, .yaml or .yml file.

    A file is given as a Path, or as a str of `@` and its path.

    Keys are the fields of CacheConfig. A part of it, such as `host`, is a table; each choice is its value, such as
    "lru". What is not given has its default. Raises ConfigurationError, naming the file, the key by its path and the
    value, for an unknown key, with the nearest known one, and for a value that cannot be served.
    """
    if isinstance(source, Mapping):
        config = _built(source)
    else:
        table = read_table(source)
        try:
            config = _built(table)
        except ConfigurationError as error:
            raise ConfigurationError(f"{name_of_source(source)}: {error}") from error
    host = config.host
    if host is not None and (host.write_policy, host.selective_hits) == (SELECTIVE, DEFAULT_BEFORE):
        warn_of_selective_hits()
    return config


def _built(table: Mapping[str, Any]) -> CacheConfig:
    config = _build(CacheConfig, table, "")
    config.require_divisible()
    return config


@cache
def warn_of_selective_hits() -> None:
    """Log, once in a process, what 2 means for `host.selective_hits`."""
    LOG.warning(
        "host.selective_hits = 2 backs up at the third request for a prompt, as in earlier versions; "
        "SGLang's write_through_threshold = 2, the second request, is host.selective_hits = 1, the default"
    )


def config_to_mapping(config: CacheConfig) -> dict[str, Any]:
    """What `read_config` reads as an equal configuration: tables, lists and plain values, which any of the formats has.

    Fields that are None are left out, since TOML has no such value. The options of the storage backend are those that
    were given, with their secrets.
    """
    table: dict[str, Any] = _plain(config)
    return table


def keys_of(kind: Any, path: str = "") -> Iterator[tuple[str, Field[Any]]]:
    """Each key of a configuration by its path, such as `host.layout` or `model.pools[].name`, with its field."""
    types = _types_of(kind)
    for one in fields(kind):
        yield f"{path}{one.name}", one
        inner, is_list = _inner(types[one.name])
        if is_dataclass(inner):
            yield from keys_of(inner, f"{path}{one.name}{'[]' if is_list else ''}.")


def _build(kind: Callable[..., ConfigT], table: object, path: str) -> ConfigT:
    """A part of a configuration, of a dataclass, from its table."""
    if not isinstance(table, Mapping):
        # A list may have a secret in it.
        got = "a list" if isinstance(table, list | tuple) else repr(table)
        raise ConfigurationError(f"{path} must be a table, got {got}")
    types, given = _types_of(kind), fields(cast("Any", kind))
    for key in table:
        if key not in types:
            raise ConfigurationError(_unknown(key, list(types), path))
    lacking = [one.name for one in given if _is_required(one) and one.name not in table]
    if lacking:
        raise ConfigurationError(f"{path or 'the configuration'} lacks {lacking[0]!r}")
    values = {key: _read(types[key], value, f"{path}.{key}" if path else key) for key, value in table.items()}
    try:
        return kind(**values)
    except ConfigurationError as error:
        message = str(error)
        raise ConfigurationError(message if message.startswith(path) else f"{path}: {message}") from error


def _read(kind: Any, value: Any, path: str) -> Any:
    """A value in the form that a field takes: a dataclass for a table, a tuple for a list. Others are as given."""
    inner, is_list = _inner(kind)
    if value is None and NoneType in get_args(kind):
        return None
    if is_list:
        if not isinstance(value, list | tuple):
            raise ConfigurationError(f"{path} must be a list, got {value!r}")
        return tuple(_read(inner, one, f"{path}[{place}]") for place, one in enumerate(value))
    if inner is str and not isinstance(value, str):
        raise ConfigurationError(f"{path} must be a string, got {value!r}")
    return _build(cast("Any", inner), value, path) if is_dataclass(inner) else value


@cache
def _types_of(kind: Any) -> Mapping[str, Any]:
    """The types of the fields of a dataclass."""
    return get_type_hints(kind)


def _inner(kind: Any) -> tuple[Any, bool]:
    """The type of a field without None, or that of the items where it is a list; and whether it is one."""
    found = get_args(kind)[0] if isinstance(kind, UnionType) else kind
    return (get_args(found)[0], True) if get_origin(found) is tuple else (found, False)


def _is_required(one: Field[Any]) -> bool:
    return one.default is MISSING and one.default_factory is MISSING


def _unknown(key: object, known: list[str], path: str) -> str:
    """What is said of an unknown key: the same key of another part, or the one of this part that is spelled most alike.

    The value is not shown: it may be a secret.
    """
    elsewhere = [found for found, _ in keys_of(CacheConfig) if found.rpartition(".")[2] == key]
    nearest = elsewhere or get_close_matches(str(key), known, n=1, cutoff=0)
    place = path or "the configuration"
    return f"{place} has no key {key!r}; the nearest is {nearest[0]!r}; known: {' '.join(known)}"


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        given = {one.name: getattr(value, one.name) for one in fields(value)}
        return {name: _plain(one) for name, one in given.items() if one is not None}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {_plain(name): _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
