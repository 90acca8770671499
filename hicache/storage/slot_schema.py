"""The tables that say what is in which slot, and the connection to them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from hicache.errors import ConfigurationError

VERSION = 1

PATIENCE_S = 60
"""Until a process that cannot write, because another does, gives up."""

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
"""`mark`: another one whenever objects change, and none twice. Each slot of a class is in one of the last three tables.
No generation comes twice: a slot that was given away and came back under the same key has another."""


def connect(path: Path, is_synced: bool) -> sqlite3.Connection:
    """Open the tables, and make them where there are none. One process at a time.

    Raises ConfigurationError when they are of another version, or cannot be opened.
    """
    connection = sqlite3.connect(path, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {'FULL' if is_synced else 'NORMAL'}")
        connection.execute("PRAGMA mmap_size = 1073741824")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            connection.executescript(f"BEGIN; {TABLES} PRAGMA user_version = {VERSION}; COMMIT;")
    except sqlite3.Error as error:
        connection.close()
        raise ConfigurationError(f"storage option 'root': {path} cannot be used: {error}") from error
    if version not in (0, VERSION):
        connection.close()
        raise ConfigurationError(f"storage option 'root': {path} has version {version}, expected {VERSION}")
    return connection
