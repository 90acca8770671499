"""TimedStream: reads a connection until a moment; RequestStream: the same, for the requests of one connection."""

from __future__ import annotations

import socket
from io import RawIOBase
from typing import Any

from hicache.clock import Clock

IDLE_TIMEOUT_S = 60.0
"""How long a connection may be idle before it is closed."""

REQUEST_S = 10.0
"""How long a request may take from its first byte to its last one; and how long its answer may."""


class TimedStream(RawIOBase):
    """The bytes of a connection. A read raises TimeoutError after the moment `until_s` of the clock.

    A limit for each read would not do: a peer could send one byte after the other, and hold the connection forever.
    """

    def __init__(self, connection: socket.socket, clock: Clock, until_s: float) -> None:
        super().__init__()
        self._connection = connection
        self._clock = clock
        self._until_s = until_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._until_s - self._clock.now()
        if left_s <= 0:
            raise TimeoutError("the other side did not send all in time")
        self._connection.settimeout(left_s)
        return self._connection.recv_into(buffer)


class RequestStream(TimedStream):
    """The requests of a connection: one must begin in time, and then end in time."""

    def __init__(self, connection: socket.socket, clock: Clock) -> None:
        super().__init__(connection, clock, 0.0)
        self.begin()

    def begin(self) -> None:
        """Wait for the next request from now on."""
        self._is_idle = True
        self._until_s = self._clock.now() + IDLE_TIMEOUT_S

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer)
        if self._is_idle:
            self._is_idle = False
            self._until_s = self._clock.now() + REQUEST_S
        return count
