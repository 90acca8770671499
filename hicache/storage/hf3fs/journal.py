"""Journal: the changes of all namespaces of a metadata service, in a database of SQLite that one process has open."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TypeAlias
from zlib import crc32

from hicache.errors import ConfigurationError
from hicache.storage.database import WAL, DamagedDatabaseError, Schema, changing, check, connect
from hicache.storage.hf3fs.json_file import JOURNALS, read_json
from hicache.storage.hf3fs.pages import MAX_KEYS, MAX_PAGES, Change, Held, Stored
from hicache.storage.page_io import synchronise_folder

LOG = logging.getLogger(__name__)

SCHEMA = Schema(
    application=0x68694D64,
    version=1,
    script="""
CREATE TABLE namespaces (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, num_pages INTEGER NOT NULL, cleared INTEGER NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE TABLE pages (
    place INTEGER PRIMARY KEY, key BLOB, reservation TEXT, used INTEGER NOT NULL, checksum INTEGER NOT NULL
);
""",
    names=frozenset({"namespaces", "pages"}),
)
"""A page without a row is free. `place`: of `_place`. `used`: when the key was used last, 0 for a reserved page; a page
whose last use is not after `cleared` of its namespace is free."""

MAGIC = b"SQLite format 3\0"

MOUNTS = Path("/proc/self/mountinfo")

NETWORK = re.compile(r"nfs\d?|cifs|smb\d?|afs|ceph|lustre|gpfs|beegfs|fuse\.(sshfs|s3fs|ceph|glusterfs|hf3fs\S*)")
"""File systems on which another host may not see a lock."""

OPEN = "INSERT OR REPLACE INTO namespaces VALUES (?, ?, ?, ?, ?)"
PUT = "INSERT OR REPLACE INTO pages VALUES (?, ?, ?, ?, ?)"
FREE = "DELETE FROM pages WHERE place = ?"
FREE_SOME = "DELETE FROM pages WHERE place IN (SELECT place FROM pages WHERE place >= ? AND place < ? LIMIT ?)"

Row: TypeAlias = tuple[object, ...]
"""The values of a row. The last one of a stored row is a checksum of the others."""


class Journal:
    """Stores every change before it is answered, so that no page is assigned twice after a crash.

    A change is a transaction of SQLite, whose log is synchronised before it is answered; `found` has the namespaces as
    they are when the file is opened. The log is in a second file, which SQLite folds into the first one now and then.
    A file of JSON is read, and replaced by a database. Raises ConfigurationError when another service uses the file, or
    when it cannot be used or read, or has another version; the file is not changed then.
    """

    def __init__(self, path: Path) -> None:
        self._lock = Lock()
        self._pending = list[tuple[str, Sequence[Row]]]()
        # Namespaces that were dropped, and still have rows.
        self._dropped = set[int]()
        with ExitStack() as opened:
            try:
                # SQLite follows a link, and has its log beside the file that the link leads to.
                self.path = Path(os.path.realpath(path))
                opened.callback(os.close, _locked(self.path))
                _make(self.path)
                self._load()
                self._tables = _connect(self.path)
                opened.callback(self._tables.close)
                # SQLite opens a file that cannot be written, and refuses to write it.
                self._tables.execute(f"PRAGMA user_version = {SCHEMA.version}")
            except (OSError, ValueError, sqlite3.Error) as error:
                raise ConfigurationError(f"metadata file {path} cannot be used: {error}") from error
            self._opened = opened.pop_all()
        _warn_of_network(self.path)

    def flush(self) -> None:
        """Write what could not be written before. Raises OSError; the next change must wait then."""
        with self._lock:
            self._write()

    def open(self, state: str, num_pages: int) -> None:
        """Store a new namespace. Raises OSError."""
        with self._lock:
            self._spaces[state] = self._next_id, num_pages
            self._pending.append((OPEN, [_row(self._next_id, state, num_pages, 0)]))
            self._next_id += 1
            self._write()

    def drop(self, state: str) -> None:
        """Store the end of a namespace. Raises OSError."""
        with self._lock:
            number, _ = self._spaces.pop(state)
            self._dropped.add(number)
            self._pending.append(("DELETE FROM namespaces WHERE id = ?", [(number,)]))
            self._write()

    def change(self, state: str, change: Change) -> None:
        """Store a change of keys and pages. Raises OSError."""
        with self._lock:
            number, num_pages = self._spaces[state]
            if change.cleared:
                self._pending.append((OPEN, [_row(number, state, num_pages, self._uses)]))
            if change.freed:
                self._pending.append((FREE, [(_place(number, page),) for page in change.freed]))
            rows = [_page_row(number, key, page, change.reservation, 0) for page, key in change.taken]
            rows += [_page_row(number, key, page, None, self._next_use()) for key, page in change.confirmed]
            if rows:
                self._pending.append((PUT, rows))
            self._write()

    def close(self, used: Mapping[str, Iterable[tuple[str, int]]]) -> None:
        """Store the order in which keys were used, and fold the log into the file. Raises OSError, with all closed.

        `used`: keys and their pages by namespace, in the order of their last use; all others were used before them.
        """
        with self._lock, self._opened:
            self._write()
            try:
                with changing(self._tables):
                    for state, keys in used.items():
                        number, _ = self._spaces[state]
                        self._tables.executemany(PUT, (_page_row(number, *one, None, self._next_use()) for one in keys))
                _fold(self._tables)
            except sqlite3.Error as error:
                raise OSError(f"{self.path}: {error}") from error

    def _next_use(self) -> int:
        self._uses += 1
        return self._uses

    def _write(self) -> None:
        """Write what is pending in one transaction. It stays pending if that fails."""
        if not self._pending:
            return
        done = set[int]()
        try:
            with changing(self._tables):
                for statement, rows in self._pending:
                    self._tables.executemany(statement, rows)
                for number in islice(self._dropped, 1):
                    limits = number * MAX_PAGES, (number + 1) * MAX_PAGES, MAX_KEYS
                    if self._tables.execute(FREE_SOME, limits).rowcount < MAX_KEYS:
                        done.add(number)
        except sqlite3.Error as error:
            raise OSError(f"{self.path}: {error}") from error
        self._pending.clear()
        self._dropped -= done

    def _load(self) -> None:
        """Read the file, and do not change it."""
        # The lock is held already, and locks of SQLite need a file that can be written.
        with closing(sqlite3.connect(f"{self.path.as_uri()}?mode=ro&vfs=unix-none", uri=True)) as tables:
            tables.execute("PRAGMA locking_mode = EXCLUSIVE")
            tables.execute("PRAGMA temp_store = MEMORY")
            (application,) = tables.execute("PRAGMA application_id").fetchone()
            version = SCHEMA.version_of(tables)
            if application != SCHEMA.application or version != SCHEMA.version:
                raise ConfigurationError(
                    f"it has version {version} of application {application:#x}, "
                    f"expected version {SCHEMA.version} of {SCHEMA.application:#x}"
                )
            check(tables)
            self.found, by_id = _read_namespaces(tables)
            self._uses = self._read_pages(tables, by_id)
        self._spaces = {name: (number, self.found[name].num_pages) for number, (name, _) in by_id.items()}
        self._next_id = max([0, *by_id, *self._dropped]) + 1

    def _read_pages(self, tables: sqlite3.Connection, by_id: Mapping[int, tuple[str, int]]) -> int:
        """Add the pages to their namespaces. Returns when the last one was used. Raises DamagedDatabaseError."""
        used = 0
        for place, key, reservation, used, checksum in tables.execute("SELECT * FROM pages ORDER BY used"):
            _check_row((place, key, reservation, used), checksum)
            number, rest = divmod(place, MAX_PAGES)
            if number not in by_id:
                self._dropped.add(number)
                continue
            name, cleared = by_id[number]
            page, text = MAX_PAGES - 1 - rest, None if key is None else key.decode("utf-8", "surrogatepass")
            if not used:
                self.found[name].reserved[page] = Held(text, reservation)
            elif text is not None and used > cleared:
                self.found[name].keys[text] = page
        return max([used, *(cleared for _, cleared in by_id.values())])


def _read_namespaces(tables: sqlite3.Connection) -> tuple[dict[str, Stored], dict[int, tuple[str, int]]]:
    """The namespaces without their pages; their names by id, and when they were cleared last."""
    found, by_id = dict[str, Stored](), dict[int, tuple[str, int]]()
    for *values, checksum in tables.execute("SELECT * FROM namespaces"):
        _check_row(tuple(values), checksum)
        number, name, num_pages, cleared = values
        found[name], by_id[number] = Stored(num_pages, OrderedDict(), {}), (name, cleared)
    return found, by_id


def _check_row(values: Row, checksum: object) -> None:
    if crc32(repr(values).encode()) != checksum:
        raise DamagedDatabaseError(f"the checksum of {values} is wrong")


def _row(*values: object) -> Row:
    return *values, crc32(repr(values).encode())


def _page_row(number: int, key: str | None, page: int, reservation: str | None, used: int) -> Row:
    text = None if key is None else key.encode("utf-8", "surrogatepass")
    return _row(_place(number, page), text, reservation, used)


def _place(number: int, page: int) -> int:
    """Pages are assigned from the last to the first, and SQLite fills its blocks only from the first to the last."""
    return (number + 1) * MAX_PAGES - 1 - page


def _locked(path: Path) -> int:
    """A descriptor that keeps other services away."""
    file = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        flock(file, LOCK_EX | LOCK_NB)
    except BlockingIOError as error:
        os.close(file)
        raise ConfigurationError("another service uses it") from error
    except OSError:
        os.close(file)
        raise
    return file


def _warn_of_network(path: Path) -> None:
    device = path.stat().st_dev
    with suppress(OSError):
        for words in map(str.split, MOUNTS.read_text().splitlines()):
            kind = words[words.index("-") + 1]
            if words[2] == f"{os.major(device)}:{os.minor(device)}" and NETWORK.fullmatch(kind):
                LOG.warning("%s is on %s: no lock keeps a service of another host away from it", path, kind)


def _connect(path: Path) -> sqlite3.Connection:
    return connect(path, WAL, "FULL", 0)


def _fold(connection: sqlite3.Connection) -> None:
    """Write all of the log into the file."""
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


def _make(path: Path) -> None:
    """Make the database, unless there is one: of a file of JSON with its journals, or an empty one.

    It is written beside the file, and then takes its place: a crash leaves the one or the other. Raises OSError,
    ValueError and sqlite3.Error; the file is not changed then.
    """
    journals = [path.with_name(path.name + end) for end in JOURNALS]
    if not _is_database(path):
        stored, new = read_json(path), path.with_name(f"{path.name}.new")
        _remove(new, *_logs(new))
        with closing(_connect(new)) as tables:
            SCHEMA.create(tables)
            with changing(tables):
                for number, (name, one) in enumerate(stored.items(), 1):
                    tables.execute(OPEN, _row(number, name, one.num_pages, 0))
                    tables.executemany(PUT, _rows(number, one))
            _fold(tables)
        _remove(*_logs(path))
        new.replace(path)
        synchronise_folder(path.parent)
    # What they say is in the database.
    _remove(*journals)


def _rows(number: int, stored: Stored) -> Iterator[Row]:
    for page, held in stored.reserved.items():
        yield _page_row(number, held.key, page, held.id, 0)
    for used, (key, page) in enumerate(stored.keys.items(), 1):
        yield _page_row(number, key, page, None, used)


def _is_database(path: Path) -> bool:
    """Whether a file is not one of JSON: a loss of power while its head is written leaves zeros, and the log has it."""
    if not path.exists():
        return False
    if not path.is_file():
        raise ConfigurationError("it is not a file")
    with path.open("rb") as file:
        return file.read(len(MAGIC)) in (MAGIC, bytes(len(MAGIC)))


def _logs(path: Path) -> list[Path]:
    """What SQLite may have beside a database."""
    return [path.with_name(path.name + end) for end in ("-wal", "-journal")]


def _remove(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
