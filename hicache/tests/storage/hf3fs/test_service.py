"""MetadataService: connections that are slow, too long or left over, and a file that takes no more."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from hicache.storage.hf3fs import service as service_module
from hicache.storage.hf3fs.catalogue import Catalogue
from hicache.storage.hf3fs.service import MetadataService

from .conftest import Serve

CLEAR = b"POST /0/clear HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"


def keep(catalogue: Catalogue, key: str) -> None:
    ((_, page),) = catalogue.reserve("0:kv", [key]).indices
    catalogue.confirm("0:kv", [(key, page)], [])


def told(service: MetadataService, request: bytes) -> bytes:
    """All that is answered to these bytes, while nobody says that there will be no more."""
    with socket.create_connection((str(service.host), service.port), timeout=30) as connection:
        connection.sendall(request)
        answer = b""
        while found := connection.recv(1 << 16):
            answer += found
        return answer


def told_on(connection: HTTPConnection) -> int:
    connection.request("POST", "/0/clear", b"{}")
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
    answer = told(service, f"POST /0/exists HTTP/1.1\r\n{head}\r\n\r\n".encode() + CLEAR)
    assert answer.startswith(b"HTTP/1.1 4"), f"SEC-4: expected 4xx, got {answer[:100]!r}"
    # Whatever else it would answer comes before this.
    service.close()
    assert catalogue.exist("0:kv", "a") == [True], "SEC-4: nobody asked to clear it"


def test_a_body_that_does_not_come_is_given_up(service: MetadataService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module._Exchange, "timeout", 0.1)
    monkeypatch.setattr(service_module, "_DRAIN_S", 0.1)
    answer = told(service, b"POST /0/exists HTTP/1.1\r\nContent-Length: 20\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 408 "), f"SEC-4: expected 408, got {answer[:100]!r}"


def test_nobody_is_answered_after_the_end(service: MetadataService) -> None:
    with closing(HTTPConnection(str(service.host), service.port, timeout=30)) as connection:
        connection.request("POST", "/0/initialize", b'{"num_pages":1}')
        assert connection.getresponse().status == 204, "it serves"
        service.close()
        with pytest.raises(OSError, match=r"closed|reset|Broken pipe|refused"):
            told_on(connection)


def test_a_change_that_cannot_be_kept_is_not_told(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Catalogue(tmp_path / "metadata.json")) as catalogue:
        service = serve(catalogue)
        catalogue.initialise("0:kv", 1)

        def fail(_: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with closing(HTTPConnection(str(service.host), service.port, timeout=30)) as connection:
            with monkeypatch.context() as broken:
                broken.setattr(os, "fdatasync", fail)
                connection.request("POST", "/0/reserve_and_allocate_page_indices", b'{"keys":[["a",""]]}')
                response = connection.getresponse()
                found = (response.status, b"cannot be stored" in response.read())
            assert found == (503, True), f"STORE-10: expected 503 with the reason, got {found}"
            connection.request("POST", "/0/exists", b'{"keys":["a"]}')
            assert connection.getresponse().status == 200, "it serves on"
