"""Metadata: a client of a metadata service that speaks its HTTP protocol."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from http.client import HTTPConnection
from typing import Any, NamedTuple

ANSWER_BYTES = 1 << 16

JSON = {"Content-Type": "application/json"}
"""The header of every request that is served."""


class Answer(NamedTuple):
    """The status, and the content read as JSON; None for no content."""

    status: int
    content: Any


class Metadata:
    """One service. `rank`, `namespace`: of the pages; with None requests name no namespace."""

    def __init__(self, host: str, port: int, rank: int = 0, namespace: str | None = "kv") -> None:
        self.host, self.port, self.rank, self.namespace = host, port, rank, namespace

    def of(self, rank: int, namespace: str | None) -> Metadata:
        """The same service, for another rank and namespace."""
        return Metadata(self.host, self.port, rank, namespace)

    def ask(self, operation: str, **fields: object) -> Answer:
        """Request one operation with these fields."""
        named = {} if self.namespace is None else {"namespace": self.namespace}
        return self.post(f"/{self.rank}/{operation}", json.dumps({**fields, **named}).encode())

    def post(self, path: str, body: bytes, method: str = "POST", headers: Mapping[str, str] = JSON) -> Answer:
        """Send one request with this body."""
        connection = HTTPConnection(self.host, self.port, timeout=30)
        try:
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            found = response.read()
            return Answer(response.status, json.loads(found) if found else None)
        finally:
            connection.close()

    def send(self, request: bytes) -> bytes:
        """Send any bytes; returns the answer until the service closes the connection."""
        with socket.create_connection((self.host, self.port), timeout=30) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while found := connection.recv(ANSWER_BYTES):
                answer += found
            return answer

    def initialise(self, num_pages: int) -> None:
        """Initialise the namespace."""
        assert self.ask("initialize", num_pages=num_pages) == (204, None), "STORE-10: a namespace can be made"

    def reserve(self, *keys: str) -> list[list[Any]]:
        """Reserve pages: for each key whether it has a page already, and the page."""
        answer = self.ask("reserve_and_allocate_page_indices", keys=[[key, ""] for key in keys])
        assert answer.status == 200, f"STORE-10: pages can be reserved: expected 200, got {answer}"
        indices: list[list[Any]] = answer.content["indices"]
        return indices

    def reserve_named(self, *keys: str) -> tuple[list[int], str]:
        """Reserve pages; returns the pages and the id of the reservation."""
        answer = self.ask("reserve_and_allocate_page_indices", keys=[[key, ""] for key in keys], with_reservation=True)
        assert answer.status == 200, f"STORE-14: pages can be reserved: expected 200, got {answer}"
        assert isinstance(answer.content.get("reservation"), str), f"STORE-14: a reservation has an id, got {answer}"
        return [page for _, page in answer.content["indices"]], answer.content["reservation"]

    def confirm(self, *written: tuple[str, int], released: tuple[int, ...] = (), reservation: str | None = None) -> int:
        """Confirm written pages, and release others; returns the status."""
        named = {} if reservation is None else {"reservation": reservation}
        return self.ask("confirm_write", written_keys_to_confirm=written, pages_to_release=released, **named).status

    def keep(self, *keys: str) -> None:
        """Reserve and confirm a page for each key."""
        pages = [page for _, page in self.reserve(*keys)]
        assert self.confirm(*zip(keys, pages, strict=True)) == 204, "STORE-10: what was reserved can be confirmed"

    def exist(self, *keys: str) -> list[bool]:
        """Whether each key has a confirmed page."""
        found: list[bool] = self.ask("exists", keys=keys).content["exists"]
        return found

    def find(self, *keys: str) -> list[int | None]:
        """The page of each key."""
        found: list[int | None] = self.ask("get_page_indices", keys=keys).content["indices"]
        return found
