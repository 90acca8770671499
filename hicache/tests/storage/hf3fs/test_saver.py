"""Saver: it saves when the journal is long, goes on after a failure, and ends on request."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest

from hicache.storage.hf3fs import journal as journal_module
from hicache.storage.hf3fs import saver as saver_module
from hicache.storage.hf3fs.catalogue import Catalogue
from hicache.storage.hf3fs.client import MetadataClient
from hicache.storage.hf3fs.metadata import Namespace, Written
from hicache.storage.hf3fs.saver import Saver
from hicache.tests.storage.conftest import Serve

HANG_S = 60.0


class Watched(Catalogue):
    """A catalogue in memory whose journal is long as long as a test says so. `saved`: a save has ended."""

    def __init__(self, failures: int = 0) -> None:
        super().__init__(None)
        self.saved, self.attempts, self.failures = Event(), 0, failures
        self.long = True

    @property
    def is_long(self) -> bool:
        return self.long

    def save(self) -> None:
        """Fail as often as the test says."""
        self.attempts += 1
        if self.attempts <= self.failures:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.long = False
        self.saved.set()


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure it goes on at once."""
    monkeypatch.setattr(saver_module, "RETRY_S", 0.0)


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize("failures", [0, 2])
def test_a_long_journal_is_saved_in_the_end(failures: int) -> None:
    catalogue = Watched(failures)
    with closing(Saver(catalogue)) as saver:
        saver.start()
        while not catalogue.saved.wait(0.001):
            saver.wake()
    assert catalogue.attempts == failures + 1, f"one attempt after each failure, got {catalogue.attempts}"


def test_a_short_journal_is_left_alone() -> None:
    catalogue = Watched()
    catalogue.long = False
    with closing(Saver(catalogue)) as saver:
        saver.start()
        saver.wake()
    assert catalogue.attempts == 0, "nothing is to be saved"


def test_it_ends_while_it_waits_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saver_module, "RETRY_S", 1_000.0)
    catalogue, failed = Watched(1 << 30), Event()
    monkeypatch.setattr(saver_module.LOG, "warning", lambda *_: failed.set())
    saver = Saver(catalogue)
    saver.start()
    saver.wake()
    assert failed.wait(HANG_S), "it tries to save"
    saver.close()
    assert not saver._thread.is_alive(), "it waits no longer"


def test_a_service_shortens_its_journal(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MIN_GROWTH_BYTES", 500)
    file = tmp_path / "metadata.json"
    with closing(Catalogue(file)) as catalogue:
        saved, write = Event(), journal_module.Journal.drop_old

        def drop_old(journal: journal_module.Journal) -> None:
            write(journal)
            saved.set()

        monkeypatch.setattr(journal_module.Journal, "drop_old", drop_old)
        service = serve(catalogue)
        space = Namespace(0, "kv", 8)
        with closing(MetadataClient(service.url, 30.0)) as client:
            for number in range(40):
                reservation = client.reserve({space: [f"key{number}"]})[space].reservation
                client.confirm({space: Written([], [], reservation)})
            assert saved.wait(HANG_S), "the file is written anew while the service serves"
            assert client.exist({space: ["key0"]}) == {space: [False]}, "and it goes on"
        service.close()
