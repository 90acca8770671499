"""SEC-4: the servers of this package listen on loopback only, and validate every request."""

from __future__ import annotations

import json
import socket
from http.client import HTTPConnection
from ipaddress import ip_address

import pytest

from hicache.storage.hf3fs.service import MAX_BODY_BYTES
from hicache.testing.contract import clause
from hicache.testing.storage.subject import Place

from .metadata import Metadata

RESERVE = "reserve_and_allocate_page_indices"

WRONG_FIELDS: dict[str, tuple[str, object]] = {
    "no object": ("exists", ["a"]),
    "no keys": ("exists", {}),
    "keys that are no list": ("exists", {"keys": "ab"}),
    "a key that is no text": ("exists", {"keys": ["a", 1]}),
    "an empty key": ("get_page_indices", {"keys": [""]}),
    "a long key": ("delete_keys", {"keys": ["k" * 1025]}),
    "keys that are null": ("delete_keys", {"keys": None}),
    "keys without prefixes": (RESERVE, {"keys": ["a"]}),
    "half a pair": (RESERVE, {"keys": [["a"]]}),
    "a prefix that is no text": (RESERVE, {"keys": [["a", 1]]}),
    "a key that is a list": (RESERVE, {"keys": [[["a"], ""]]}),
    "no number of pages": ("initialize", {}),
    "a number of pages in a text": ("initialize", {"num_pages": "3", "namespace": "other"}),
    "no pages at all": ("initialize", {"num_pages": 0, "namespace": "other"}),
    "less than no pages": ("initialize", {"num_pages": -1, "namespace": "other"}),
    "half a page": ("initialize", {"num_pages": 1.5, "namespace": "other"}),
    "true pages": ("initialize", {"num_pages": True, "namespace": "other"}),
    "another number of pages": ("initialize", {"num_pages": 99}),
    "more pages than there is memory": ("initialize", {"num_pages": 1 << 52, "namespace": "other"}),
    "pages without end": ("initialize", {"num_pages": 10**400, "namespace": "other"}),
    "a namespace that is no text": ("exists", {"keys": [], "namespace": 1}),
    "a namespace with a colon": ("initialize", {"num_pages": 1, "namespace": "kv:1"}),
    "a namespace without a name": ("initialize", {"num_pages": 1, "namespace": ""}),
    "a page beyond the last": ("confirm_write", {"written_keys_to_confirm": [["b", 12345]]}),
    "a page before the first": ("confirm_write", {"written_keys_to_confirm": [["b", -1]]}),
    "a page that is no number": ("confirm_write", {"written_keys_to_confirm": [["b", "0"]]}),
    "a page that is true": ("confirm_write", {"written_keys_to_confirm": [["b", True]]}),
    "a page that nobody reserved": ("confirm_write", {"written_keys_to_confirm": [["b", 0]]}),
    "another's page": ("confirm_write", {"written_keys_to_confirm": [["b", 2]]}),
    "the release of another's page": ("confirm_write", {"pages_to_release": [2]}),
    "the release of a page that is free": ("confirm_write", {"pages_to_release": [1]}),
    "the release of a page that there is not": ("confirm_write", {"pages_to_release": [777]}),
    "releases that are no list": ("confirm_write", {"pages_to_release": 1}),
}

WRONG_BODIES = {
    "no JSON": b"{nope",
    "nothing": b"",
    "no text": b'{"keys":["\xff\xfe"]}',
    "too deep": b"[" * 100_000,
    "a number without end": b'{"keys":' + b"9" * 10_000 + b"}",
}

WRONG_REQUESTS = {
    "another method": b"GET /0/exists HTTP/1.1\r\nHost: a\r\n\r\n",
    "an unknown method": b"NAP /0/exists HTTP/1.1\r\nHost: a\r\n\r\n",
    "no length": b"POST /0/exists HTTP/1.1\r\nHost: a\r\n\r\n",
    "a length that is no number": b"POST /0/exists HTTP/1.1\r\nContent-Length: +2\r\n\r\n{}",
    "less than nothing": b"POST /0/exists HTTP/1.1\r\nContent-Length: -1\r\n\r\n{}",
    "two lengths": b"POST /0/exists HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "pieces": b"POST /0/exists HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "a body that ends too soon": b"POST /0/exists HTTP/1.1\r\nContent-Length: 20\r\n\r\n{}",
    "another version": b"POST /0/exists HTTP/9.9\r\nContent-Length: 2\r\n\r\n{}",
    "no version": b"POST /0/exists\r\n\r\n",
    "no words": b"\x00\x01\x02\r\n\r\n",
    "a long line": b"POST /" + b"0" * 100_000 + b" HTTP/1.1\r\n\r\n",
    "a long header": b"POST /0/exists HTTP/1.1\r\nA: " + b"0" * 100_000 + b"\r\n\r\n",
    "many headers": b"POST /0/exists HTTP/1.1\r\n" + b"A: b\r\n" * 1000 + b"\r\n",
}

WRONG_PATHS = ("/", "/0", "/0/nope", "/0/exists/", "//exists", "/x/exists", "/-1/exists", "/1.0/exists", "/0//exists")


@pytest.fixture
def kept(metadata: Metadata) -> Metadata:
    """A service with three pages, one of which belongs to key `a`."""
    metadata.initialise(3)
    metadata.keep("a")
    return metadata


def require_unchanged(metadata: Metadata) -> None:
    """The service still answers, and its pages have not changed."""
    found = (metadata.find("a", "b"), metadata.reserve("c", "d", "e"))
    expected = ([2, None], [[False, 1], [False, 0], [False, 2]])
    assert found == expected, f"SEC-4: what was refused changes nothing: expected {expected}, got {found}"


@clause("SEC-4")
@pytest.mark.usefixtures("metadata")
def test_a_server_listens_on_loopback_only(place: Place) -> None:
    assert place.metadata is not None, "the service is there when its client is"
    host = str(place.metadata.host)
    assert ip_address(host).is_loopback, f"SEC-4: expected a loopback address by default, got {host}"


@clause("SEC-4")
@pytest.mark.parametrize(("operation", "fields"), WRONG_FIELDS.values(), ids=WRONG_FIELDS)
def test_every_field_is_validated(kept: Metadata, operation: str, fields: object) -> None:
    status, content = kept.post(f"/0/{operation}", json.dumps(fields).encode())
    assert 400 <= status < 500, f"SEC-4: {operation} with {str(fields)[:80]}: expected 4xx, got {status} {content}"
    assert content["detail"], f"SEC-4: the answer says what is wrong, got {content}"
    require_unchanged(kept)


@clause("SEC-4")
@pytest.mark.parametrize("body", WRONG_BODIES.values(), ids=WRONG_BODIES)
def test_a_body_that_cannot_be_read_is_refused(kept: Metadata, body: bytes) -> None:
    status, content = kept.post("/0/exists", body)
    assert 400 <= status < 500, f"SEC-4: a body of {body[:20]!r}: expected 4xx, got {status} {content}"
    assert content["detail"], f"SEC-4: the answer says what is wrong, got {content}"
    require_unchanged(kept)


@clause("SEC-4")
@pytest.mark.parametrize("request_bytes", WRONG_REQUESTS.values(), ids=WRONG_REQUESTS)
def test_a_request_that_cannot_be_read_is_refused(kept: Metadata, request_bytes: bytes) -> None:
    answer = kept.send(request_bytes)
    head, _, content = answer.partition(b"\r\n\r\n")
    # To a client that does not speak HTTP/1 a server may answer without a head, or in HTML.
    assert b" 4" in head[:10] or b'"detail"' in answer, f"SEC-4: expected 4xx, got {answer[:200]!r}"
    assert b" 200 " not in answer, f"SEC-4: nothing of it was served, got {answer[:200]!r}"
    assert content or b'"detail"' in head, f"SEC-4: the answer says what is wrong, got {answer[:200]!r}"
    require_unchanged(kept)


@clause("SEC-4")
@pytest.mark.parametrize("path", WRONG_PATHS)
def test_an_unknown_path_is_refused(kept: Metadata, path: str) -> None:
    status, content = kept.post(path, b'{"keys":["a"]}')
    assert 400 <= status < 500, f"SEC-4: {path}: expected 4xx, got {status} {content}"
    require_unchanged(kept)


@clause("SEC-4")
def test_an_uninitialised_namespace_is_refused(metadata: Metadata) -> None:
    for operation in ("exists", "delete_keys", "get_page_indices", RESERVE, "confirm_write", "clear"):
        status, _ = metadata.ask(operation, keys=[])
        assert status == 404, f"SEC-4: {operation} of nothing: expected 404, got {status}"


@clause("SEC-4")
@pytest.mark.parametrize("is_sent", [True, False], ids=["sent", "announced"])
def test_a_body_that_is_too_long_is_refused(kept: Metadata, is_sent: bool) -> None:
    length = MAX_BODY_BYTES + 1
    if is_sent:
        status, content = kept.post("/0/exists", b"[" + b" " * (length - 1))
        assert status == 413, f"SEC-4: a body of {length} bytes: expected 413, got {status} {content}"
    else:
        answer = kept.send(f"POST /0/exists HTTP/1.1\r\nContent-Length: {10**14}\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 413 "), f"SEC-4: expected 413 before the body comes, got {answer[:100]!r}"
    require_unchanged(kept)


@clause("SEC-4")
def test_a_body_of_the_maximum_length_is_read(kept: Metadata) -> None:
    body = b'{"keys":["a"]}'
    status, content = kept.post("/0/exists", body + b" " * (MAX_BODY_BYTES - len(body)))
    assert (status, content) == (200, {"exists": [True]}), f"SEC-4: it is not too long, got {status} {content}"


@clause("SEC-4")
def test_the_rest_of_a_refused_body_is_not_served_as_a_request(kept: Metadata) -> None:
    smuggled = b"POST /0/clear HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"
    kept.send(b"POST /0/exists HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + smuggled)
    kept.send(f"POST /0/exists HTTP/1.1\r\nContent-Length: {10**14}\r\n\r\n".encode() + smuggled)
    require_unchanged(kept)


@clause("SEC-4")
def test_a_refused_field_keeps_the_connection_open(kept: Metadata) -> None:
    connection = HTTPConnection(kept.host, kept.port, timeout=30)
    for _ in range(2):
        connection.request("POST", "/0/exists", b'{"keys":1}')
        response = connection.getresponse()
        assert (response.status, bool(response.read())) == (422, True), "SEC-4: an answer that tells what is wrong"
        assert isinstance(connection.sock, socket.socket), "SEC-4: the body was read whole, so that it can be used on"
    connection.close()
    require_unchanged(kept)
