"""Snapshot: the namespaces of a metadata service in the form of its file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Any
from zlib import crc32

from hicache.errors import ConfigurationError
from hicache.storage.hf3fs.pages import MAX_KEYS, Part

DEFAULT_NAMESPACE = "kv"

MAX_PAGES = 1 << 24
"""The most pages of all namespaces together."""

_RANK = re.compile(r"[0-9]+")

Held = tuple[int, str | None, str | None]
"""A reserved page, its key and the id of the reservation; None for what is not known."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One namespace. `keys`: each with its page, the least recently used first. `reserved`: by page."""

    num_pages: int
    free_pages: Sequence[int]
    keys: dict[str, int]
    reserved: dict[int, Held]


def write_snapshot(state: str, num_pages: int, fresh: int, parts: Sequence[Part]) -> Iterator[str]:
    """The text of one namespace, in pieces: a format that other servers of this protocol read too.

    `fresh`: the pages below it were never used. Other servers know neither `reserved_pages` nor `checksum`.
    """
    keys = merge(*(sorted(part.keys) for part in parts))
    lists: Mapping[str, Iterable[Any]] = {
        "free_pages": (page for pages in (range(fresh), *(part.free for part in parts)) for page in pages),
        "reserved_pages": (held for part in parts for held in part.reserved),
        "key_to_index": ((key, page) for _, key, page in keys),
    }
    found = _begin(state, num_pages)
    yield f'{json.dumps(state)}:{{"num_pages":{num_pages}'
    for name, items in lists.items():
        yield f',"{name}":['
        for piece in _written(items):
            found = crc32(piece.encode(), found)
            yield piece
        found = crc32(b";", found)
        yield "]"
    yield f',"checksum":{found}}}'


def _written(items: Iterable[Any]) -> Iterator[str]:
    """The elements of a JSON list, without its brackets, in pieces."""
    rest, comma = iter(items), ""
    while some := list(islice(rest, MAX_KEYS)):
        yield comma + json.dumps(some, separators=(",", ":"))[1:-1]
        comma = ","


def _begin(state: str, num_pages: object) -> int:
    return crc32(json.dumps([state, num_pages]).encode())


def _checksum(state: str, entry: Mapping[str, Any]) -> int:
    found = _begin(state, entry["num_pages"])
    for name in ("free_pages", "reserved_pages", "key_to_index"):
        for piece in _written(entry[name]):
            found = crc32(piece.encode(), found)
        found = crc32(b";", found)
    return found


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
    if "checksum" in entry and entry["checksum"] != _checksum(name, entry):
        raise ConfigurationError(f"{name!r}: the checksum is wrong, so the file is damaged")
    keys = dict(entry["key_to_index"])
    reserved = {page: (page, key, held) for page, key, held in entry.get("reserved_pages", ())}
    snapshot = Snapshot(entry["num_pages"], list(entry["free_pages"]), keys, reserved)
    used = [*snapshot.free_pages, *keys.values(), *reserved]
    if type(snapshot.num_pages) is not int or not all(type(page) is int for page in used):
        raise ConfigurationError(f"{name!r}: a number of pages, or a page, is not an integer")
    if snapshot.num_pages > MAX_PAGES:
        raise ConfigurationError(f"{name!r}: expected at most {MAX_PAGES} pages, got {snapshot.num_pages}")
    if not all(type(key) is str for key in keys):
        raise ConfigurationError(f"{name!r}: a key is not a string")
    check_pages(name, snapshot)
    if "reserved_pages" in entry:
        # What is in no list lost its key while the file was being written.
        return Snapshot(snapshot.num_pages, free_pages(snapshot), keys, reserved)
    lost = set(range(snapshot.num_pages)).difference(used)
    return Snapshot(snapshot.num_pages, snapshot.free_pages, keys, {page: (page, None, None) for page in lost})


def free_pages(snapshot: Snapshot) -> list[int]:
    """The pages that are neither reserved nor have a key; those that the snapshot lists as free keep their order."""
    used = {*snapshot.reserved, *snapshot.keys.values()}
    listed = [page for page in snapshot.free_pages if page not in used]
    used.update(listed)
    return [*listed, *(page for page in range(snapshot.num_pages) if page not in used)]


def check_pages(name: str, snapshot: Snapshot) -> None:
    """Raise ConfigurationError if a page is out of range, or occurs twice."""
    used = [*snapshot.free_pages, *snapshot.keys.values(), *snapshot.reserved]
    if any(not 0 <= page < snapshot.num_pages for page in used):
        raise ConfigurationError(f"{name!r}: expected pages below {snapshot.num_pages}, got another page")
    if len(set(used)) < len(used):
        raise ConfigurationError(f"{name!r}: a page occurs twice among free pages, reserved pages and pages of keys")
