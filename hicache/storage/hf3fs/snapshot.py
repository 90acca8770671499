"""Snapshot: the namespaces of a metadata service in the form of its file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hicache.errors import ConfigurationError

DEFAULT_NAMESPACE = "kv"

_RANK = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One namespace. `keys`: each with its page, the least recently used first. A page in neither list is reserved."""

    num_pages: int
    free_pages: list[int]
    keys: dict[str, int]


def write_snapshots(snapshots: Mapping[str, Snapshot]) -> str:
    """The text of the file, in a format that other servers of this protocol read too."""
    entries = {
        state: {"num_pages": one.num_pages, "free_pages": one.free_pages, "key_to_index": list(one.keys.items())}
        for state, one in snapshots.items()
    }
    return json.dumps(entries, indent=4)


def read_snapshots(text: str) -> dict[str, Snapshot]:
    """The namespaces by `rank:namespace`; a name with a rank alone stands for `rank:kv`. Raises ConfigurationError."""
    try:
        entries = json.loads(text)
        snapshots = {_state(name): _snapshot(name, entry) for name, entry in entries.items()}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"not a table of namespaces: {error!r}") from error
    if len(snapshots) < len(entries):
        raise ConfigurationError(f"a namespace occurs twice, with its name and with its rank alone: {sorted(entries)}")
    return snapshots


def _state(name: str) -> str:
    rank, colon, _ = name.partition(":")
    if not _RANK.fullmatch(rank):
        raise ConfigurationError(f"expected a name that begins with a rank, got {name!r}")
    return name if colon else f"{name}:{DEFAULT_NAMESPACE}"


def _snapshot(name: str, entry: Any) -> Snapshot:
    keys = dict(entry["key_to_index"])
    snapshot = Snapshot(entry["num_pages"], list(entry["free_pages"]), keys)
    used = [*snapshot.free_pages, *keys.values()]
    if type(snapshot.num_pages) is not int or not all(type(page) is int for page in used):
        raise ConfigurationError(f"{name!r}: a number of pages, or a page, is not an integer")
    if not all(type(key) is str for key in keys):
        raise ConfigurationError(f"{name!r}: a key is not a string")
    check_pages(name, snapshot)
    return snapshot


def check_pages(name: str, snapshot: Snapshot) -> None:
    """Raise ConfigurationError if a page is out of range, or occurs twice."""
    used = [*snapshot.free_pages, *snapshot.keys.values()]
    if any(not 0 <= page < snapshot.num_pages for page in used):
        raise ConfigurationError(f"{name!r}: expected pages below {snapshot.num_pages}, got another page")
    if len(set(used)) < len(used):
        raise ConfigurationError(f"{name!r}: a page occurs twice among free pages and pages of keys")
