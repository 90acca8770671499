"""SingleServer and RedisCluster: which server has which key, and exchanges with several servers side by side."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from threading import Lock
from typing import Any, TypeAlias

from hicache.storage.base import Breaker
from hicache.storage.pause import Pause
from hicache.storage.redis_server import Address, Command, RedisServer

SLOTS = 16_384
"""The slots of every cluster. A key belongs to the slot that its checksum names."""

THREADS = 128
"""The most exchanges that are under way beside those of the threads that call."""

TURNS = 3
"""How often a page is asked for: a node may name another one (MOVED), which moves the slot right now (ASK)."""

Ask: TypeAlias = Callable[[RedisServer, Sequence[int], bool], Sequence[Any]]
"""Asks a server for the names with some numbers; the bool is `asking` of RedisServer. One answer for each of them."""

_TABLE: Command = (b"CLUSTER", b"SLOTS")


class SingleServer:
    """One server that has all keys."""

    questions: Sequence[Command] = ()
    """The commands that a server has to answer, besides those for pages."""

    uncovered = 0
    """The slots that no server has."""

    def __init__(self, server: RedisServer, pause: Pause) -> None:
        self._server = server
        self._pause = pause

    @property
    def breaker(self) -> Breaker:
        """Whether the server failed and has not answered since."""
        return self._pause.breaker

    @property
    def first(self) -> Sequence[RedisServer]:
        """The servers that the options name."""
        return [self._server]

    def primaries(self) -> Sequence[RedisServer]:
        """The servers that have keys."""
        return [self._server]

    def ask(self, servers: Iterable[RedisServer], act: Callable[[RedisServer], Sequence[Any]]) -> list[Sequence[Any]]:
        """What each server answers."""
        return [act(server) for server in servers]

    def each(self, names: Sequence[bytes], act: Ask, deadline: float) -> list[Any]:
        """The answer for each name."""
        return list(act(self._server, range(len(names)), False)) if names else []

    def close(self) -> None:
        """Close the connections. Called when no verb is running."""
        self._server.close()


class RedisCluster:
    """The primaries of a cluster, of which each has some of the slots.

    The nodes are asked side by side, each in a thread, and a node that hangs keeps no other from answering. redis-py
    asks them one after the other, so only its checksum of keys is used, and its errors.

    `connect`: makes the server of an address. `first`: the nodes that are asked at first for all others. `refresh_s`:
    the shortest time from one table of slots to the next after a failure; a MOVED is followed at once.
    """

    questions: Sequence[Command] = (_TABLE,)

    def __init__(
        self,
        library: Any,
        connect: Callable[[Address], RedisServer],
        first: Sequence[Address],
        pause: Pause,
        refresh_s: float,
    ) -> None:
        self._library = library
        self._connect = connect
        self._pause = pause
        self._refresh_s = refresh_s
        self._refresh_at = float("-inf")
        self._servers = {address: connect(address) for address in first}
        self.first: Sequence[RedisServer] = list(self._servers.values())
        self._table: list[RedisServer | None] = [None] * SLOTS
        self._is_stale = True
        self._lock = Lock()
        self._threads = ThreadPoolExecutor(THREADS, "hicache-redis")

    @property
    def breaker(self) -> Breaker:
        """Whether any node that has keys failed and has not answered since, and the pauses of all."""
        servers = self._with_slots() or self.first
        return Breaker(any(self._pause.is_failing(one.name) for one in servers), self._pause.breaker.pauses)

    @property
    def uncovered(self) -> int:
        """The slots that no node has, as far as is known."""
        return self._table.count(None)

    def primaries(self) -> Sequence[RedisServer]:
        """The nodes that have slots. None if no node answers."""
        self._refresh_if_stale()
        return self._with_slots()

    def ask(self, servers: Iterable[RedisServer], act: Callable[[RedisServer], Sequence[Any]]) -> list[Sequence[Any]]:
        """What each server answers. They are asked side by side."""
        answers = self._side_by_side([lambda server=server: act(server) for server in servers])  # type: ignore[misc]
        self._look_at([one for some in answers for one in some])
        return answers

    def each(self, names: Sequence[bytes], act: Ask, deadline: float) -> list[Any]:
        """The answer for each name, of the node that has its slot. After the deadline no redirection is followed."""
        self._refresh_if_stale()
        answers: list[Any] = [None] * len(names)
        groups = self._by_server(names, answers)
        for turn in range(TURNS):
            asked = list(groups.items())
            found = self._side_by_side([lambda one=one: act(one[0][0], one[1], one[0][1]) for one in asked])  # type: ignore[misc]
            for (_, numbers), some in zip(asked, found, strict=True):
                for number, answer in zip(numbers, some, strict=True):
                    answers[number] = answer
            groups = self._redirected(answers, is_first=not turn)
            if not groups or time.monotonic() > deadline:
                break
        self._look_at(answers)
        return answers

    def close(self) -> None:
        """End the threads, and close the connections. Called when no verb is running."""
        self._threads.shutdown()
        for server in self._servers.values():
            server.close()

    def _by_server(self, names: Sequence[bytes], answers: list[Any]) -> Mapping[tuple[RedisServer, bool], list[int]]:
        """The numbers of the names by server. The answer for a name that no server has is an error."""
        table, groups = self._table, defaultdict[tuple[RedisServer, bool], list[int]](list)
        for number, name in enumerate(names):
            slot = self._library.crc.key_slot(name)
            if (server := table[slot]) is None:
                answers[number] = OSError(f"no node of the cluster is known to have the slot {slot}")
            else:
                groups[server, False].append(number)
        return groups

    def _redirected(self, answers: Sequence[Any], *, is_first: bool) -> Mapping[tuple[RedisServer, bool], list[int]]:
        """The numbers of the answers that name another server, by that server."""
        errors = self._library.exceptions
        found = [(number, one) for number, one in enumerate(answers) if isinstance(one, errors.AskError)]
        moved = [one for _, one in found if isinstance(one, errors.MovedError)]
        if moved and is_first:
            self._refresh()
        groups = defaultdict[tuple[RedisServer, bool], list[int]](list)
        with self._lock:
            for one in moved:
                self._table[one.slot_id] = self._server_at(one.node_addr)
            for number, one in found:
                groups[self._server_at(one.node_addr), not isinstance(one, errors.MovedError)].append(number)
        return groups

    def _side_by_side(self, acts: Sequence[Callable[[], Sequence[Any]]]) -> list[Sequence[Any]]:
        """What each call returns. The first one is made by this thread."""
        others = [self._threads.submit(act) for act in acts[1:]]
        try:
            first = [act() for act in acts[:1]]
        finally:
            # Also where a call raises: the others use the memory of this batch.
            wait(others)
        return first + [other.result() for other in others]

    def _look_at(self, answers: Iterable[Any]) -> None:
        """Ask for the table of slots again after a failure: another node may have the slots of one that is down."""
        down = self._library.exceptions.ClusterDownError
        self._is_stale = self._is_stale or any(isinstance(one, (OSError, down)) for one in answers)

    def _refresh_if_stale(self) -> None:
        if self._is_stale and time.monotonic() >= self._refresh_at:
            self._refresh()

    def _refresh(self) -> None:
        """Learn which node has which slot, from the first one that answers."""
        self._refresh_at = time.monotonic() + self._refresh_s
        with self._lock:
            servers = list(self._servers.values())
        asked = {self._threads.submit(server.replies, [_TABLE]): server for server in servers}
        for one in as_completed(asked):
            if self._learn(asked[one], one):
                return

    def _learn(self, server: RedisServer, asked: Future[list[Any]]) -> bool:
        """Take over the table that a node has answered with. Returns whether it was one."""
        (reply,) = asked.result()
        # A node that was taken out of its cluster answers with an empty table.
        if not isinstance(reply, list) or not reply:
            return False
        with self._lock:
            table: list[RedisServer | None] = [None] * SLOTS
            for begin, last, (host, port, *_), *_ in reply:
                # A node may leave out its own host, which is then the one that it was asked at.
                owner = self._server_at((host.decode() if host and host != b"?" else server.address[0], port))
                table[begin : last + 1] = [owner] * (last + 1 - begin)
            self._table, self._is_stale = table, False
            self._close_unused([*self.first, *self._with_slots()])
        return True

    def _close_unused(self, used: Sequence[RedisServer]) -> None:
        for address, server in list(self._servers.items()):
            if server not in used:
                del self._servers[address]
                server.close()

    def _server_at(self, address: Address) -> RedisServer:
        if address not in self._servers:
            self._servers[address] = self._connect(address)
        return self._servers[address]

    def _with_slots(self) -> list[RedisServer]:
        return list({id(one): one for one in self._table if one is not None}.values())
