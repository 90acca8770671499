"""ObjectStorage: objects that others have damaged, pages in parts, retries, secrets, folders and options."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from hicache.errors import ConfigurationError
from hicache.storage.objects import MIN_PART_BYTES, ObjectStorage
from hicache.storage.registry import open_backend
from hicache.testing.storage.page_bytes import Sheet
from hicache.tests.storage.engines.engine import EngineProcess
from hicache.tests.storage.engines.engines import BUCKET

from .conftest import SCOPE, Open, Start
from .test_faults import KEYS, kept, read

pytestmark = [pytest.mark.parametrize("engine", ["moto"], indirect=True), pytest.mark.usefixtures("engine")]

DAMAGED, OTHER = KEYS[0], KEYS[1]


def name(key: str) -> str:
    """The name of an object in the bucket."""
    return f"hicache/{SCOPE}/{key}"


class Client:
    """Reads and writes objects as no backend does."""

    def __init__(self, options: dict[str, Any]) -> None:
        from obstore.store import S3Store

        self._store = S3Store(**options, client_options={"allow_http": True})

    def get(self, key: str) -> bytes:
        """The bytes of an object."""
        import obstore

        return bytes(obstore.get(self._store, name(key)).bytes())

    def put(self, path: str, content: bytes) -> None:
        """Write an object, also where there is one."""
        import obstore

        obstore.put(self._store, path, content)

    def paths(self) -> list[str]:
        """The names of all objects."""
        import obstore

        return [one["path"] for part in obstore.list(self._store) for one in part]


def changed(content: bytes) -> bytes:
    """The content with another byte in the middle."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


DAMAGE: dict[str, tuple[str, Callable[[Client], bytes]]] = {
    "a page under another name": ("corrupt", lambda client: client.get(OTHER)),
    "other bytes in it": ("corrupt", lambda client: changed(client.get(DAMAGED))),
    "another checksum": ("corrupt", lambda client: b"12345678" + client.get(DAMAGED)[8:]),
    "an empty object": ("short", lambda _: b""),
    "a byte less": ("short", lambda client: client.get(DAMAGED)[:-1]),
    "a byte more": ("long", lambda client: client.get(DAMAGED) + b"1"),
}


@pytest.fixture
def process(start: Start) -> EngineProcess:
    """A server."""
    return start()


@pytest.fixture
def client(process: EngineProcess) -> Client:
    """A client that writes what no backend does."""
    return Client(process.options)


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_object_is_a_miss_and_is_removed(
    process: EngineProcess, open_on: Open, client: Client, kind: str
) -> None:
    backend = open_on(process)
    kept(backend)
    reason, damage = DAMAGE[kind]
    client.put(name(DAMAGED), damage(client))
    assert read(backend) == [key != DAMAGED for key in KEYS], f"STORE-3, STORE-13: {kind} is a miss, the rest is there"
    assert backend.stats().misses == {reason: 1}, f"STORE-3: expected {reason}, got {backend.stats()}"
    assert backend.has([DAMAGED]) == [False], "STORE-3: it is removed"
    assert all(kept(backend)), "STORE-3: it can be written again"
    assert all(read(backend)), "STORE-3: and read"


def test_a_page_that_another_instance_has_written_meanwhile_is_not_replaced(
    process: EngineProcess, open_on: Open, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = open_on(process)
    assert isinstance(backend, ObjectStorage), "the backend of this file"
    client.put(name(DAMAGED), b"theirs")
    # As if the object came between the question and the write.
    monkeypatch.setattr(backend, "_has_object", lambda _: False)
    assert all(kept(backend)), "STORE-5: a page that exists is an answer of True"
    assert backend.stats().present == 1, f"STORE-5: expected one page that was there, got {backend.stats()}"
    assert client.get(DAMAGED) == b"theirs", "STORE-5: an object that exists is not changed"


def test_a_large_page_is_written_in_parts(process: EngineProcess, open_on: Open) -> None:
    backend, size = open_on(process, part_bytes=MIN_PART_BYTES, timeout_s=60), 2 * MIN_PART_BYTES + 7
    given, target = Sheet([(size,)] * 2), Sheet([(size // 2, size - size // 2)] * 2)
    for page in range(2):
        given.write(page, bytes([page + 1]) * size)
    assert backend.set(KEYS[:2], given.pages, []) == [True] * 2, "they are stored"
    assert backend.set(KEYS[:2], target.pages, []) == [True] * 2, "STORE-5: they are there"
    assert backend.get(KEYS[:2], target.pages, []) == [True] * 2, "they are there"
    assert [target.read(page) for page in range(2)] == [given.read(page) for page in range(2)], "STORE-3: the same"


def test_a_scope_sees_no_objects_of_others(process: EngineProcess, open_on: Open, client: Client) -> None:
    backend, other = open_on(process), open_on(process, prefix="ours/2026")
    theirs = ["theirs", f"hicache/{SCOPE}-2/{KEYS[0]}"]
    for path in theirs:
        client.put(path, b"12345678")
    kept(backend)
    assert not any(other.has(KEYS)), "STORE-7: another prefix has none of them"
    assert backend.stats().objects == len(KEYS), f"STORE-7: expected the pages of the scope, got {backend.stats()}"
    assert backend.clear(), "STORE-7: all are removed"
    assert sorted(client.paths()) == sorted(theirs), f"STORE-7: the objects of others stay, found {client.paths()}"


def test_more_objects_than_one_page_of_a_list(process: EngineProcess, open_on: Open) -> None:
    backend = open_on(process, timeout_s=60)
    keys = [f"kv/{number}" for number in range(1_010)]
    sheet = Sheet([(16,)] * len(keys))
    assert all(backend.set(keys, sheet.pages, [])), "there is room"
    assert backend.stats().objects == len(keys), f"STORE-7: expected {len(keys)} objects, got {backend.stats()}"
    assert backend.clear(), "STORE-7: all are removed"
    assert backend.stats().objects == 0, f"STORE-7: none is left, got {backend.stats()}"


def test_a_bucket_that_does_not_exist_is_an_error_at_opening(process: EngineProcess, open_on: Open) -> None:
    with pytest.raises(ConfigurationError, match="NoSuchBucket"):
        open_on(process, bucket="none")


@contextmanager
def answering(statuses: list[int], before: Callable[[str], object] = lambda _: None) -> Iterator[tuple[str, list[str]]]:
    """A server that answers with these statuses, the last of them again and again; its URL, and what it was asked.

    It has an empty list of objects. `before`: called with the method of each request, before it is answered.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status = statuses[min(len(asked), len(statuses) - 1)]
            asked.append(f"{self.command} {self.headers.get('Authorization', '')}")
            before(self.command)
            body = b"<ListBucketResult></ListBucketResult>" if status == HTTPStatus.OK else b""
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_HEAD = do_PUT = answer  # noqa: N815 - the names that the class calls

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def test_a_request_is_repeated_as_often_as_the_option_says() -> None:
    keys = {"access_key_id": "a-key", "secret_access_key": "a-secret-of-no-use"}
    with answering([404, 200, 503]) as (url, asked):
        options = {"bucket": BUCKET, "endpoint": url, "retries": 3, "retry_s": 3_600, **keys}
        with closing(open_backend("objects", SCOPE, options)) as backend:
            before = len(asked)
            assert backend.has(KEYS[:1]) == [False], "STORE-3: a service that always fails is a miss"
            assert len(asked) - before == 4, f"expected one request and three retries, got {asked[before:]}"
            assert backend.has(KEYS) == [False] * len(KEYS), "STORE-3: nothing is known to be there"
            assert len(asked) - before == 4, f"a service that failed is not asked at once, got {asked[before:]}"


def test_keys_come_from_the_environment_and_no_log_shows_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "a-secret-of-the-environment"  # noqa: S105 - of a server that ends with the test
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key-of-the-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    with answering([500]) as (url, asked), caplog.at_level(logging.DEBUG):
        options = {"bucket": BUCKET, "endpoint": url, "retries": 0, "retry_s": 0}
        with closing(open_backend("objects", SCOPE, options)) as backend:
            assert not any(read(backend)), "STORE-3: a service that fails gives misses"
            assert "key-of-the-environment" in asked[0], f"expected the key in the request, got {asked[0]}"
            assert secret not in caplog.text + str(asked) + repr(backend), "SEC-1: the secret is shown"


def test_a_folder_takes_the_place_of_a_bucket(tmp_path: Path) -> None:
    with closing(open_backend("objects", SCOPE, {"root": str(tmp_path / "new")})) as backend:
        assert kept(backend) == read(backend) == [True] * len(KEYS), "they are there"
        assert (tmp_path / "new" / "hicache" / SCOPE / KEYS[0].replace("/", "+")).is_file(), "each is a file"


def test_a_process_that_dies_within_a_write_to_a_folder_leaves_a_file_that_is_not_listed(tmp_path: Path) -> None:
    with closing(open_backend("objects", SCOPE, {"root": str(tmp_path)})) as backend:
        kept(backend)
        folder = tmp_path / "hicache" / SCOPE
        (folder / "kv+unfinished#1").write_bytes(b"half of a page")
        assert backend.stats().objects == len(KEYS), f"STORE-4: it is not an object, got {backend.stats()}"
        assert backend.clear(), "STORE-7: all objects are removed"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "bucket"),
        ({"bucket": ""}, "bucket"),
        ({"bucket": "a", "root": "b"}, "bucket"),
        ({"root": "b", "endpoint": "http://127.0.0.1:1"}, "endpoint"),
        ({"root": "/dev/null/b"}, "root"),
        ({"root": "b", "prefix": "../b"}, "prefix"),
        ({"bucket": "a", "access_key_id": "b"}, "access_key_id"),
        ({"bucket": "a", "timeout_s": 0}, "timeout_s"),
        ({"bucket": "a", "connections": 0}, "connections"),
        ({"bucket": "a", "retries": -1}, "retries"),
        ({"bucket": "a", "part_bytes": 1}, "part_bytes"),
        ({"bucket": "a", "key": "b"}, "key"),
    ],
    ids=str,
)
def test_an_option_that_is_wrong_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{named}'"):
        ObjectStorage(SCOPE, options)
