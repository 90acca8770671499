"""`hicache serve-metadata`: where it listens, what it writes when it is ended, and what it refuses."""

from __future__ import annotations

import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hicache.cli.app import app
from hicache.errors import ConfigurationError
from hicache.storage.hf3fs.catalogue import Catalogue
from hicache.storage.hf3fs.client import MetadataClient
from hicache.storage.hf3fs.metadata import Namespace, Written
from hicache.tests.storage.conftest import full_disk

KV = Namespace(0, "kv", 3)

COMMAND = (sys.executable, "-c", "from hicache.cli.main import main; main()", "serve-metadata", "--port", "0")


@contextmanager
def serving(
    file: Path, *arguments: str, token: str | None = None, before: Callable[[], None] | None = None
) -> Iterator[tuple[subprocess.Popen[str], MetadataClient]]:
    """The command in a process of its own, and one who asks it."""
    command = [*COMMAND, "--file", str(file), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=before) as process:  # noqa: PLW1509
        assert process.stdout is not None, "the process was opened with a pipe"
        try:
            told = process.stdout.readline()
            assert told.startswith("serving the metadata of 3FS at http://127.0.0.1:"), f"SEC-4: loopback, got {told!r}"
            client = MetadataClient(told.split()[-1], 10, token)
            yield process, client
            client.close()
        finally:
            process.kill()


def keep(client: MetadataClient, key: str) -> int:
    """Reserve and confirm a page; which it was."""
    found = client.reserve({KV: [key]})[KV]
    ((_, page),) = found.indices
    assert page is not None, f"there is room for {key}"
    client.confirm({KV: Written([(key, page)], [], found.reservation)})
    return page


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda end: end.name)
def test_what_was_confirmed_outlives_the_process(tmp_path: Path, end: signal.Signals) -> None:
    file = tmp_path / "metadata.json"
    with serving(file) as (process, client):
        pages = [keep(client, key) for key in "abcd"]
        process.send_signal(end)
        assert process.wait(30) == (-end if end is signal.SIGKILL else 0), "it ends with the expected code"
    is_folded = not file.with_name(f"{file.name}-wal").exists()
    assert is_folded == (end is not signal.SIGKILL), "STORE-10: the log is folded into the file at the end"
    with serving(file) as (_, client):
        assert client.find({KV: list("abcd")}) == {KV: [None, *pages[1:]]}, (
            "STORE-10: a made room for d, and is gone for good"
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--file", "broken.json"), "broken.json cannot be used"),
        (("--host", "192.0.2.1"), "192.0.2.1:0"),
        (("--host", "0.0.0.0"), "0.0.0.0 is not a loopback address: the service needs a token"),  # noqa: S104
        (("--token-file", "broken.json"), "token file broken.json: expected a token"),
        (("--token-file", "nowhere"), "token file nowhere cannot be read"),
    ],
)
def test_what_cannot_be_served_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.json").write_text("{broken")
    result = CliRunner(env={"COLUMNS": "400"}).invoke(app, ["serve-metadata", "--port", "0", *arguments])
    assert result.exit_code == 2, f"expected 2, got {result.exit_code}: {result.output}"
    assert message in result.output, f"{message} is named: {result.output}"
    assert Path("broken.json").read_text() == "{broken", "STORE-10: a file that cannot be read stays unchanged"


def test_a_token_in_a_file_guards_the_service(tmp_path: Path) -> None:
    token, file = "a-token-that-guards-nothing", tmp_path / "token"
    file.write_text(f"{token}\n")
    with serving(tmp_path / "metadata.json", "--token-file", str(file), token=token) as (_, client):
        keep(client, "a")
        with pytest.raises(ConfigurationError, match="401"):
            MetadataClient(f"http://127.0.0.1:{client._port}", 10).initialise([KV])


def few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))


def test_without_descriptors_it_ends_as_it_was_told_to(tmp_path: Path) -> None:
    file = tmp_path / "metadata.json"
    with serving(file, before=few_descriptors) as (process, client), ExitStack() as held:
        keep(client, "a")
        for _ in range(60):
            held.enter_context(socket.create_connection(("127.0.0.1", client._port), timeout=30))
        with closing(MetadataClient(f"http://127.0.0.1:{client._port}", 10)) as another:
            keep(another, "b")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, "it ends without an error"
    with serving(file) as (_, client):
        assert client.find({KV: ["a", "b"]}) == {KV: [2, 1]}, "STORE-10: stored"


@pytest.mark.parametrize(("is_at_start", "code"), [(True, 2), (False, 1)], ids=["start", "end"])
def test_a_full_disk_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_at_start: bool, code: int
) -> None:
    file = tmp_path / "metadata.json"
    with ExitStack() as full:
        monkeypatch.setattr(signal, "sigwait", lambda _: full.enter_context(full_disk(0)))
        monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: None)
        if is_at_start:
            full.enter_context(full_disk(0))
        else:
            # The log of a service that was killed is to be written into the file.
            with closing(Catalogue(tmp_path / "killed")) as catalogue:
                catalogue.initialise("0:kv", 3)
                for end in ("", "-wal"):
                    shutil.copy(tmp_path / f"killed{end}", f"{file}{end}")
        arguments = ["serve-metadata", "--port", "0", "--file", str(file)]
        result = CliRunner(env={"COLUMNS": "400"}).invoke(app, arguments)
    assert result.exit_code == code, f"expected {code}, got {result.exit_code}: {result.output}"
    assert "disk" in result.output, f"the reason is named: {result.output}"
