"""Tables: the tables of the index in SQLite, how they are opened, and how damage is recognised."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from hicache.errors import ConfigurationError

VERSION = 2
"""In version 1 the checksum of a page did not depend on its name."""

APPLICATION = 0x68694361
"""Stands in the head of the file."""

HEAD_BYTES, APPLICATION_AT = 100, 68

TABLES = """
CREATE TABLE state (mark INTEGER NOT NULL);
INSERT INTO state VALUES (1);
CREATE TABLE classes (slot_bytes INTEGER PRIMARY KEY, slots INTEGER NOT NULL);
CREATE TABLE free (slot_bytes INTEGER, slot INTEGER, PRIMARY KEY (slot_bytes, slot)) WITHOUT ROWID;
CREATE TABLE reserved (
    slot_bytes INTEGER, slot INTEGER, writer TEXT NOT NULL, PRIMARY KEY (slot_bytes, slot)
) WITHOUT ROWID;
CREATE TABLE objects (
    generation INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE,
    slot_bytes INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    length INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    used_ns INTEGER NOT NULL
);
CREATE INDEX objects_by_use ON objects (slot_bytes, used_ns);
"""
"""`mark`: a new, unique value after each change of objects. Each slot of a class is in one of the last three tables.
Generations are unique: a slot that was freed and reused for the same key has another generation."""


FORGET = """
INSERT INTO free SELECT slot_bytes, slot FROM objects;
DELETE FROM objects;
UPDATE state SET mark = mark + 1;
"""
"""Removes all objects."""


NAMES = {"state", "classes", "free", "reserved", "objects"}

DAMAGED = ("no such", "malformed", "readonly", "already exists", "unsupported")
"""What SQLite says as an OperationalError, of which most tell nothing about the content of the file."""


class DamagedTablesError(sqlite3.DatabaseError):
    """The tables contain what this project has not written."""


def connect(path: Path, is_synced: bool, timeout_s: float, is_checked: bool) -> sqlite3.Connection:
    """Open the tables, and create them if they do not exist. Called by one process at a time.

    `timeout_s`: how long a process waits for a lock of another process. `is_checked`: whether all pages of the file are
    read and checked. Raises ConfigurationError for another version, for another database and for all but a file, as
    SQLite would follow a link out of the folder, and wait for a pipe. Raises sqlite3.Error.
    """
    for own in (path, Path(f"{path}-journal")):
        if own.is_symlink() or (own.exists() and not own.is_file()):
            raise ConfigurationError(f"storage option 'root': {own} is a link, a folder or a device, expected a file")
    connection = sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=False)
    try:
        _prepare(connection, path, is_synced)
        if is_checked:
            _check(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, is_synced: bool) -> None:
    # No file is mapped into memory: if one is truncated then, the system ends the process (SIGBUS). The journal of
    # write-ahead logging has an index that is always mapped.
    connection.execute("PRAGMA mmap_size = 0")
    (journal,) = connection.execute("PRAGMA journal_mode = TRUNCATE").fetchone()
    if journal != "truncate":
        raise ConfigurationError(f"{path} has the journal {journal!r}, expected 'truncate': another process uses it")
    # Without synchronisation the tables may be damaged by a loss of power, which is recognised when they are opened.
    connection.execute(f"PRAGMA synchronous = {'EXTRA' if is_synced else 'OFF'}")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    found = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not found and not version:
        _run(connection, TABLES)
    elif not found >= NAMES:
        raise DamagedTablesError(f"expected the tables {sorted(NAMES)}, got {sorted(map(str, found))}")
    elif version == 1:
        _run(connection, FORGET)
    elif version != VERSION:
        raise ConfigurationError(f"storage option 'root': {path} has version {version}, expected {VERSION}")


def _run(connection: sqlite3.Connection, script: str) -> None:
    ends = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION}; COMMIT;"
    connection.executescript(f"BEGIN IMMEDIATE; {script} {ends}")


def _check(connection: sqlite3.Connection) -> None:
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise DamagedTablesError(str(found))


def is_damage(error: BaseException) -> bool:
    """Whether an error tells that the content of the file is wrong."""
    if isinstance(error, sqlite3.OperationalError):
        return any(word in str(error) for word in DAMAGED)
    # SQLite quotes damaged names in its messages, which Python then cannot decode.
    return isinstance(error, (DamagedTablesError, UnicodeError)) or type(error) is sqlite3.DatabaseError


def are_ours(path: Path) -> bool:
    """Whether the head of a file says that its tables are those of this project. Raises OSError.

    A head of zeros says so too: it is what a loss of power leaves of a head that was not synchronised. So does a file
    that is already gone.
    """
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except FileNotFoundError:
        return True
    return not any(head) or head[APPLICATION_AT : APPLICATION_AT + 4] == APPLICATION.to_bytes(4, "big")


def remove(path: Path) -> None:
    """Remove the tables, with all files that SQLite keeps beside them. Raises OSError."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
