"""read_json: the namespaces of a metadata service in a file of JSON, as other servers and earlier versions write it."""

from __future__ import annotations

import json
import logging
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from hicache.errors import ConfigurationError
from hicache.storage.hf3fs.pages import MAX_PAGES, Held, Stored

LOG = logging.getLogger(__name__)

DEFAULT_NAMESPACE = "kv"

JOURNALS = (".journal.old", ".journal")
"""The ends of the names of the files that have the changes since the file was written, in their order."""

FIELDS = {"state", "num_pages", "dropped", "cleared", "removed", "freed", "taken", "reservation", "confirmed"}
"""Of a line of a journal."""

_RANK = re.compile(r"[0-9]+")


def read_json(path: Path) -> dict[str, Stored]:
    """The namespaces by `rank:namespace`, empty if there is no file. Raises OSError and ConfigurationError.

    A name with a rank alone stands for `rank:kv`. Journals are those of versions up to 0.1.0 of this package.
    """
    found = _read_file(path.read_text(encoding="utf-8")) if path.exists() else {}
    journals = [path.with_name(path.name + end) for end in JOURNALS]
    lines = [line for journal in journals if journal.exists() for line in _lines(journal)]
    try:
        _replay(found, lines)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigurationError(f"its journal is invalid: {error!r}") from error
    return found


def _read_file(text: str) -> dict[str, Stored]:
    try:
        entries = json.loads(text)
        found = {_state(name): _stored(name, entry) for name, entry in entries.items()}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"not a table of namespaces: {error!r}") from error
    if len(found) < len(entries):
        raise ConfigurationError(f"a namespace occurs twice, with its name and with its rank alone: {sorted(entries)}")
    return found


def _state(name: str) -> str:
    rank, colon, _ = name.partition(":")
    if not _RANK.fullmatch(rank):
        raise ConfigurationError(f"expected a name that begins with a rank, got {name!r}")
    return name if colon else f"{name}:{DEFAULT_NAMESPACE}"


def _stored(name: str, entry: Any) -> Stored:
    if "checksum" in entry and entry["checksum"] != _checksum(name, entry):
        raise ConfigurationError(f"{name!r}: the checksum is wrong, so the file is damaged")
    num_pages, free = entry["num_pages"], entry["free_pages"]
    keys = OrderedDict[str, int](entry["key_to_index"])
    reserved = {page: Held(key, held) for page, key, held in entry.get("reserved_pages", ())}
    if type(num_pages) is not int or not 0 <= num_pages <= MAX_PAGES:
        raise ConfigurationError(f"{name!r}: expected at most {MAX_PAGES} pages, got {num_pages!r}")
    stored = Stored(num_pages, keys, reserved)
    _check(name, stored, free)
    if "reserved_pages" not in entry:
        # Another server's: it lists no page that is being written.
        lost = set(range(num_pages)).difference(free, keys.values())
        reserved.update(dict.fromkeys(lost, Held(None, None)))
    return stored


def _checksum(state: str, entry: Mapping[str, Any]) -> int:
    found = crc32(json.dumps([state, entry["num_pages"]]).encode())
    for name in ("free_pages", "reserved_pages", "key_to_index"):
        found = crc32(json.dumps(entry[name], separators=(",", ":"))[1:-1].encode(), found)
        found = crc32(b";", found)
    return found


def _check(name: str, stored: Stored, free: Sequence[object]) -> None:
    """Raise ConfigurationError if a key is not a text, or a page is out of range or occurs twice."""
    used = [*free, *stored.keys.values(), *stored.reserved]
    if not all(type(page) is int and 0 <= page < stored.num_pages for page in used):
        raise ConfigurationError(f"{name!r}: expected pages below {stored.num_pages}, got another page")
    if len(set(used)) < len(used):
        raise ConfigurationError(f"{name!r}: a page occurs twice among free pages, reserved pages and pages of keys")
    texts = [*stored.keys, *(text for held in stored.reserved.values() for text in held if text is not None)]
    if not all(type(text) is str for text in texts):
        raise ConfigurationError(f"{name!r}: a key is not a string")


def _lines(path: Path) -> list[Any]:
    """The lines of a journal. Drops a last one without its end. Raises ConfigurationError for a damaged one."""
    *lines, unfinished = path.read_bytes().split(b"\n")
    if unfinished:
        LOG.warning("%s: a line of %d bytes has no end and was dropped", path, len(unfinished))
    return [_line(number, line) for number, line in enumerate(lines, 1)]


def _line(number: int, line: bytes) -> Any:
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % crc32(text):
        raise ConfigurationError(f"its journal is invalid: the checksum of line {number} is wrong")
    return json.loads(text)


def _replay(found: dict[str, Stored], lines: Sequence[Mapping[str, Any]]) -> None:
    """Apply lines to the namespaces of the file, which may be newer than a line.

    So lines about a namespace that was dropped later are left out: there may be nothing that they apply to.
    """
    dropped = {line["state"]: number for number, line in enumerate(lines) if line.get("dropped")}
    for state in dropped:
        found.pop(state, None)
    for number, line in enumerate(lines):
        if number > dropped.get(line["state"], -1):
            _apply(found, line)
    for state in {line["state"] for line in lines}.intersection(found):
        _check(state, found[state], ())


def _apply(found: dict[str, Stored], line: Mapping[str, Any]) -> None:
    """Apply a line: a new namespace, or what lost its page, was freed, reserved, and confirmed, in this order."""
    if unknown := line.keys() - FIELDS:
        raise ValueError(f"unknown fields {sorted(unknown)}")
    state = line["state"]
    if "num_pages" in line:
        if not 0 < line["num_pages"] <= MAX_PAGES:
            raise ValueError(f"{state}: expected up to {MAX_PAGES} pages, got {line['num_pages']}")
        found.setdefault(state, Stored(line["num_pages"], OrderedDict(), {}))
        return
    stored = found[state]
    if line.get("cleared"):
        stored.keys.clear()
    for key in line.get("removed", ()):
        stored.keys.pop(key, None)
    for page in line.get("freed", ()):
        stored.reserved.pop(page, None)
    for page, key in line.get("taken", ()):
        stored.reserved[page] = Held(key, line.get("reservation"))
    for key, page in line.get("confirmed", ()):
        stored.keys[key] = page
        stored.reserved.pop(page, None)
