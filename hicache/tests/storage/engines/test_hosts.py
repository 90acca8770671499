"""Engines on several hosts, which are network namespaces: one host is cut off, and hits again when it is back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hicache.tests.storage.engines.hosts.__main__ import NOT_PERMITTED
from hicache.tests.storage.engines.hosts.cluster import Passes, complaints
from hicache.tests.storage.engines.hosts.engines import ON_HOSTS
from hicache.tests.storage.engines.hosts.network import INTERRUPTED, refusal
from hicache.tests.storage.engines.hosts.serving import PREFIX
from hicache.tests.storage.engines.server import Served

LIMIT_S = 400


def command(engine: str) -> list[str]:
    """A short run."""
    return [sys.executable, "-m", "hicache.tests.storage.engines.hosts", "--engine", engine, "--prompts", "4"]


@pytest.mark.parametrize("engine", ON_HOSTS)
def test_a_host_that_was_cut_off_hits_again(engine: str) -> None:
    done = subprocess.run(command(engine), capture_output=True, text=True, check=False, timeout=LIMIT_S)
    if done.returncode == NOT_PERMITTED:
        pytest.skip(done.stderr.strip().removeprefix("not run: "))
    assert done.returncode == 0, f"no byte is wrong, and hits return, got:\n{done.stdout}{done.stderr}"
    assert "3, cut off" in done.stdout, f"the table has a row for the last host, got:\n{done.stdout}"


@pytest.mark.parametrize("interruption", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_of_a_run_that_is_interrupted(tmp_path: Path, interruption: signal.Signals) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command("hf3fs"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None, "the output is a pipe"
        assert process.stderr is not None, "the errors are a pipe"
        line = process.stdout.readline()
        if not line and process.wait(LIMIT_S) == NOT_PERMITTED:
            pytest.skip(process.stderr.read().strip().removeprefix("not run: "))
        assert commands_with(str(tmp_path)), "the processes of the hosts name the folder of the run"
        process.send_signal(interruption)
        assert process.wait(LIMIT_S) == INTERRUPTED, f"got {process.returncode}: {process.stderr.read()}"
    assert not list(tmp_path.iterdir()), "the folder of the run is removed"
    left = commands_with(str(tmp_path))
    assert not left, f"the system ends all processes of the run, got {left}"


PROCESSES = 200
"""Processes: the system needs a moment to end them."""

STOPPED_AT_ONCE = """
import fcntl, sys
from hicache.tests.storage.engines.hosts.network import isolated
code = isolated(sys.argv[2:])
with open(sys.argv[1]) as held:
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
sys.exit(code)
"""
"""Ends with an error if a process that the command started still holds the file when the command has ended."""


def test_an_interrupted_command_ends_after_all_processes_that_it_started(tmp_path: Path) -> None:
    if reason := refusal():
        pytest.skip(reason)
    held = tmp_path / "held"
    waits = f"for number in $(seq {PROCESSES}); do flock --shared {held} sh -c 'echo holds; sleep 600' & done; wait"
    command = [sys.executable, "-c", STOPPED_AT_ONCE, str(held), "sh", "-c", waits]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None, "the output is a pipe"
        told = [process.stdout.readline() for _ in range(PROCESSES)]
        assert told == ["holds\n"] * PROCESSES, f"expected {PROCESSES} processes to hold the file, got {told}"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == INTERRUPTED, f"no process holds the file any more, got:\n{errors}"


def commands_with(text: str) -> list[str]:
    """The commands of all processes that name a text."""
    listed = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True)  # noqa: S607
    return [line for line in listed.stdout.splitlines() if text in line]


def test_a_run_that_finds_wrong_bytes_or_no_hits_says_so() -> None:
    right, missed = Served(storage_tokens=PREFIX), Served(storage_tokens=0)
    sound = [Passes(right, right, [right]), Passes(right, missed, [missed, right])]
    assert complaints(sound, 1) == [], "host 2 is cut off and hits again"
    wrong = Served(storage_tokens=PREFIX, longest_s=2.5, wrong_bytes=3)
    found = complaints([Passes(wrong, right, [right]), Passes(missed, right, [missed])], 1)
    expected = ["host 1 read 3", "host 1 waited 2.5", "host 2 read 0", "host 2 read 512", "host 2 read 0"]
    assert len(found) == len(expected), f"got {found}"
    assert all(map(str.startswith, found, expected)), f"expected {expected}, got {found}"
