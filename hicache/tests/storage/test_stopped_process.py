"""A process that is stopped while it holds a lock blocks no other forever, and is named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hicache.errors import ConfigurationError
from hicache.storage.registry import open_backend

from .conftest import PAGE_BYTES, SCOPE, Open, page, put, take

TIMEOUT_S = 0.2

OPTIONS: dict[str, dict[str, Any]] = {
    "file": {"lock_timeout_s": TIMEOUT_S},
    "slotfile": {"lock_timeout_s": TIMEOUT_S, "capacity_slots": 4},
}

LOCK_FOLDER = "backend._folder.locked()"
CHANGE_INDEX = "backend._index._changing()"

CHILD = f"""
import sys
from hicache.storage.registry import open_backend
backend = open_backend(sys.argv[1], {SCOPE!r}, {{"root": ".", **eval(sys.argv[2])}})
with eval(sys.argv[3]):
    print("locked", flush=True)
    sys.stdin.read()
"""
"""Holds a lock until its input ends."""

both = pytest.mark.parametrize(
    ("name", "lock"),
    [("file", LOCK_FOLDER), ("slotfile", LOCK_FOLDER), ("slotfile", CHANGE_INDEX)],
    ids=["file", "slotfile's folder", "slotfile's index"],
)

Stopped = Callable[[str, str], Any]


@pytest.fixture
def stopped(tmp_path: Path) -> Stopped:
    @contextmanager
    def start(name: str, lock: str) -> Iterator[int]:
        """A process that is stopped with a lock: its number. At the end it goes on and closes its backend."""
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, name, repr(OPTIONS[name]), lock],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        ) as child:
            assert child.stdout is not None, "the process was started with pipes"
            assert child.stdout.readline() == b"locked\n", "it holds the lock"
            os.kill(child.pid, signal.SIGSTOP)
            try:
                yield child.pid
            finally:
                os.kill(child.pid, signal.SIGCONT)
                child.communicate()

    return start


@both
def test_who_waits_for_a_stopped_process_gives_up_and_names_it(
    open_in: Open, stopped: Stopped, caplog: pytest.LogCaptureFixture, name: str, lock: str
) -> None:
    backend = open_in(name, **OPTIONS[name])
    assert put(backend, a=page(1)) == [True], "before, no process waits"
    with stopped(name, lock) as pid:
        assert take(backend, "a") == page(1), "who reads needs no lock"
        answers = [*put(backend, b=page(2)), backend.clear()]
        backend.close()
        told = [record.getMessage() for record in caplog.records]
    locks_index = name == "slotfile" and lock == LOCK_FOLDER
    assert answers == [locks_index] * 2, f"STORE-3: expected a refusal of set and clear, got {answers}"
    assert any(f"process {pid} holds the lock" in line for line in told), f"expected process {pid} in {told}"


@both
def test_a_folder_that_a_stopped_process_has_locked_is_refused(
    open_in: Open, stopped: Stopped, tmp_path: Path, name: str, lock: str
) -> None:
    open_in(name, **OPTIONS[name])
    with stopped(name, lock) as pid, pytest.raises(ConfigurationError, match=f"process {pid} holds the lock"):
        open_backend(name, SCOPE, {"root": str(tmp_path), **OPTIONS[name]})
    again = open_in(name, **OPTIONS[name])
    assert put(again, c=page(3)) == [True], "when that process goes on, the folder can be used"


@pytest.mark.parametrize("name", OPTIONS)
def test_a_page_that_waited_in_vain_leaves_no_file(open_in: Open, stopped: Stopped, tmp_path: Path, name: str) -> None:
    backend = open_in(name, **OPTIONS[name])
    with stopped(name, LOCK_FOLDER if name == "file" else CHANGE_INDEX):
        assert put(backend, a=page(1)) == [False], "it cannot be stored"
        left = [path for path in (tmp_path / SCOPE / "writers").rglob("*") if path.is_file()]
    assert not left, f"expected no file of {PAGE_BYTES} bytes, got {left}"
    assert put(backend, a=page(1)) == [True], "later it can"
