"""NixlFiles and NixlObjects: what they share with FileStorage and ObjectStorage, failures of NIXL, and options."""

from __future__ import annotations

import gc
import time
import weakref
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Thread
from typing import Any

import pytest

from hicache.errors import ConfigurationError
from hicache.storage.nixl import QUEUES, NixlAgent, NixlFiles, NixlObjects
from hicache.storage.registry import open_backend
from hicache.testing.storage.page_bytes import Sheet
from hicache.tests.storage.engines.engines import BUCKET

from .conftest import PAGE_BYTES, SCOPE, Open, Start
from .test_faults import KEYS, kept, read, until
from .test_objects import answering

needs_nixl = pytest.mark.skipif(find_spec("nixl") is None, reason="nixl is not installed: pip install 'hicache[nixl]'")
needs_objects = pytest.mark.skipif(
    find_spec("nixl") is None or find_spec("obstore") is None,
    reason="nixl or obstore is not installed: pip install 'hicache[nixl-objects]'",
)
on_moto = pytest.mark.parametrize("engine", ["moto-nixl"], indirect=True)

TOGETHER_S = 10
"""How long a request waits for others that are under way at the same time."""


@needs_nixl
@pytest.mark.parametrize("queue", [None, *QUEUES])
@pytest.mark.parametrize(("writer", "reader"), [("nixl", "nixl"), ("file", "nixl"), ("nixl", "file")])
def test_files_are_those_of_the_backend_for_files(tmp_path: Path, writer: str, reader: str, queue: str | None) -> None:
    options: dict[str, dict[str, Any]] = {
        "nixl": {"root": str(tmp_path), "queue": queue},
        "file": {"root": str(tmp_path)},
    }
    with closing(open_backend(writer, SCOPE, options[writer])) as first:
        assert kept(first) == [True] * len(KEYS), "STORE-3: there is room"
    with closing(open_backend(reader, SCOPE, options[reader])) as second:
        assert read(second) == [True] * len(KEYS), f"STORE-3: {reader} reads what {writer} has written"


@needs_nixl
def test_a_file_that_is_cut_while_nixl_reads_it_is_an_error(tmp_path: Path) -> None:
    path, size = tmp_path / "page", PAGE_BYTES
    path.write_bytes(bytes(size - 1))
    agent, sheet = NixlAgent("nixl", "POSIX", {}), Sheet([(size,)])
    with path.open("rb") as file:
        with pytest.raises(OSError, match="NIXL_ERR_BACKEND"):
            agent.move_file("READ", sheet.pages[0], file.fileno())
        # The agent goes on after a failure.
        path.write_bytes(bytes([7]) * size)
        agent.move_file("READ", sheet.pages[0], file.fileno())
    assert sheet.read(0) == bytes([7]) * size, "STORE-3: the bytes of the file"


@needs_nixl
def test_a_backend_that_is_closed_keeps_no_agent(tmp_path: Path) -> None:
    backend = NixlFiles(SCOPE, {"root": str(tmp_path)})
    agent = weakref.ref(backend._nixl._agent)
    is_on = gc.isenabled()
    # An agent has requests of the system, of which there are few: it must not wait for the garbage collection.
    gc.disable()
    try:
        backend.close()
        assert agent() is None, "the agent is released"
    finally:
        if is_on:
            gc.enable()


@needs_nixl
def test_a_parameter_that_nixl_refuses_is_an_error_at_opening() -> None:
    with pytest.raises(ConfigurationError, match="NONE does not start"):
        NixlAgent("nixl", "NONE", {})


@needs_nixl
@pytest.mark.parametrize(
    ("options", "named"),
    [({"queue": "threads"}, "queue"), ({}, "root"), ({"root": "a", "capacity_bytes": 0}, "capacity_bytes")],
    ids=str,
)
def test_an_option_for_files_that_is_wrong_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'nixl', option '{named}'"):
        NixlFiles(SCOPE, options)


@on_moto
def test_objects_are_those_of_the_backend_for_objects(start: Start, open_on: Open) -> None:
    process = start()
    with closing(open_backend("objects", SCOPE, process.options)) as plain:
        assert kept(plain) == [True] * len(KEYS), "STORE-3: there is room"
        backend = open_on(process)
        assert read(backend) == [True] * len(KEYS), "STORE-3: NIXL reads what obstore has written"
        assert backend.clear(), "STORE-7: all are removed"
        assert kept(backend) == read(plain) == [True] * len(KEYS), "STORE-3: obstore reads what NIXL has written"


@on_moto
def test_a_late_transfer_writes_into_no_memory_of_the_caller(start: Start, open_on: Open) -> None:
    process = start()
    backend = open_on(process, timeout_s=0.3, retry_s=0, connections=1)
    assert isinstance(backend, NixlObjects), "the backend of this file"
    kept(backend)
    # As if the service stopped between the question for the size and the bytes.
    size = 8 + PAGE_BYTES
    backend._library = Known(size)
    process.pause()
    sheet = Sheet([(PAGE_BYTES,)])
    began = time.monotonic()
    assert backend.get(KEYS[:1], sheet.pages, []) == [False], "STORE-3: what is late is a miss"
    assert time.monotonic() - began < 5, "FLOW-13: the wait is bounded"
    sheet.write(0, bytes([9]) * PAGE_BYTES)
    process.resume()
    until(lambda: backend.get(KEYS[1:2], Sheet([(PAGE_BYTES,)]).pages, []) == [True], "the service goes on")
    assert sheet.read(0) == bytes([9]) * PAGE_BYTES, "STORE-3: the memory belongs to the caller again"


@needs_objects
def test_a_transfer_of_an_object_is_repeated_as_often_as_the_option_says() -> None:
    # NIXL's own repetitions of one request take 26 seconds on a service that is dead.
    with answering([404, 200, 503]) as (url, asked), closing(on_service(url, retries=2)) as backend:
        before = len(asked)
        with pytest.raises(OSError, match="NIXL_ERR_BACKEND"):
            write(backend, 1)
        assert len(asked) - before == 3, f"expected one request and two retries, got {asked[before:]}"


@needs_objects
def test_as_many_transfers_of_objects_are_under_way_as_there_are_connections() -> None:
    count = 4
    together = Barrier(count, timeout=TOGETHER_S)

    def wait_for_others(command: str) -> None:
        if command == "PUT":
            with suppress(BrokenBarrierError):
                together.wait()

    with answering([404, 200], wait_for_others) as (url, asked), closing(on_service(url, connections=count)) as backend:
        writers = [Thread(target=write, args=(backend, number)) for number in range(1, count + 1)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
    assert not together.broken, f"expected {count} requests at a time, got one after the other: {asked}"


def on_service(url: str, **options: object) -> NixlObjects:
    """A backend on a server without authentication."""
    keys = {"access_key_id": "a-key", "secret_access_key": "a-secret-of-no-use"}
    return NixlObjects(SCOPE, {"bucket": BUCKET, "endpoint": url, **keys, **options})


def write(backend: NixlObjects, number: int) -> None:
    """Write one object with NIXL."""
    backend._nixl.move_object("WRITE", bytearray(b"a page"), f"page-{number}", number, timeout_s=60)


class Known:
    """Stands for obstore: it knows the size of every object, and has no other request."""

    def __init__(self, size: int) -> None:
        import obstore.exceptions

        self.exceptions = obstore.exceptions
        self._size = size

    def head(self, *_: object) -> dict[str, int]:
        """The size of an object."""
        return {"size": self._size}


@on_moto
@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("options", [{}, {"root": "a"}, {"bucket": "a", "part_bytes": 1 << 24}], ids=str)
def test_an_option_for_objects_that_is_wrong_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"'nixl-objects'.*'{next(reversed(options), 'bucket')}'"):
        NixlObjects(SCOPE, options)
