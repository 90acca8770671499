"""MetadataService: connections that are slow, too long or left over, and exchanges with clients of this protocol."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection
from http.server import ThreadingHTTPServer
from pathlib import Path
from select import select
from typing import Any

import pytest

from hicache.clock import VirtualClock
from hicache.storage.hf3fs import connection as connection_module
from hicache.storage.hf3fs import service as service_module
from hicache.storage.hf3fs.catalogue import Catalogue
from hicache.storage.hf3fs.service import MetadataService
from hicache.tests.storage.conftest import Serve, full_disk

JSON = {"Content-Type": "application/json"}
HEAD = b"Host: localhost\r\nContent-Type: application/json\r\n"
POST = b"POST /0/exists HTTP/1.1\r\n" + HEAD
CLEAR = b"POST /0/clear HTTP/1.1\r\n" + HEAD + b"Content-Length: 2\r\n\r\n{}"


def keep(catalogue: Catalogue, key: str) -> None:
    ((_, page),) = catalogue.reserve("0:kv", [key]).indices
    catalogue.confirm("0:kv", [(key, page)], [])


def told(service: MetadataService, request: bytes) -> bytes:
    """The whole answer to these bytes, on a connection that stays open."""
    with socket.create_connection((str(service.host), service.port), timeout=30) as connection:
        connection.sendall(request)
        answer = b""
        while found := connection.recv(1 << 16):
            answer += found
        return answer


def told_on(connection: HTTPConnection) -> int:
    connection.request("POST", "/0/clear", b"{}", JSON)
    return connection.getresponse().status


@pytest.mark.parametrize("head", ["Transfer-Encoding: chunked", f"Content-Length: {10**14}", "Content-Length: -1"])
def test_what_follows_a_body_that_was_not_read_is_no_request(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    monkeypatch.setattr(service_module, "_MAX_UNREAD_BYTES", 0)
    catalogue = Catalogue(None)
    catalogue.initialise("0:kv", 1)
    keep(catalogue, "a")
    service = serve(catalogue)
    answer = told(service, POST + f"{head}\r\n\r\n".encode() + CLEAR)
    assert answer.startswith(b"HTTP/1.1 4"), f"SEC-4: expected 4xx, got {answer[:100]!r}"
    # Any further answer comes before this.
    service.close()
    assert catalogue.exist("0:kv", "a") == [True], "SEC-4: it was not cleared"


def test_a_body_that_does_not_come_is_given_up(service: MetadataService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "REQUEST_S", 0.1)
    monkeypatch.setattr(service_module, "_DRAIN_S", 0.1)
    answer = told(service, POST + b"Content-Length: 20\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 408 "), f"SEC-4: expected 408, got {answer[:100]!r}"


def test_nobody_is_answered_after_the_end(service: MetadataService) -> None:
    with closing(HTTPConnection(str(service.host), service.port, timeout=30)) as connection:
        connection.request("POST", "/0/initialize", b'{"num_pages":1}', JSON)
        assert connection.getresponse().status == 204, "it serves"
        service.close()
        with pytest.raises(OSError, match=r"closed|reset|Broken pipe|refused"):
            told_on(connection)


def test_a_change_that_cannot_be_kept_is_not_told(serve: Serve, tmp_path: Path) -> None:
    with closing(Catalogue(tmp_path / "metadata.json")) as catalogue:
        service = serve(catalogue)
        catalogue.initialise("0:kv", 1)
        with closing(HTTPConnection(str(service.host), service.port, timeout=30)) as connection:
            with full_disk(0):
                connection.request("POST", "/0/reserve_and_allocate_page_indices", b'{"keys":[["a",""]]}', JSON)
                response = connection.getresponse()
                found = (response.status, b"cannot be stored" in response.read())
            assert found == (503, True), f"STORE-10: expected 503 with the reason, got {found}"
            connection.request("POST", "/0/exists", b'{"keys":["a"]}', JSON)
            assert connection.getresponse().status == 200, "it serves on"


# Exchanges that other clients of this protocol have with other servers, word by word; and where we answer better.

RESERVE = "reserve_and_allocate_page_indices"
ABSENT = b"""{"detail":"Rank 0 namespace 'kv' not initialized. Please call /0/initialize first."}"""

RECORDED: list[tuple[str, bytes, int, bytes]] = [
    ("0/exists", b'{"keys":["a"],"namespace":"kv"}', 404, ABSENT),
    ("0/initialize", b'{"num_pages":3,"namespace":"kv"}', 204, b""),
    ("0/initialize", b'{"num_pages":3,"namespace":"kv"}', 204, b""),
    ("0/initialize", b'{"num_pages":2,"namespace":"mamba"}', 204, b""),
    (f"0/{RESERVE}", b'{"keys":[["a",""],["b",""]],"namespace":"kv"}', 200, b'{"indices":[[false,2],[false,1]]}'),
    ("0/get_page_indices", b'{"keys":["a"],"namespace":"kv"}', 200, b'{"indices":[null]}'),
    ("0/confirm_write", b'{"written_keys_to_confirm":[["a",2]],"pages_to_release":[1],"namespace":"kv"}', 204, b""),
    ("0/exists", b'{"keys":["a","b"],"namespace":"kv"}', 200, b'{"exists":[true,false]}'),
    ("0/exists", b'{"keys":["a","b"]}', 200, b'{"exists":[true,false]}'),
    (
        f"0/{RESERVE}",
        b'{"keys":[["a",""],["c",""],["d",""]],"namespace":"kv"}',
        200,
        b'{"indices":[[true,2],[false,1],[false,0]]}',
    ),
    (
        "0/confirm_write",
        b'{"written_keys_to_confirm":[["c",1],["d",0]],"pages_to_release":[],"namespace":"kv"}',
        204,
        b"",
    ),
    ("0/get_page_indices", b'{"keys":["d","none","a"],"namespace":"kv"}', 200, b'{"indices":[0,null,2]}'),
    ("0/delete_keys", b'{"keys":["c","nope"],"namespace":"kv"}', 204, b""),
    ("0/get_page_indices", b'{"keys":["a"],"namespace":"mamba"}', 200, b'{"indices":[null]}'),
    ("0/clear", b'{"namespace":"kv"}', 204, b""),
    (f"0/{RESERVE}", b'{"keys":[["a","p"]],"namespace":"kv"}', 200, b'{"indices":[[false,2]]}'),
    ("0/confirm_write", b"{}", 204, b""),
    ("0/nope", b"{}", 404, b'{"detail":"Not Found"}'),
]
"""One after the other, on one connection: path, body, status, content."""

BETTER: dict[str, tuple[str, bytes, int, bytes]] = {
    "another number of pages, 204 elsewhere": ("0/initialize", b'{"num_pages":99}', 409, b"3 pages"),
    "a page that there is not, 204 elsewhere": (
        "0/confirm_write",
        b'{"written_keys_to_confirm":[["bogus",12345]],"pages_to_release":[777]}',
        422,
        b"12345",
    ),
    "a page that is another's, 204 elsewhere": ("0/confirm_write", b'{"pages_to_release":[2]}', 409, b"refused"),
    "a key twice, two pages elsewhere": (
        f"0/{RESERVE}",
        b'{"keys":[["x",""],["x",""]]}',
        200,
        b'{"indices":[[false,1],[false,1]]}',
    ),
    "what the batch was told goes elsewhere": (
        f"0/{RESERVE}",
        b'{"keys":[["a",""],["c",""],["d",""],["e",""]]}',
        200,
        b'{"indices":[[true,2],[false,1],[false,0],[false,-1]]}',
    ),
    "no JSON, 500 elsewhere": ("0/exists", b"{nope", 400, b"not JSON"),
    "a field that is not there, 500 elsewhere": ("0/exists", b"{}", 422, b"keys: got nothing"),
    "a text for a number, 500 elsewhere": ("8/initialize", b'{"num_pages":"x"}', 422, b"num_pages: got 'x'"),
    "a rank that is no number, told otherwise elsewhere": ("abc/exists", b'{"keys":[]}', 422, b"rank in the path"),
}
"""After a namespace of three pages was made, one of which is a's: path, body, status, and a part of the content."""


def ask(connection: HTTPConnection, path: str, body: bytes) -> tuple[int, bytes, str | None]:
    connection.request("POST", f"/{path}", body, JSON)
    response = connection.getresponse()
    return response.status, response.read(), response.headers["Content-Length"]


def test_what_others_were_recorded_to_say_is_answered_as_it_was(service: MetadataService) -> None:
    connection = HTTPConnection(str(service.host), service.port, timeout=30)
    for number, (path, body, status, content) in enumerate(RECORDED):
        expected = (status, content, str(len(content)) if content else None)
        answer = ask(connection, path, body)
        assert answer == expected, f"STORE-10: exchange {number}, {path} {body!r}: expected {expected}, got {answer}"
    connection.close()


@pytest.mark.parametrize(("path", "body", "status", "content"), BETTER.values(), ids=BETTER)
def test_what_others_get_wrong_is_answered_better(
    service: MetadataService, path: str, body: bytes, status: int, content: bytes
) -> None:
    with closing(HTTPConnection(str(service.host), service.port, timeout=30)) as connection:
        for before in (
            ("0/initialize", b'{"num_pages":3}'),
            (f"0/{RESERVE}", b'{"keys":[["a",""]]}'),
            ("0/confirm_write", b'{"written_keys_to_confirm":[["a",2]]}'),
        ):
            assert ask(connection, *before)[0] in (200, 204), f"STORE-10: {before} is served"
        answer = ask(connection, path, body)
        assert answer[0] == status, f"SEC-4: {path} {body!r}: expected {status}, got {answer}"
        assert content in answer[1].replace(b'\\"', b'"'), f"SEC-4: expected {content!r} in {answer}"


# Connections: there are never so many that the service cannot go on, and none is held forever.


def opened(service: MetadataService) -> socket.socket:
    return socket.create_connection((str(service.host), service.port), timeout=30)


@pytest.mark.parametrize(
    "sent", [b"POST /0/exi", POST, POST + b"Content-Length: 99\r\n\r\n{"], ids=["line", "head", "body"]
)
def test_a_request_that_comes_byte_by_byte_is_given_up(sent: bytes) -> None:
    clock = VirtualClock()
    service = MetadataService(Catalogue(None), clock=clock)
    service.start()
    with closing(service), opened(service) as slow:
        slow.sendall(sent)
        answer = b""
        with suppress(ConnectionError):
            # Each byte comes in time for a limit on single reads.
            while select([slow], [], [], 0.01)[0] == []:
                clock.advance(connection_module.REQUEST_S / 4)
                slow.sendall(b" ")
            while found := slow.recv(1 << 16):
                answer += found
        assert b" 200 " not in answer, f"SEC-4: expected the end of the connection, got {answer!r}"
        assert clock.now() < 1_000, "SEC-4: it ends after a bounded time"


def test_a_connection_that_waits_gives_way_to_a_new_one(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    monkeypatch.setattr(service_module, "MAX_CONNECTIONS", 3)
    service = serve(Catalogue(None))
    with ExitStack() as held:
        for _ in range(10):
            held.enter_context(opened(service))
        with closing(HTTPConnection(str(service.host), service.port, timeout=30)) as connection:
            connection.request("POST", "/0/initialize", b'{"num_pages":1}', JSON)
            assert connection.getresponse().status == 204, "SEC-4: those who ask nothing do not keep out who asks"
            assert len(service._server._connections) <= 3, "SEC-4: there are no more connections than that"


def test_without_descriptors_the_service_waits_before_it_tries_again(
    monkeypatch: pytest.MonkeyPatch, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    pauses, attempts, failures = list[float](), list[object](), 5
    accept = ThreadingHTTPServer.get_request

    def fail(server: ThreadingHTTPServer) -> tuple[socket.socket, Any]:
        attempts.append(server)
        if len(attempts) <= failures:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(server)

    service = serve(Catalogue(None))
    # No longer than needed: a service that closes waits for its connections by the same method.
    with monkeypatch.context() as changed:
        changed.setattr(ThreadingHTTPServer, "get_request", fail)
        changed.setattr(service._server._changed, "wait", pauses.append)
        with closing(HTTPConnection(str(service.host), service.port, timeout=30)) as connection:
            connection.request("POST", "/0/initialize", b'{"num_pages":1}', JSON)
            assert connection.getresponse().status == 204, "it serves when there are descriptors again"
    assert pauses == [service_module.PAUSE_S] * failures, f"one pause for each failure, got {pauses}"
    assert caplog.text.count("cannot be accepted") == 1, f"the failure is logged once, got {caplog.text}"


# Who may ask: the names of the service.

TOKEN = "a-token-that-guards-nothing"  # noqa: S105 - as it says


def status_of(service: MetadataService, host: str) -> int:
    """The status of a request with this Host."""
    with closing(HTTPConnection("127.0.0.1", service.port, timeout=30)) as connection:
        headers = {**JSON, "Host": host, "Authorization": f"Bearer {TOKEN}"}
        connection.request("POST", "/0/initialize", b'{"num_pages":1}', headers)
        return connection.getresponse().status


@pytest.mark.parametrize("address", ["", "0.0.0.0"])  # noqa: S104 - there is a token
def test_a_service_is_reached_by_its_names(address: str) -> None:
    with closing(MetadataService(Catalogue(None), host=address, token=TOKEN, names=["Node7.example"])) as service:
        service.start()
        served = ("node7.example:18000", "NODE7.example", "127.0.0.1", "localhost:1")
        refused = ("", " ", ":1", "node7", "node7.example.org", "127.0.0.1.", "[::1", "a b")
        found = {host: status_of(service, host) for host in (*served, *refused)}
    expected = {**dict.fromkeys(served, 204), **dict.fromkeys(refused, 421)}
    assert found == expected, f"SEC-7: expected {expected}, got {found}"


def test_a_header_that_occurs_twice_is_refused(service: MetadataService) -> None:
    for twice in (b"Host: localhost\r\n", b"Content-Type: application/json\r\n", b"Origin: a\r\nOrigin: a\r\n"):
        answer = told(service, POST + twice + b"Content-Length: 2\r\n\r\n{}")
        assert answer.startswith(b"HTTP/1.1 400 "), f"SEC-7: which one counts? expected 400, got {answer[:100]!r}"
