"""MetadataClient: a service that is gone, silent, or says nonsense is an operating error, and soon."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from threading import Event, Thread

import pytest

from hicache.errors import ConfigurationError
from hicache.storage.hf3fs import client as client_module
from hicache.storage.hf3fs.catalogue import Catalogue
from hicache.storage.hf3fs.client import MetadataClient
from hicache.storage.hf3fs.metadata import MetadataError, Namespace, Written
from hicache.storage.hf3fs.service import MetadataService
from hicache.tests.storage.conftest import Serve

HELD_S = 0.2

KV, STATES = Namespace(0, "kv", 3), Namespace(1, "mamba", 2)

VERBS: dict[str, Callable[[MetadataClient], object]] = {
    "exist": lambda client: client.exist({KV: ["a"]}),
    "find": lambda client: client.find({KV: ["a"]}),
    "reserve": lambda client: client.reserve({KV: ["a"]}),
    "confirm": lambda client: client.confirm({KV: Written([("a", 0)], [], None)}),
    "remove": lambda client: client.remove({KV: ["a"]}),
    "clear": lambda client: client.clear([KV]),
    "confirmed": lambda client: client.confirmed([KV]),
    "exist in two": lambda client: client.exist({KV: ["a"], STATES: ["a"]}),
    "reserve in two": lambda client: client.reserve({KV: ["a"], STATES: ["a"]}),
}
REPEATED = {"exist", "find", "confirmed", "exist in two"}
"""Those that change nothing."""


class Says:
    """Listens, and says the same bytes to each client, None for nothing at all. `asked`: how often."""

    def __init__(self, answer: bytes | None) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._held: list[socket.socket] = []
        self.asked = 0
        self.is_over = Event()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more."""
        self.is_over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for connection in self._held:
            connection.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection = self._listener.accept()[0]
                self.asked += bool(connection.recv(1 << 16))
                if self._answer is None:
                    self._held.append(connection)
                else:
                    connection.sendall(self._answer)
                    connection.close()


def http(status: int, content: object) -> bytes:
    body = json.dumps(content).encode()
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def client_of(url: str, timeout_s: float = 5.0) -> MetadataClient:
    return MetadataClient(url, timeout_s)


@pytest.fixture
def client(service: MetadataService) -> Iterator[MetadataClient]:
    """One who asks a service that knows him not yet."""
    with closing(client_of(service.url)) as opened:
        yield opened


@pytest.mark.parametrize("verb", VERBS)
def test_a_service_that_is_gone_is_an_operating_error(serve: Serve, verb: str) -> None:
    service = serve(Catalogue(None))
    with closing(client_of(service.url)) as client:
        client.initialise([KV])
        service.close()
        with pytest.raises(MetadataError):
            VERBS[verb](client)
        serve(Catalogue(None), port=service.port)
        VERBS[verb](client)


@pytest.mark.parametrize("verb", VERBS)
def test_a_service_that_says_nothing_is_given_up_on(verb: str) -> None:
    with closing(Says(None)) as silent, closing(client_of(silent.url, timeout_s=HELD_S)) as client:
        client._known |= {KV, STATES}
        with pytest.raises(MetadataError, match="TimeoutError"):
            VERBS[verb](client)
        assert silent.asked == 1, f"{verb} waits for {HELD_S} s, and not again: asked {silent.asked} times"


@pytest.mark.parametrize("verb", VERBS)
def test_only_what_changes_nothing_is_asked_again(verb: str) -> None:
    with closing(Says(b"")) as broken, closing(client_of(broken.url)) as client:
        client._known |= {KV, STATES}
        with pytest.raises(MetadataError):
            VERBS[verb](client)
        assert broken.asked == 1 + (verb in REPEATED), f"{verb} was asked {broken.asked} times"


class Drips(Says):
    """Listens, and says one byte after the other, without end."""

    def _serve(self) -> None:
        with suppress(OSError):
            connection = self._listener.accept()[0]
            self._held.append(connection)
            connection.recv(1 << 16)
            connection.sendall(self._answer or b"")
            while not self.is_over.wait(HELD_S / 20):
                connection.sendall(b"a")


DRIPPED = {
    "a line": b"HTTP/1.1 200 O",
    "a header": b"HTTP/1.1 200 OK\r\nA: ",
    "the content": b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n",
}


@pytest.mark.parametrize("begin", DRIPPED.values(), ids=DRIPPED)
def test_an_answer_that_does_not_end_is_given_up(begin: bytes) -> None:
    with closing(Drips(begin)) as dripping, closing(client_of(dripping.url, timeout_s=HELD_S)) as client:
        client._known |= {KV, STATES}
        asked = Thread(target=lambda: raised.append(error_of(client)), daemon=True)
        raised: list[str] = []
        asked.start()
        asked.join(30)
        assert not asked.is_alive(), "each byte comes in time, and the answer does not: expected an end"
    assert "TimeoutError" in raised[0], f"expected a timeout, got {raised}"


def error_of(client: MetadataClient) -> str:
    with pytest.raises(MetadataError) as told:
        client.clear([KV])
    return str(told.value)


NONSENSE = {
    "no HTTP": b"hello\r\n\r\n",
    "no JSON": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhell",
    "half of it": b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n{",
    "no object": http(200, [1]),
    "no answers": http(200, {}),
    "too many answers": http(200, {"exists": [True] * 2, "indices": [1] * 2}),
    "answers of another kind": http(200, {"exists": [1], "indices": ["1"]}),
    "an answer that is no list": http(200, {"exists": "a", "indices": "a"}),
    "a page that there is not": http(200, {"exists": [None], "indices": [[False, 3]]}),
    "half a pair": http(200, {"exists": [None], "indices": [[False]]}),
    "a failure": http(500, {"detail": "no"}),
    "a refusal": http(422, {"detail": "no"}),
    "replies without answers": http(200, {"replies": [[200, {}]] * 2}),
    "too few replies": http(200, {"replies": [[200, {"exists": [True], "indices": [[False, 1]]}]]}),
    "replies without a status": http(200, {"replies": [{"exists": [True], "indices": [[False, 1]]}] * 2}),
    "a reply that is a failure": http(
        200, {"replies": [[200, {"exists": [True], "indices": [[False, 1]]}], [503, {"detail": "no"}]]}
    ),
}


@pytest.mark.parametrize("answer", NONSENSE.values(), ids=NONSENSE)
@pytest.mark.parametrize("verb", ["exist", "find", "reserve", "exist in two", "reserve in two"])
def test_nonsense_is_an_operating_error(verb: str, answer: bytes) -> None:
    with closing(Says(answer)) as foolish, closing(client_of(foolish.url)) as client:
        client._known |= {KV, STATES}
        with pytest.raises(MetadataError):
            VERBS[verb](client)


def test_a_connection_that_was_not_used_for_long_is_not_trusted(
    client: MetadataClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.initialise([KV])
    ((_, first),) = client._idle
    client.clear([KV])
    assert client._idle[0][1] is first, "one connection serves one request after the other"
    monkeypatch.setattr(client_module, "MAX_IDLE_S", 0.0)
    client.clear([KV])
    assert client._idle[0][1] is not first, "the service may have closed it, and a reservation is not asked for twice"


@pytest.mark.parametrize(
    "url", ["", "localhost", "http://localhost", "https://a:1", "http://:1", "http://a:b", "http://a:1/x"]
)
def test_a_url_that_leads_to_no_service_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="metadata_url"):
        client_of(url)


TOKEN = "a-token-that-guards-nothing"  # noqa: S105 - of a service of this test


def test_a_client_presents_its_token() -> None:
    with closing(MetadataService(Catalogue(None), token=TOKEN)) as service:
        service.start()
        with closing(MetadataClient(service.url, 5.0, TOKEN)) as client:
            assert client.reserve({KV: ["a"]})[KV].indices == [(False, 2)], "SEC-7: who has the token is served"
        for token in (None, f"{TOKEN}X"):
            with closing(MetadataClient(service.url, 5.0, token)) as client:
                with pytest.raises(ConfigurationError, match="401 Authorization: expected Bearer") as told:
                    client.initialise([KV])
                with pytest.raises(ConfigurationError, match="401 Authorization: expected Bearer"):
                    client.initialise([KV, STATES])
                assert TOKEN not in str(told.value), "SEC-7: no message shows a token"
