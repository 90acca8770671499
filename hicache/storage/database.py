"""Schema: the tables of a database of SQLite, and the number of their form; changing: one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


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

    def version_of(self, connection: sqlite3.Connection) -> int:
        """The version of the tables, 0 if there is none. Raises DamagedDatabaseError unless all tables are there."""
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        found = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if (found or version) and not found >= self.names:
            raise DamagedDatabaseError(f"expected the tables {sorted(self.names)}, got {sorted(map(str, found))}")
        return int(version)


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
