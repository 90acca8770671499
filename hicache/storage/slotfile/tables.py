"""Tables: the tables of the index in SQLite, how they are opened, and how damage is recognised."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from hicache.errors import ConfigurationError
from hicache.storage import database
from hicache.storage.database import DamagedDatabaseError, Schema

HEAD_BYTES, APPLICATION_AT = 100, 68

SCHEMA = Schema(
    application=0x68694361,
    version=2,
    script="""
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
""",
    names=frozenset({"state", "classes", "free", "reserved", "objects"}),
)
"""`mark`: a new, unique value after each change of objects. Each slot of a class is in one of the last three tables.
Generations are unique: a slot that was freed and reused for the same key has another generation."""

FORGET = """
INSERT INTO free SELECT slot_bytes, slot FROM objects;
DELETE FROM objects;
UPDATE state SET mark = mark + 1;
"""
"""Removes all objects of version 1, in which the checksum of a page did not depend on its name."""

DAMAGED = ("no such", "malformed", "readonly", "already exists", "unsupported")
"""What SQLite says as an OperationalError, of which most tell nothing about the content of the file."""


def connect(path: Path, is_synced: bool, timeout_s: float, is_checked: bool) -> sqlite3.Connection:
    """Open the tables, and create them if they do not exist. Called by one process at a time.

    `timeout_s`: how long a process waits for a lock of another process. `is_checked`: whether all pages of the file are
    read and checked. Raises ConfigurationError for another version, for another database and for all but a file, as
    SQLite would follow a link out of the folder, and wait for a pipe. Raises sqlite3.Error.
    """
    for own in (path, Path(f"{path}-journal")):
        if own.is_symlink() or (own.exists() and not own.is_file()):
            raise ConfigurationError(f"storage option 'root': {own} is a link, a folder or a device, expected a file")
    # Without synchronisation the tables may be damaged by a loss of power, which is recognised when they are opened.
    connection = database.connect(path, database.TRUNCATE, "EXTRA" if is_synced else "OFF", timeout_s)
    try:
        _prepare(connection, path)
        if is_checked:
            database.check(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    version = SCHEMA.version_of(connection)
    if version is None:
        SCHEMA.create(connection)
    elif version == 1:
        SCHEMA.create(connection, FORGET)
    elif version != SCHEMA.version:
        raise ConfigurationError(f"storage option 'root': {path} has version {version}, expected {SCHEMA.version}")


def is_damage(error: BaseException) -> bool:
    """Whether an error tells that the content of the file is wrong."""
    if isinstance(error, sqlite3.OperationalError):
        return any(word in str(error) for word in DAMAGED)
    # SQLite quotes damaged names in its messages, which Python then cannot decode.
    return isinstance(error, (DamagedDatabaseError, UnicodeError)) or type(error) is sqlite3.DatabaseError


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
    return not any(head) or head[APPLICATION_AT : APPLICATION_AT + 4] == SCHEMA.application.to_bytes(4, "big")


def remove(path: Path) -> None:
    """Remove the tables, with all files that SQLite keeps beside them. Raises OSError."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
