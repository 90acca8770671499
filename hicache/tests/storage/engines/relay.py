"""Relay: forwards TCP connections to a port of this machine, and cuts them after a number of bytes."""

from __future__ import annotations

import socket
from contextlib import suppress
from threading import Lock, Thread

HOST = "127.0.0.1"

_PART_BYTES = 64 << 10


class Relay:
    """Forwards connections to `port`. `self.port` is its own.

    Bytes are counted towards the client and towards the server, of all connections together.
    """

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server((HOST, 0))
        self.port = int(self._listener.getsockname()[1])
        self._lock = Lock()
        self._left: dict[str, int | None] = {"reply": None, "request": None}
        self._open: list[socket.socket] = []
        self._threads = [Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self, *, reply: int | None = None, request: int | None = None) -> None:
        """Set after how many more bytes of replies, or of requests, a connection is closed. Without numbers: never."""
        with self._lock:
            self._left = {"reply": reply, "request": request}

    def close(self) -> None:
        """Close all connections, and end the threads."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._close_connections()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection((HOST, self._server_port))
            with self._lock:
                self._open += [client, server]
            for ends in ((client, server, "request"), (server, client, "reply")):
                thread = Thread(target=self._forward, args=ends, daemon=True)
                self._threads.append(thread)
                thread.start()

    def _forward(self, source: socket.socket, target: socket.socket, way: str) -> None:
        with suppress(OSError):
            while part := source.recv(_PART_BYTES):
                allowed = self._taken(way, len(part))
                target.sendall(part[:allowed])
                if allowed < len(part):
                    break
        for end in (source, target):
            _end(end)

    def _taken(self, way: str, count: int) -> int:
        """How many of `count` bytes may still be forwarded."""
        with self._lock:
            left = self._left[way]
            allowed = count if left is None else min(left, count)
            self._left[way] = None if left is None else left - allowed
            return allowed

    def _close_connections(self) -> None:
        with self._lock:
            while self._open:
                end = self._open.pop()
                _end(end)
                end.close()


def _end(connection: socket.socket) -> None:
    """End both directions, so that threads which wait for the connection go on."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
