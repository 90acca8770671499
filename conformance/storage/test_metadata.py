"""STORE-10, STORE-14, SEC-4, SEC-7: the metadata service of 3FS separates pools, and servers validate every request."""

from __future__ import annotations

import json
import logging
import random
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from hicache.errors import ConfigurationError
from hicache.storage.hf3fs.catalogue import RESERVATION_S, Catalogue
from hicache.storage.hf3fs.pages import MAX_KEYS
from hicache.storage.hf3fs.service import MAX_BODY_BYTES, MetadataService
from hicache.testing.contract import clause
from hicache.testing.storage.subject import Place

from .metadata import JSON, Metadata

# STORE-10: the metadata service of 3FS separates pools, and shows only confirmed pages.


LEGACY = {"0": {"num_pages": 4, "free_pages": [0, 1], "key_to_index": [["a", 3], ["b", 2]]}}
"""The file format from before namespaces, with one list of pages for each rank."""


@contextmanager
def served(file: Path | None, age_limit_s: float = RESERVATION_S) -> Iterator[Metadata]:
    """A running service that stores its catalogue in a file."""
    catalogue = Catalogue(file, age_limit_s=age_limit_s)
    service = MetadataService(catalogue)
    service.start()
    try:
        yield Metadata(str(service.host), service.port)
    finally:
        service.close()
        catalogue.close()


@clause("STORE-10")
def test_the_pools_of_a_rank_are_separate(metadata: Metadata) -> None:
    kv, mamba = metadata.of(0, "kv"), metadata.of(0, "mamba")
    kv.initialise(3)
    mamba.initialise(2)
    kv.keep("a", "b")
    assert mamba.exist("a", "b") == [False, False], "STORE-10: the pages of another pool are out of sight"
    mamba.keep("a", "c")
    assert (kv.find("a", "b", "c"), mamba.find("a", "b", "c")) == ([2, 1, None], [1, None, 0]), (
        "STORE-10: each pool has its own pages, from its last one on"
    )
    mamba.keep("d")
    assert kv.exist("a", "b") == [True, True], "STORE-10: a pool makes room in itself"
    mamba.ask("clear")
    assert kv.exist("a", "b") == [True, True], "STORE-10: a pool is cleared alone"
    assert mamba.exist("a", "c", "d") == [False] * 3, "STORE-10: and that one is empty"


@clause("STORE-10")
def test_ranks_are_separate(metadata: Metadata) -> None:
    first, second = metadata.of(0, "kv"), metadata.of(1, "kv")
    first.initialise(2)
    assert second.ask("exists", keys=["a"]).status == 404, "STORE-10: another rank has no pages yet"
    second.initialise(2)
    first.keep("a")
    assert second.exist("a") == [False], "STORE-10: the pages of another rank are out of sight"


@clause("STORE-10")
def test_a_request_without_a_namespace_means_kv(metadata: Metadata) -> None:
    unnamed = metadata.of(0, None)
    unnamed.initialise(2)
    unnamed.keep("a")
    assert metadata.of(0, "kv").exist("a") == [True], "STORE-10: without a name it is kv"


@clause("STORE-10")
def test_a_page_is_not_visible_before_it_is_confirmed(metadata: Metadata) -> None:
    metadata.initialise(3)
    assert metadata.reserve("a", "b") == [[False, 2], [False, 1]], "STORE-10: two pages to write"
    assert metadata.exist("a", "b") == [False, False], (
        "STORE-10: the pages are not confirmed: expected none to be visible"
    )
    assert metadata.find("a", "b") == [None, None], "STORE-10: the pages are not confirmed: expected none to be visible"
    assert metadata.confirm(("a", 2), released=(1,)) == 204, "STORE-10: one was written, and the other was not"
    assert metadata.exist("a", "b") == [True, False], "STORE-10: one was written, and the other was not"
    assert metadata.find("a", "b") == [2, None], "STORE-10: one was written, and the other was not"
    assert metadata.reserve("a", "c") == [[True, 2], [False, 1]], "STORE-10: what was not written is free again"


@clause("STORE-10")
def test_no_page_is_reserved_twice(metadata: Metadata) -> None:
    metadata.initialise(4)
    metadata.keep("a")
    pages = [page for _, page in (*metadata.reserve("b", "c"), *metadata.reserve("d", "e"), *metadata.reserve("f"))]
    taken = [page for page in pages if page >= 0]
    assert sorted(taken) == [0, 1, 2, 3], f"STORE-10: four pages for four keys, and none for the others: got {pages}"
    assert metadata.exist("a") == [False], "STORE-10: the page of a was handed out, so that it is a's no more"
    assert metadata.confirm(("a", 3)) == 409, "STORE-10: the page is not reserved for a: expected status 409"
    assert metadata.confirm(released=(3, 3)) == 409, "STORE-10: a page can be given back once"


@clause("STORE-10")
def test_a_batch_does_not_evict_its_own_keys(metadata: Metadata) -> None:
    metadata.initialise(3)
    metadata.keep("a", "b")
    found = metadata.reserve("a", "c", "d", "e")
    assert found[0] == [True, 2], f"STORE-10: a is there, got {found}"
    assert sorted(page for _, page in found) == [-1, 0, 1, 2], f"STORE-10: a page has one key at a time, got {found}"
    assert metadata.find("a") == [2], "STORE-10: expected the page that the batch returned for a"


@clause("STORE-10")
@pytest.mark.usefixtures("metadata")
def test_a_file_without_namespaces_is_read_as_kv(tmp_path: Path) -> None:
    file = tmp_path / "metadata.json"
    file.write_text(json.dumps(LEGACY))
    with served(file) as old:
        assert old.of(0, "kv").find("a", "b", "c") == [3, 2, None], "STORE-10: the pages of rank 0 are those of its kv"
        assert old.of(0, "mamba").ask("exists", keys=["a"]).status == 404, "STORE-10: it knew no other pool"
        assert old.reserve("c", "d") == [[False, 1], [False, 0]], "STORE-10: what was free is free"
    with served(file) as again:
        assert again.of(0, "kv").find("a", "b", "c") == [3, 2, None], "STORE-10: what was read is stored"


@clause("STORE-10")
@pytest.mark.usefixtures("metadata")
def test_only_confirmed_pages_are_visible_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "metadata.json"
    with served(file) as first:
        first.of(0, "mamba").initialise(2)
        first.initialise(3)
        first.keep("a", "b", "c")
        first.keep("d")
        (page,) = [page for _, page in first.reserve("e")]
    with served(file) as second:
        assert second.exist("a", "b", "c", "d", "e") == [False, False, True, True, False], (
            "STORE-10: a and b made room, and e was not confirmed"
        )
        assert second.of(0, "mamba").exist("a") == [False], "STORE-10: the other pool is there, and empty"
        others = [found for _, found in second.reserve("f", "g", "h")]
        assert page not in others, f"STORE-10: page {page} is being written, and was handed out again: {others}"
        assert second.confirm(("e", page)) == 204, "STORE-10: who was writing it can confirm it"
        assert second.find("e") == [page], "STORE-10: now it is visible"


@clause("STORE-10")
@pytest.mark.usefixtures("metadata")
@pytest.mark.parametrize("content", ["{broken", "[]", '{"0": {}}', '{"x": {}}', ""])
def test_a_file_that_cannot_be_read_is_refused_and_unchanged(tmp_path: Path, content: str) -> None:
    file = tmp_path / "metadata.json"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=re.escape(str(file))):
        Catalogue(file)
    assert file.read_text() == content, f"STORE-10: nothing is known of its pages, so that it stays, got {content}"


@clause("STORE-10")
def test_a_namespace_is_deleted_alone(metadata: Metadata) -> None:
    kv, mamba = metadata.of(0, "kv"), metadata.of(0, "mamba")
    kv.initialise(3)
    mamba.initialise(2)
    kv.keep("a")
    mamba.keep("a")
    (page,), reservation = kv.reserve_named("b")
    assert kv.ask("delete_namespace").status == 204, "STORE-10: a namespace can be deleted"
    assert kv.ask("exists", keys=["a"]).status == 404, "STORE-10: it is gone"
    assert kv.ask("delete_namespace").status == 404, "STORE-10: it was deleted once"
    assert mamba.exist("a") == [True], "STORE-10: the other one is as it was"
    found = mamba.ask("namespaces").content["namespaces"]
    assert list(found) == ["mamba"], f"STORE-10: expected the other one alone, got {found}"
    kv.initialise(5)
    assert kv.exist("a") == [False], "STORE-10: a namespace that has its name later is another one"
    kv.reserve("c", "d", "e", "f", "g")
    assert kv.confirm(("b", page), reservation=reservation) == 409, "STORE-14: its reservations ended with it"


# STORE-14: a reservation belongs to the call that made it, also after a crash.


@clause("STORE-14")
@pytest.mark.usefixtures("metadata")
def test_a_late_word_does_not_concern_the_next_owner_of_a_page() -> None:
    # The time of a reservation is over at once.
    with served(None, 0.0) as metadata:
        metadata.initialise(1)
        (page,), first = metadata.reserve_named("a")
        assert metadata.reserve_named("b")[0] == [page], "STORE-14: the time of the first reservation is over"
        (page,), third = metadata.reserve_named("a")
        late = (
            metadata.confirm(released=(page,), reservation=first),
            metadata.confirm(("a", page), reservation=first),
            metadata.confirm(("b", page), reservation=first),
            metadata.confirm(released=(page,)),
            metadata.confirm(("a", page)),
        )
        assert late == (409,) * 5, f"STORE-14: it is not the reservation of the page: expected 409, got {late}"
        assert metadata.ask("usage").content["reserved"] == 1, "STORE-14: the page is still being written"
        assert metadata.confirm(("a", page), reservation=third) == 204, "STORE-14: its owner can confirm it"
        assert metadata.find("a") == [page], "STORE-14: and it is visible"


@clause("STORE-14")
@pytest.mark.usefixtures("metadata")
def test_a_late_word_without_an_id_frees_nothing_either() -> None:
    with served(None, 0.0) as metadata:
        metadata.initialise(1)
        ((_, page),) = metadata.reserve("a")
        assert metadata.reserve("b") == [[False, page]], "STORE-14: the time of the first reservation is over"
        assert metadata.confirm(released=(page,)) == 409, "STORE-14: it may be the first writer who says this"
        assert metadata.confirm(("a", page)) == 409, "STORE-14: the page is not reserved for a"
        assert metadata.confirm(("b", page)) == 204, "STORE-14: the second writer can confirm it"


def copied(file: Path, folder: Path) -> Path:
    """The files of a running service, as they would be if it died now."""
    folder.mkdir()
    for path in file.parent.glob(f"{file.name}*"):
        shutil.copy(path, folder / path.name)
    return folder / file.name


@clause("STORE-14")
@pytest.mark.usefixtures("metadata")
def test_a_reservation_outlives_a_crash(tmp_path: Path) -> None:
    with served(tmp_path / "metadata.json") as first:
        first.initialise(3)
        first.keep("a")
        (page,), reservation = first.reserve_named("b")
        file = copied(tmp_path / "metadata.json", tmp_path / "crashed")
    with served(file) as second:
        assert second.exist("a", "b") == [True, False], "STORE-14: a was confirmed, and b was not"
        others = [found for _, found in second.reserve("c", "d", "e")]
        assert page not in others, f"STORE-14: page {page} is being written, and was handed out again: {others}"
        assert second.confirm(released=(page,), reservation="0" * 16) == 409, "STORE-14: it is of another call"
        assert second.confirm(("b", page), reservation=reservation) == 204, "STORE-14: its writer can confirm it"
        assert second.find("b") == [page], "STORE-14: now it is visible"


@clause("STORE-14")
@pytest.mark.usefixtures("metadata")
@pytest.mark.parametrize("crashes", [1, 2])
def test_the_pages_of_a_dead_writer_are_not_lost(tmp_path: Path, crashes: int) -> None:
    file = tmp_path / "metadata.json"
    with served(file) as first:
        first.initialise(3)
        first.reserve_named("a", "b")
        first.reserve("c")
        file = copied(file, tmp_path / "crashed-1")
    for number in range(1, crashes):
        with served(file) as again:
            assert again.ask("usage").content["reserved"] == 3, "STORE-14: their writers may still be there"
            file = copied(file, tmp_path / f"crashed-{number + 1}")
    with served(file, 0.0) as last:
        pages = [page for _, page in last.reserve("d", "e", "f")]
        assert sorted(pages) == [0, 1, 2], f"STORE-14: no writer came in time: expected all pages, got {pages}"


# SEC-4: the servers of this package listen on loopback only, and validate every request.


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
    "a reservation that is no text": ("confirm_write", {"reservation": 1, "pages_to_release": []}),
    "a reservation that is no id": ("confirm_write", {"reservation": "../x", "pages_to_release": []}),
    "an id that is to be neither": (RESERVE, {"keys": [["b", ""]], "with_reservation": 1}),
    "more pages than a namespace has": ("initialize", {"num_pages": 1 << 24, "namespace": "other"}),
}

WRONG_BODIES = {
    "no JSON": b"{nope",
    "nothing": b"",
    "no text": b'{"keys":["\xff\xfe"]}',
    "too deep": b"[" * 100_000,
    "a number without end": b'{"keys":' + b"9" * 10_000 + b"}",
}

HEAD = b"Host: localhost\r\nContent-Type: application/json\r\n"
"""The headers of every request that is served."""

POST = b"POST /0/exists HTTP/1.1\r\n" + HEAD

WRONG_REQUESTS = {
    "another method": b"GET /0/exists HTTP/1.1\r\n" + HEAD + b"\r\n",
    "an unknown method": b"NAP /0/exists HTTP/1.1\r\n" + HEAD + b"\r\n",
    "no length": POST + b"\r\n",
    "a length that is no number": POST + b"Content-Length: +2\r\n\r\n{}",
    "less than nothing": POST + b"Content-Length: -1\r\n\r\n{}",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "pieces": POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "a body that ends too soon": POST + b"Content-Length: 20\r\n\r\n{}",
    "another version": b"POST /0/exists HTTP/9.9\r\n" + HEAD + b"Content-Length: 2\r\n\r\n{}",
    "no version": b"POST /0/exists\r\n\r\n",
    "no words": b"\x00\x01\x02\r\n\r\n",
    "a long line": b"POST /" + b"0" * 100_000 + b" HTTP/1.1\r\n\r\n",
    "a long header": POST + b"A: " + b"0" * 100_000 + b"\r\n\r\n",
    "many headers": POST + b"A: b\r\n" * 1000 + b"\r\n",
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
def test_a_body_that_cannot_be_read_is_refused(kept: Metadata) -> None:
    for name, body in WRONG_BODIES.items():
        status, content = kept.post("/0/exists", body)
        assert 400 <= status < 500, f"SEC-4: {name}: expected 4xx, got {status} {content}"
        assert content["detail"], f"SEC-4: {name}: the answer says what is wrong, got {content}"
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
def test_an_unknown_path_is_refused(kept: Metadata) -> None:
    for path in WRONG_PATHS:
        status, content = kept.post(path, b'{"keys":["a"]}')
        assert 400 <= status < 500, f"SEC-4: {path}: expected 4xx, got {status} {content}"
    require_unchanged(kept)


@clause("SEC-4")
def test_an_uninitialised_namespace_is_refused(metadata: Metadata) -> None:
    for operation in ("exists", "delete_keys", "get_page_indices", RESERVE, "confirm_write", "clear", "usage"):
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
        answer = kept.send(POST + f"Content-Length: {10**14}\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 413 "), f"SEC-4: expected 413 before the body comes, got {answer[:100]!r}"
    require_unchanged(kept)


@clause("SEC-4")
@pytest.mark.parametrize("operation", ["exists", "get_page_indices", RESERVE, "delete_keys", "confirm_write"])
def test_a_request_of_too_many_keys_is_refused(kept: Metadata, operation: str) -> None:
    keys = [str(number) for number in range(MAX_KEYS + 1)]
    pairs = [[key, ""] for key in keys] if operation == RESERVE else keys
    status, content = kept.ask(operation, keys=pairs, pages_to_release=list(range(MAX_KEYS + 1)))
    assert status == 413, f"SEC-4: {operation} of {len(keys)} keys: expected 413, got {status} {str(content)[:100]}"
    require_unchanged(kept)


@clause("SEC-4")
def test_a_request_of_the_most_keys_is_served(kept: Metadata) -> None:
    found = kept.exist("a", *(str(number) for number in range(MAX_KEYS - 1)))
    assert found == [True] + [False] * (MAX_KEYS - 1), f"SEC-4: {MAX_KEYS} keys are not too many, got {found[:3]}"


@clause("SEC-4")
def test_no_namespace_takes_the_room_of_all(kept: Metadata) -> None:
    for pages in (1 << 24, 1 << 23):
        status, content = kept.of(0, "large").ask("initialize", num_pages=pages)
        assert status == 409, f"SEC-4: a namespace of {pages} pages: expected 409, got {status}"
        assert "a namespace has at most" in content["detail"], f"SEC-4: the answer names the limit, got {content}"
    for name in ("first", "second", "third"):
        kept.of(0, name).initialise(1 << 22)
    require_unchanged(kept)


@clause("SEC-4")
def test_a_body_of_the_maximum_length_is_read(kept: Metadata) -> None:
    body = b'{"keys":["a"]}'
    status, content = kept.post("/0/exists", body + b" " * (MAX_BODY_BYTES - len(body)))
    assert (status, content) == (200, {"exists": [True]}), f"SEC-4: it is not too long, got {status} {content}"


@clause("SEC-4")
def test_the_rest_of_a_refused_body_is_not_served_as_a_request(kept: Metadata) -> None:
    smuggled = b"POST /0/clear HTTP/1.1\r\n" + HEAD + b"Content-Length: 2\r\n\r\n{}"
    kept.send(POST + b"Transfer-Encoding: chunked\r\n\r\n" + smuggled)
    kept.send(POST + f"Content-Length: {10**14}\r\n\r\n".encode() + smuggled)
    require_unchanged(kept)


@clause("SEC-4")
def test_a_refused_field_keeps_the_connection_open(kept: Metadata) -> None:
    connection = HTTPConnection(kept.host, kept.port, timeout=30)
    for _ in range(2):
        connection.request("POST", "/0/exists", b'{"keys":1}', JSON)
        response = connection.getresponse()
        assert (response.status, bool(response.read())) == (422, True), "SEC-4: an answer that tells what is wrong"
        assert isinstance(connection.sock, socket.socket), "SEC-4: the body was read whole, so that it can be used on"
    connection.close()
    require_unchanged(kept)


VALID: tuple[tuple[str, object], ...] = (
    ("initialize", {"num_pages": 3, "namespace": "kv"}),
    ("exists", {"keys": ["a", "b"], "namespace": "kv"}),
    ("get_page_indices", {"keys": ["a"]}),
    (RESERVE, {"keys": [["a", ""], ["b", "a"]], "with_reservation": True}),
    ("confirm_write", {"written_keys_to_confirm": [["a", 2]], "pages_to_release": [1], "reservation": "0" * 16}),
    ("delete_keys", {"keys": ["a"]}),
    ("clear", {"namespace": "mamba"}),
    ("usage", {}),
    ("namespaces", {}),
    ("delete_namespace", {"namespace": "mamba"}),
)

STRANGE: tuple[object, ...] = (
    *(
        None,
        True,
        -1,
        0,
        1.5,
        1 << 63,
        10**400,
        float("inf"),
        float("nan"),
        "",
        "a",
        "\x00",
        "\ud800",
        "é" * 99,
        [],
        {},
    ),
    *([[]], [None], ["a", 1], [["a", 1, 2]], [[[[["a"]]]]], {"a": []}, ["a" * 2000], [1 << 60]),
)

PIECES = (
    b"\r\n",
    b"\n",
    b"\x00",
    b" ",
    b":",
    b"HTTP/1.1",
    b"HTTP/1.0",
    b"%00",
    b"//",
    b"..",
    b"\xff",
    b"0",
    b"-",
    b"{",
    b"}",
)


MORE_HEADERS = (
    "Expect: 100-continue",
    "Connection: keep-alive",
    "Transfer-Encoding: chunked",
    "A" * 70_000,
    ": x",
    "Host: x",
)


def request_of(dice: random.Random) -> bytes:
    """A request with a few things changed: values of its fields, its headers, or any bytes."""
    operation, fields = dice.choice(VALID)
    body: Any = dict(fields) if isinstance(fields, dict) else fields
    for _ in range(dice.randrange(3)):
        body[dice.choice([*body, "namespace", "keys", "x"])] = dice.choice(STRANGE)
    content = json.dumps(body if dice.random() < 0.95 else dice.choice(STRANGE)).encode()
    length = len(content) if dice.random() < 0.9 else dice.choice([0, 1, len(content) + 9, 10**9, 10**30, -1, "x"])
    headers = ["Host: localhost", "Content-Type: application/json", f"Content-Length: {length}"]
    headers += dice.sample(MORE_HEADERS, dice.choice([0, 0, 0, 1, 2]))
    rank = dice.choice(["0", "0", "0", "7", "-1", "9" * 30, "x"])
    head = f"POST /{rank}/{operation} HTTP/1.1\r\n" + "\r\n".join(headers) + "\r\n\r\n"
    found = bytearray(head.encode() + content)
    for _ in range(dice.choice([0, 0, 1, 2, 5])):
        begin = dice.randrange(len(found) + 1)
        found[begin : begin + dice.randrange(4)] = dice.choice([dice.choice(PIECES), dice.randbytes(2), b""])
    return bytes(found)


@clause("SEC-4")
@pytest.mark.parametrize("seed", range(4))
def test_no_request_ends_in_an_error_of_the_server(
    kept: Metadata, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], seed: int
) -> None:
    dice = random.Random(seed)
    for number in range(500):
        request = request_of(dice)
        answer = kept.send(request)
        statuses = {int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", answer)}
        assert not statuses or max(statuses) < 500, (
            f"SEC-4: request {number} of seed {seed}, {request[:300]!r}: expected no 5xx, got {answer[:200]!r}"
        )
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert not errors, f"SEC-4: expected no error of the server with seed {seed}, got {errors[:3]}"
    assert "Traceback" not in capfd.readouterr().err, f"SEC-4: expected no traceback with seed {seed}"
    last = kept.of(0, "last")
    last.initialise(2)
    last.keep("a")
    assert last.exist("a", "b") == [True, False], f"SEC-4: the service serves after the requests of seed {seed}"


# SEC-7: a web page of another site changes nothing, and a token guards what others can reach.

OF_OTHER_PAGES: dict[str, dict[str, str]] = {
    "plain text": {"Content-Type": "text/plain"},
    "a form": {"Content-Type": "application/x-www-form-urlencoded"},
    "no content type": {},
    "JSON by its name alone": {"Content-Type": "text/plain; application/json"},
    "a page of another site": {**JSON, "Origin": "https://other.example"},
    "a page of another service of this machine": {**JSON, "Origin": "http://localhost:1"},
    "a page without an origin": {**JSON, "Origin": "null"},
    "a name that was bound to this address": {**JSON, "Host": "other.example"},
    "that name with the port": {**JSON, "Host": "other.example:18000"},
    "an address that begins like this one": {**JSON, "Host": "127.0.0.1.other.example"},
    "a user before another host": {**JSON, "Host": "localhost@other.example"},
    "an empty host": {**JSON, "Host": ""},
}

TOKEN = "a-token-for-a-test-of-this-clause"  # noqa: S105 - it guards nothing

NOT_THE_TOKEN: dict[str, dict[str, str]] = {
    "none": {},
    "another": {"Authorization": f"Bearer {TOKEN[:-1]}X"},
    "its beginning": {"Authorization": f"Bearer {TOKEN[:-1]}"},
    "more than it": {"Authorization": f"Bearer {TOKEN}X"},
    "an empty one": {"Authorization": "Bearer "},
    "another scheme": {"Authorization": f"Basic {TOKEN}"},
    "other letters": {"Authorization": "Bearer \xe4" + TOKEN[1:]},
}

CHANGES = ("initialize", RESERVE, "confirm_write", "delete_keys", "clear", "delete_namespace")


@clause("SEC-7")
@pytest.mark.parametrize("headers", OF_OTHER_PAGES.values(), ids=OF_OTHER_PAGES)
def test_a_page_of_another_site_changes_nothing(kept: Metadata, headers: dict[str, str]) -> None:
    for operation in CHANGES:
        status, content = kept.post(f"/0/{operation}", b'{"keys":["a"],"num_pages":1}', headers=headers)
        assert 400 <= status < 500, f"SEC-7: {operation} with {headers}: expected 4xx, got {status} {content}"
        assert content["detail"], f"SEC-7: the answer says what is wrong, got {content}"
    require_unchanged(kept)


@clause("SEC-7")
@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:18000"])
def test_the_names_of_this_machine_are_served(kept: Metadata, host: str) -> None:
    found = kept.post("/0/exists", b'{"keys":["a"]}', headers={**JSON, "Host": host, "Origin": f"http://{host}"})
    assert found == (200, {"exists": [True]}), f"SEC-7: {host} is this machine, got {found}"


@clause("SEC-7")
@pytest.mark.usefixtures("metadata")
@pytest.mark.parametrize("headers", NOT_THE_TOKEN.values(), ids=NOT_THE_TOKEN)
def test_nothing_is_changed_without_the_token(headers: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    service = MetadataService(Catalogue(None), token=TOKEN)
    service.start()
    try:
        asked = Metadata(str(service.host), service.port)
        body = b'{"num_pages":3}'
        given = {**JSON, "Authorization": f"Bearer {TOKEN}"}
        assert asked.post("/0/initialize", body, headers=given).status == 204, "SEC-7: who has the token is served"
        for operation in CHANGES:
            status, content = asked.post(f"/0/{operation}", body, headers={**JSON, **headers})
            assert status == 401, f"SEC-7: {operation} with {headers}: expected 401, got {status} {content}"
            assert TOKEN not in str(content), f"SEC-7: no answer shows the token, got {content}"
        assert asked.post("/0/usage", b"{}", headers=given).content["free"] == 3, "SEC-7: nothing was changed"
    finally:
        service.close()
    assert TOKEN not in caplog.text, "SEC-7: no log shows the token"


@clause("SEC-7")
@pytest.mark.usefixtures("metadata")
@pytest.mark.parametrize("host", ["0.0.0.0", ""])  # noqa: S104 - it is refused
def test_an_address_that_others_reach_needs_a_token(host: str) -> None:
    refused = pytest.raises(ConfigurationError, match="not a loopback address: the service needs a token")
    # A service that is not refused is closed: left to the collection of garbage, it would be an error of a later test.
    with ExitStack() as opened, refused:
        opened.callback(MetadataService(Catalogue(None), host=host).close)
    MetadataService(Catalogue(None), host=host, token=TOKEN).close()
