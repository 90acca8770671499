"""Schema: the tables of an index in SQLite and their version; connect, changing: how an index is opened and changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from hicache.errors import ConfigurationError

TRUNCATE, WAL = "truncate", "wal"
"""Journals of SQLite: for any number of processes, and for one."""


class DamagedDatabaseError(sqlite3.DatabaseError):
    """The database contains what this project has not written."""


class Schema(NamedTuple):
    """`application`: a number in the head of the file. `version`: of `script`, which makes the tables `names`."""

    application: int
    version: int
    script: str
    names: frozenset[str]

    def create(self, connection: sqlite3.Connection, script: str | None = None) -> None:
        """Make the tables in one transaction, or run `script`, which changes those of an earlier version."""
        ends = f"PRAGMA application_id = {self.application}; PRAGMA user_version = {self.version}; COMMIT;"
        connection.executescript(f"BEGIN IMMEDIATE; {script or self.script} {ends}")

    def version_of(self, connection: sqlite3.Connection) -> int | None:
        """The version of the tables, None if there is none. Raises DamagedDatabaseError unless all tables are there."""
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        found = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if (found or version) and not found >= self.names:
            raise DamagedDatabaseError(f"expected the tables {sorted(self.names)}, got {sorted(map(str, found))}")
        return version if found else None


def connect(path: Path, journal: str, synchronous: str, timeout_s: float) -> sqlite3.Connection:
    """Open a database in the journal mode `journal`, for all threads. Raises sqlite3.Error.

    `timeout_s`: how long a lock of another process is waited for. No file is mapped into memory: if one is truncated
    then, the system ends the process (SIGBUS). The index of the journal `WAL` is mapped unless the database is locked
    exclusively, as it is here with that journal.
    """
    with ExitStack() as opened:
        connection = sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=False)
        opened.callback(connection.close)
        connection.execute("PRAGMA mmap_size = 0")
        if journal == WAL:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        (found,) = connection.execute(f"PRAGMA journal_mode = {journal}").fetchone()
        if found != journal:
            raise ConfigurationError(f"{path} has the journal {found!r}, expected {journal!r}: another process uses it")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        opened.pop_all()
    return connection


def check(connection: sqlite3.Connection) -> None:
    """Read and check all pages of the file. Raises DamagedDatabaseError."""
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise DamagedDatabaseError(str(found))


@contextmanager
def changing(connection: sqlite3.Connection) -> Iterator[None]:
    """One transaction, which no other process sees before its end. An error undoes it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
