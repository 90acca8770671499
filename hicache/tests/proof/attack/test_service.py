"""The metadata service: killed under load, its file damaged, sent malformed requests and half-open connections."""

from __future__ import annotations

import logging
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic

import pytest

from hicache.storage.hf3fs.catalogue import Catalogue
from hicache.storage.hf3fs.service import MetadataService
from hicache.testing.storage.driver import StorageDriver
from hicache.testing.storage.subject import SHIPPED, BackendSubject, Place
from hicache.tests.proof.attack.campaign import Campaign
from hicache.tests.proof.attack.test_writers import CHANGES, PAGE

BODY = b'{"num_pages":4}'
SOUND = (
    b"POST /0/initialize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: " + str(len(BODY)).encode() + b"\r\nConnection: close\r\n\r\n" + BODY
)
PATHS = (b"initialize", b"exists", b"reserve_and_allocate_page_indices", b"confirm_write", b"delete_keys", b"clear")
VALUES = (b"null", b"-1", b"1e400", b'"x"', b"[[]]", b"{}", b"NaN", b"[1,2]", b'[["a",0]]', b"10" * 40, b'"\\ud800"')
FIELDS = (b"num_pages", b"keys", b"namespace", b"written", b"released", b"written_keys_to_confirm", b"prefixes")

REQUESTS = 200
HALF_OPEN = 100
RESTARTS = 2
VERBS = 10
DAMAGED_SHARE = 0.5
CUT_SHARE = 0.3
USAGE_ERROR = 2

KEYS = [f"a/{number}" for number in range(24)]


def answer_to(service: MetadataService, request: bytes) -> bytes:
    """The first bytes of the answer to a request after which the client sends nothing more."""
    with socket.create_connection((str(service.host), service.port), timeout=30) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(1 << 16)


def malformed(rng: random.Random) -> bytes:
    """A request with a random body of some operation, or one whose bytes are changed, cut or repeated."""
    fields = b",".join(b'"' + rng.choice(FIELDS) + b'":' + rng.choice(VALUES) for _ in range(rng.randint(0, 3)))
    body = b"{" + fields + b"}"
    head = SOUND.partition(b"\r\n\r\n")[0].replace(b"initialize", rng.choice(PATHS))
    request = head.replace(b": " + str(len(BODY)).encode(), b": " + str(len(body)).encode()) + b"\r\n\r\n" + body
    draw = rng.random()
    if draw < 0.4:
        return request
    if draw < 0.5:
        return rng.randbytes(rng.randint(1, 300))
    if draw < 0.6:
        return request[: rng.randrange(len(request))]
    content = bytearray(request)
    for _ in range(rng.randint(1, 6)):
        rng.choice(CHANGES[:1])(content, rng)
    return bytes(content)


@pytest.fixture
def service() -> Iterator[MetadataService]:
    """A service that keeps nothing."""
    with closing(MetadataService(Catalogue(None))) as served:
        served.start()
        yield served


def test_malformed_requests_are_refused(
    campaign: Campaign, service: MetadataService, caplog: pytest.LogCaptureFixture
) -> None:
    for seed in campaign.rounds(1, 0.05):
        rng = random.Random(seed)
        for _ in range(REQUESTS):
            request = malformed(rng)
            answer = answer_to(service, request)
            campaign.counts["requests"] += 1
            campaign.counts["answered"] += bool(answer)
            assert not answer.startswith(b"HTTP/1.1 5"), f"SEC-4: {request!r}: expected no error, got {answer!r}"
    assert b" 2" in answer_to(service, SOUND)[:12], "SEC-4: a sound request is served after all"
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert not errors, f"SEC-4: expected no error in the log, got {errors[:3]}"


def test_half_open_connections_stop_nobody(campaign: Campaign, service: MetadataService) -> None:
    for seed in campaign.rounds(1, 0.02):
        rng = random.Random(seed)
        opened = [socket.create_connection((str(service.host), service.port), timeout=30) for _ in range(HALF_OPEN)]
        try:
            for connection in opened:
                connection.sendall(SOUND[: rng.randrange(len(SOUND))])
            began = monotonic()
            assert b" 2" in answer_to(service, SOUND)[:12], f"SEC-4: {HALF_OPEN} requests are half sent: one is served"
            campaign.timed(began)
        finally:
            for connection in opened:
                connection.close()
        campaign.counts["half-open connections"] += HALF_OPEN


class KilledService:
    """A service in a process of its own, on one port and one file, that is killed and started again.

    `folder`: holds its files and no others. `said`: its last message of an error.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.said = ""
        with closing(socket.create_server(("127.0.0.1", 0))) as server:
            self._port = int(server.getsockname()[1])
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> bool:
        """Start it; False if it refuses its file. Any other end is a failure."""
        command = [sys.executable, "-m", "hicache", "serve-metadata", "--file", str(self.folder / "metadata")]
        self._process = subprocess.Popen(
            [*command, "--port", str(self._port)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None, "the process was opened with pipes"
        if self._process.stdout.readline().startswith("serving"):
            return True
        _, said = self._process.communicate()
        is_refusal = self._process.returncode == USAGE_ERROR and "Traceback" not in said
        assert is_refusal, (
            f"SEC-4: expected a damaged file to be refused with 2, got {self._process.returncode}: {said}"
        )
        return False

    def close(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def damage(folder: Path, rng: random.Random) -> None:
    """Change, blank or cut a part of a file, if it has content."""
    file = rng.choice(sorted(folder.iterdir()))
    content = bytearray(file.read_bytes())
    if content and rng.random() < CUT_SHARE:
        del content[rng.randrange(len(content)) :]
    elif content:
        rng.choice(CHANGES)(content, rng)
    file.write_bytes(content)


def use(campaign: Campaign, store: StorageDriver, rng: random.Random) -> None:
    """Store and read pages by two instances."""
    for _ in range(VERBS):
        keys, instance = rng.sample(KEYS, 4), rng.randrange(2)
        began = monotonic()
        if rng.random() < 0.5:
            store.set(keys, rng.randrange(3), instance=instance)
        else:
            campaign.counts["pages read"] += sum(store.get(keys, instance=instance))
        campaign.timed(began)
        campaign.counts["verbs"] += 1


def test_no_wrong_page_is_read_when_the_service_is_killed_and_its_file_damaged(
    campaign: Campaign, tmp_path: Path
) -> None:
    hf3fs = next(subject for subject in SHIPPED if subject.asks_metadata)
    for seed in campaign.rounds(1, 0.15):
        rng = random.Random(seed)
        with closing(KilledService(tmp_path / f"service{seed}")) as service:
            assert service.start(), f"SEC-4: expected a service without a file to start: {service.said}"
            subject = BackendSubject("hf3fs", {**hf3fs.options, "metadata_url": service.url})
            with closing(Place(subject, tmp_path, page_bytes=PAGE, capacity_bytes=16 * PAGE)) as place:
                store = StorageDriver(place, forgets=True)
                store.open()
                store.set(KEYS[:4])
                assert store.get(KEYS[:4]) == [True] * 4, "STORE-4: nothing failed yet: expected all pages"
                for _ in range(RESTARTS):
                    use(campaign, store, rng)
                    service.close()
                    use(campaign, store, rng)
                    campaign.counts["kills"] += 1
                    if rng.random() < DAMAGED_SHARE:
                        damage(service.folder, rng)
                    if not service.start():
                        campaign.counts["refused files"] += 1
                        for file in service.folder.iterdir():
                            file.unlink()
                        assert service.start(), f"SEC-4: expected a service without a file to start: {service.said}"
                use(campaign, store, rng)
