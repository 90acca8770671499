"""What LMCache 0.5.6's client for Redis makes of pages of other sizes, and of pages that are not there.

It needs LMCache, torch and a `redis-server`, which it starts on a port of its own and ends. Run it with
`python docs/reproductions/lmcache_redis.py`.
"""

from __future__ import annotations

import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lmcache.lmcache_redis import LMCacheRedisClient

PAGE = 4096
WAIT_MS = 5_000

FULL = "-OOM command not allowed when used memory > 'maxmemory'.\r\n"
"""What the server says to `SET` when it is full."""


def ask(client: LMCacheRedisClient, verb: str, *arguments: list[Any]) -> Any:
    """Submit a batch and wait: what the completion says of the whole (`set`) or of each key."""
    submitted = getattr(client, f"submit_batch_{verb}")(*arguments)
    event = select.poll()
    event.register(client.event_fd(), select.POLLIN)
    if not event.poll(WAIT_MS):
        return f"not completed in {WAIT_MS // 1000} seconds"
    [(completed, is_done, _, answers)] = client.drain_completions()
    assert completed == submitted, "one batch at a time"
    return is_done if verb == "set" else answers


def key_of(name: str) -> str:
    """A key: model, rank, object group, hash of the chunk."""
    return f"model@01000100@0@{name.encode().hex()}"


def page(name: str = "", size: int = PAGE) -> memoryview:
    """The bytes of a page: its name, again and again."""
    return memoryview(bytearray((name or "-").encode() * size)[:size])


@contextmanager
def connected(*options: str) -> Iterator[LMCacheRedisClient]:
    """A client with one connection to a new server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = shutil.which("redis-server")
    if program is None:
        sys.exit("redis-server is not installed")
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", folder, *options]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: S603
        try:
            while server.poll() is None:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except ConnectionRefusedError:
                    time.sleep(0.01)  # until the server listens
            client = LMCacheRedisClient("127.0.0.1", port, 1)
            yield client
            client.close()
        finally:
            server.terminate()
            server.wait()


def shifted(client: LMCacheRedisClient, left: int) -> None:
    """Use a connection on which so many bytes of an earlier reply are left; pages b to e are stored."""
    header, answer = len(f"${PAGE}\r\n"), len(":1\r\n")
    gets = next(count for count in range(answer) if (left - count * header) % answer == 0)
    exists = (left - gets * header) // answer
    read = [ask(client, "get", [key_of(name)], [page()]) for name in "bcd"[:gets]]
    found = [ask(client, "exists", [key_of("e")]) for _ in range(exists)]
    print(f"  get, {gets} times: {any(map(any, read))}; exists, {exists} times: {any(map(any, found))}")
    for name in ("e", "never stored"):
        target = page()
        print(f"  get {name}:", ask(client, "get", [key_of(name)], [target]), "with the bytes of", chr(target[0]))


def other_size() -> None:
    """After a page of another size, the connection gives the answers to earlier requests."""
    with connected() as client:
        for name in "abcde":
            ask(client, "set", [key_of(name)], [page(name)])
        print(f"page a of {PAGE} bytes is read into {PAGE // 4}")
        print("  get a:", ask(client, "get", [key_of("a")], [page(size=PAGE // 4)]))
        shifted(client, PAGE + len("\r\n"))


def full_server() -> None:
    """After the server had no memory for a page, the connection gives the answers to earlier requests."""
    with connected("--maxmemory", "4mb") as client:
        for name in "bcde":
            ask(client, "set", [key_of(name)], [page(name)])
        print("the server has no memory for a page")
        print("  set:", ask(client, "set", [key_of("large")], [page(size=1 << 22)]))
        shifted(client, len(FULL) - len("+OK\r\n"))


def mixed_sizes() -> None:
    """A batch of pages of two sizes is refused, and its first page is there."""
    with connected() as client:
        keys = [key_of("full"), key_of("window")]
        print("a batch of pages of two sizes")
        print("  set   ", ask(client, "set", keys, [page(), page(size=PAGE // 4)]))
        print("  exists", ask(client, "exists", keys))


def absent_page() -> None:
    """A read of a page that is not there is not completed, and neither is anything after it."""
    with connected() as client:
        ask(client, "set", [key_of("there")], [page()])
        print("a page that is not there is read, and after it a page that is there is looked for")
        print("  get   ", ask(client, "get", [key_of("absent")], [page()]))
        print("  exists", ask(client, "exists", [key_of("there")]))


if __name__ == "__main__":
    for show in (other_size, full_server, mixed_sizes, absent_page):
        show()
