"""Metadata: asks a metadata service as any client would, in the words of its protocol."""

from __future__ import annotations

import json
import socket
from http.client import HTTPConnection
from typing import Any, NamedTuple

ANSWER_BYTES = 1 << 16


class Answer(NamedTuple):
    """A status, and the content in JSON; None for none."""

    status: int
    content: Any


class Metadata:
    """One service. `rank`, `namespace`: whose pages are meant, the latter None for a request that names none."""

    def __init__(self, host: str, port: int, rank: int = 0, namespace: str | None = "kv") -> None:
        self.host, self.port, self.rank, self.namespace = host, port, rank, namespace

    def of(self, rank: int, namespace: str | None) -> Metadata:
        """The same service, for other pages."""
        return Metadata(self.host, self.port, rank, namespace)

    def ask(self, operation: str, **fields: object) -> Answer:
        """One operation with these fields."""
        named = {} if self.namespace is None else {"namespace": self.namespace}
        return self.post(f"/{self.rank}/{operation}", json.dumps({**fields, **named}).encode())

    def post(self, path: str, body: bytes, method: str = "POST") -> Answer:
        """One request with this body."""
        connection = HTTPConnection(self.host, self.port, timeout=30)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            found = response.read()
            return Answer(response.status, json.loads(found) if found else None)
        finally:
            connection.close()

    def send(self, request: bytes) -> bytes:
        """The answer to any bytes, until the service has nothing more to say."""
        with socket.create_connection((self.host, self.port), timeout=30) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while found := connection.recv(ANSWER_BYTES):
                answer += found
            return answer

    def initialise(self, num_pages: int) -> None:
        """Make the namespace."""
        assert self.ask("initialize", num_pages=num_pages) == (204, None), "STORE-10: a namespace can be made"

    def reserve(self, *keys: str) -> list[list[Any]]:
        """For each key whether it has a page, and which."""
        answer = self.ask("reserve_and_allocate_page_indices", keys=[[key, ""] for key in keys])
        assert answer.status == 200, f"STORE-10: pages can be reserved, got {answer}"
        indices: list[list[Any]] = answer.content["indices"]
        return indices

    def confirm(self, *written: tuple[str, int], released: tuple[int, ...] = ()) -> int:
        """Confirm pages, and release others; the status."""
        return self.ask("confirm_write", written_keys_to_confirm=written, pages_to_release=released).status

    def keep(self, *keys: str) -> None:
        """Reserve and confirm a page for each key."""
        pages = [page for _, page in self.reserve(*keys)]
        assert self.confirm(*zip(keys, pages, strict=True)) == 204, "STORE-10: what was reserved can be confirmed"

    def exist(self, *keys: str) -> list[bool]:
        """Whether keys have a page that can be seen."""
        found: list[bool] = self.ask("exists", keys=keys).content["exists"]
        return found

    def find(self, *keys: str) -> list[int | None]:
        """The pages of keys."""
        found: list[int | None] = self.ask("get_page_indices", keys=keys).content["indices"]
        return found
