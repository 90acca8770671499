"""RedisStorage: objects that others have damaged, sockets, databases and options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import pytest

from hicache.errors import ConfigurationError
from hicache.storage.redis import RedisStorage
from hicache.storage.redis_server import READ_BYTES
from hicache.storage.registry import open_backend
from hicache.testing.storage.page_bytes import Sheet
from hicache.tests.storage.engines.engine import EngineProcess

from .conftest import SCOPE, Open, Start
from .test_faults import KEYS, kept, read

pytestmark = pytest.mark.parametrize("engine", ["redis"], indirect=True)

DAMAGED, OTHER = KEYS[0], KEYS[1]


def name(key: str) -> str:
    """The key of the server."""
    return f"hicache/{SCOPE}/{key}"


DAMAGE: dict[str, tuple[str, Callable[[Any], object]]] = {
    "a page under another name": ("corrupt", lambda client: client.set(name(DAMAGED), client.get(name(OTHER)))),
    "other bytes in it": ("corrupt", lambda client: client.setrange(name(DAMAGED), 5_000, b"other bytes")),
    "another checksum": ("corrupt", lambda client: client.setrange(name(DAMAGED), 0, b"12345678")),
    "a list": ("corrupt", lambda client: (client.delete(name(DAMAGED)), client.rpush(name(DAMAGED), "one"))),
    "an empty string": ("short", lambda client: client.set(name(DAMAGED), b"")),
    "a byte less": ("short", lambda client: client.set(name(DAMAGED), client.getrange(name(DAMAGED), 0, -2))),
    "a byte more": ("long", lambda client: client.append(name(DAMAGED), b"1")),
}


@pytest.fixture
def process(start: Start) -> EngineProcess:
    """A server."""
    return start()


@pytest.fixture
def client(process: EngineProcess) -> Iterator[Any]:
    """A client that writes what no backend does."""
    import redis

    with closing(redis.Redis(port=process.settings.port)) as opened:
        yield opened


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_object_is_a_miss_and_is_removed(
    process: EngineProcess, open_on: Open, client: Any, kind: str
) -> None:
    backend = open_on(process)
    kept(backend)
    reason, damage = DAMAGE[kind]
    damage(client)
    assert read(backend) == [key != DAMAGED for key in KEYS], f"STORE-3, STORE-13: {kind} is a miss, the rest is there"
    assert backend.stats().misses == {reason: 1}, f"STORE-3: expected {reason}, got {backend.stats()}"
    assert backend.has([DAMAGED]) == [False], "STORE-3: it is removed"
    assert all(kept(backend)), "STORE-3: it can be written again"
    assert all(read(backend)), "STORE-3: and read"


def test_a_page_that_another_instance_has_written_meanwhile_is_not_replaced(
    process: EngineProcess, open_on: Open, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = open_on(process)
    assert isinstance(backend, RedisStorage), "the backend of this file"
    client.set(name(DAMAGED), b"theirs")
    ask = backend._each
    # As if the object came between the question and the write.
    monkeypatch.setattr(
        backend, "_each", lambda command, names: [0] * len(names) if command == b"TOUCH" else ask(command, names)
    )
    assert all(kept(backend)), "STORE-5: a page that exists is an answer of True"
    assert backend.stats().present == 1, f"STORE-5: expected one page that was there, got {backend.stats()}"
    assert client.get(name(DAMAGED)) == b"theirs", "STORE-5: an object that exists is not changed"


def test_more_pages_than_one_request_reads(process: EngineProcess, open_on: Open) -> None:
    backend, size = open_on(process), READ_BYTES // 3
    keys = KEYS[:5]
    given, target = Sheet([(size,)] * len(keys)), Sheet([(size // 2, size - size // 2)] * len(keys))
    for number in range(len(keys)):
        given.write(number, bytes([number + 1]) * size)
    assert backend.set(keys, given.pages, []) == [True] * len(keys), "there is room"
    assert backend.get(keys, target.pages, []) == [True] * len(keys), "all are there"
    pages = range(len(keys))
    assert [target.read(page) for page in pages] == [given.read(page) for page in pages], "STORE-3: the bytes are equal"


def test_a_scope_sees_no_keys_of_others(process: EngineProcess, open_on: Open, client: Any) -> None:
    backend = open_on(process)
    client.set("theirs", b"1")
    client.set(f"hicache/{SCOPE}-2/{KEYS[0]}", b"1")
    kept(backend)
    assert backend.stats().objects == len(KEYS), f"STORE-7: expected the pages of the scope, got {backend.stats()}"
    assert backend.clear(), "STORE-7: all are removed"
    assert client.dbsize() == 2, f"STORE-7: the keys of others stay, found {client.keys()}"


def test_a_unix_socket_and_another_database(engine: Any, open_on: Open) -> None:
    # The path of a socket is limited to 107 bytes, and that of a test's folder may be longer.
    with TemporaryDirectory() as folder:
        path = Path(folder) / "redis.sock"
        server = EngineProcess(engine, Path(folder), arguments=["--unixsocket", str(path), "--databases", "2"])
        with closing(server):
            backend = open_on(server, host=None, port=None, socket=str(path), database=1)
            assert kept(backend) == read(backend) == [True] * len(KEYS), "the pages are there over the socket"
            assert not any(open_on(server).has(KEYS)), "another database has none of them"
            with pytest.raises(ConfigurationError, match="refuses the access"):
                open_on(server, database=2)


def test_a_user_without_access_to_the_keys_is_an_error_at_opening(
    process: EngineProcess, open_on: Open, client: Any
) -> None:
    client.acl_setuser("reader", enabled=True, passwords=["+of-the-reader"], keys=["theirs/*"], categories=["+@all"])
    with pytest.raises(ConfigurationError, match="refuses the access"):
        open_on(process, username="reader", password="of-the-reader")  # noqa: S106 - of a server that ends with the test


def test_an_access_that_is_withdrawn_is_an_error(
    process: EngineProcess, open_on: Open, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client.acl_setuser("writer", enabled=True, passwords=["+of-the-writer"], keys=["hicache/*"], categories=["+@all"])
    backend = open_on(process, username="writer", password="of-the-writer")  # noqa: S106 - ends with the test
    assert kept(backend) == read(backend) == [True] * len(KEYS), "the user has access"
    client.acl_setuser("writer", enabled=True, reset_keys=True, keys=["theirs/*"])
    none = [False] * len(KEYS)
    assert backend.has(KEYS) == kept(backend) == read(backend) == none, "STORE-3: each answer is False"
    assert backend.stats().misses == {"error": len(KEYS)}, f"STORE-3: an error each, got {backend.stats()}"
    assert len(caplog.records) == 1, f"a failure is logged once, got {[one.message for one in caplog.records]}"


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("reply", [b":one\r\n", b"$-2\r\n", b"HTTP/1.1 400\r\n"], ids=repr)
def test_a_server_that_speaks_another_protocol_gives_misses(reply: bytes) -> None:
    class Other(BaseRequestHandler):
        def handle(self) -> None:
            while self.request.recv(1 << 16):
                self.request.sendall(reply)

    with ThreadingTCPServer(("127.0.0.1", 0), Other) as server:
        Thread(target=server.serve_forever).start()
        port = server.server_address[1]
        with closing(open_backend("redis", SCOPE, {"port": port, "timeout_s": 0.2, "retry_s": 0})) as backend:
            none = [False] * len(KEYS)
            assert backend.has(KEYS) == kept(backend) == read(backend) == none, "STORE-3: each answer is False"
        server.shutdown()


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    "options",
    [
        {"port": 0},
        {"port": "6379"},
        {"timeout_s": 0},
        {"timeout_s": -1},
        {"retry_s": True},
        {"database": -1},
        {"url": 1},
    ],
    ids=str,
)
def test_an_option_that_is_wrong_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        RedisStorage(SCOPE, options)
