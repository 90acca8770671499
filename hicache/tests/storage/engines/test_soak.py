"""Processes that share an engine that evicts: a short soak of each engine, and what makes a soak fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from hicache.errors import InvariantError
from hicache.storage.base import Pieces
from hicache.storage.wrappers import StorageWrapper
from hicache.tests.storage.engines.engine import Engine
from hicache.tests.storage.engines.engines import ENGINES
from hicache.tests.storage.engines.server import Served
from hicache.tests.storage.engines.soak import __main__ as soak
from hicache.tests.storage.engines.soak.run import PATIENCE_S, Outcome, Soak, complaints, reported, soaked, table
from hicache.tests.storage.engines.soak.worker import Report

LIMIT_S = 400

CAPACITY_MIB, PROCESSES, REQUESTS = 16, 2, 96
"""The prompts have 401 different pages of 64 KiB."""


class CorruptingStorage(StorageWrapper):
    """Answers a `get` with True, and the first page of it with one other byte."""

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        answers = super().get(keys, targets, prefix_keys)
        if answers[:1] == [True]:
            targets[0][0][0] ^= 0xFF
        return answers


class FailingStorage(StorageWrapper):
    """No cache can be opened over it."""

    def register_pools(self, page_bytes: Mapping[str, int]) -> None:
        raise InvariantError(f"pages of {dict(page_bytes)} bytes are refused")


def wrapped(engine: Engine, kind: type[StorageWrapper]) -> Engine:
    """The engine, with a backend around that of it."""
    return replace(
        engine,
        backend=f"{__name__}:{kind.__name__}",
        options=lambda settings: {"inner": engine.backend, "inner_options": engine.options(settings)},
    )


def soak_of(engine: Engine) -> Soak:
    """A short one."""
    return Soak(engine, PROCESSES, REQUESTS, 0, CAPACITY_MIB << 20)


def command(*options: str) -> list[str]:
    """The command, with a small engine and few processes."""
    few = ["--processes", str(PROCESSES), "--capacity-mib", str(CAPACITY_MIB)]
    return [sys.executable, "-m", "hicache.tests.storage.engines.soak", *few, *options]


def test_processes_read_what_others_have_stored_while_the_engine_evicts(engine: Engine) -> None:
    words = command("--engine", engine.name, "--requests", str(REQUESTS))
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, f"no byte is wrong, pages hit, and some are evicted, got:\n{done.stdout}{done.stderr}"
    rows = [line for line in done.stdout.splitlines() if f"| {REQUESTS} |" in line]
    assert len(rows) == PROCESSES, f"the table has a row for each process, got:\n{done.stdout}"


@pytest.mark.parametrize("engine", ["redis"], indirect=True)
def test_a_wrong_byte_ends_the_command_with_1(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(soak, "named", lambda _: [wrapped(engine, CorruptingStorage)])
    with pytest.raises(typer.Exit) as ended:
        soak.main(engine.name, PROCESSES, requests=REQUESTS, capacity_mib=CAPACITY_MIB)
    told = capsys.readouterr().err
    assert ended.value.exit_code == 1, f"a wrong byte is a failure, got {ended.value.exit_code}"
    assert " bytes other than those that were computed" in told, f"expected the reason, got {told}"


@pytest.mark.parametrize("engine", ["redis"], indirect=True)
def test_a_process_that_fails_is_found(engine: Engine) -> None:
    found = complaints(soaked(soak_of(wrapped(engine, FailingStorage)), typer.echo))
    failed = [line for line in found if line.startswith("process ") and "bytes are refused" in line]
    assert len(failed) == PROCESSES, f"each process failed, and its error is shown, got {found}"


def test_a_process_that_does_not_end_is_killed_and_told(tmp_path: Path) -> None:
    log = tmp_path / "work0.log"
    log.write_text("the last that it said", encoding="utf-8")
    with subprocess.Popen(["sleep", "600"], stdout=subprocess.PIPE, text=True) as worker:  # noqa: S607
        told = reported(worker, log, until=time.monotonic())
    expected = "killed, as it has not ended in time, the last that it said"
    assert told == expected, f"expected {expected!r}, got {told!r}"
    assert soak_of(ENGINES["redis"]).limit_s is None, "requests may take as long as they need"
    timed = replace(soak_of(ENGINES["redis"]), requests=None, duration_s=300)
    assert timed.limit_s == 300 + PATIENCE_S, "a process starts, serves for 300 s, and ends"


@pytest.mark.parametrize("engine", ["redis"], indirect=True)
@pytest.mark.parametrize("interruption", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_of_a_soak_that_is_interrupted(
    engine: Engine, tmp_path: Path, interruption: signal.Signals
) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    words = command("--engine", engine.name, "--requests", "1000000")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None, "the output is a pipe"
        process.stdout.readline()
        running = listed("--ppid", str(process.pid))
        assert len(running) == 1 + PROCESSES, f"the engine and the processes run, got {running}"
        process.send_signal(interruption)
        assert process.wait(LIMIT_S) == soak.INTERRUPTED, f"got {process.returncode}"
    assert not list(tmp_path.iterdir()), "the folder of the soak is removed"
    left = [line for line in listed("-p", ",".join(line.split()[0] for line in running)) if " Z" not in line]
    assert not left, f"all processes of the soak have ended, got {left}"


def listed(*selection: str) -> list[str]:
    """Number, state and command of the processes that `ps` selects."""
    command = ["ps", "-ww", "-o", "pid=,stat=,args=", *selection]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


SOUND = Report(Served(requests=1, storage_tokens=64), storage_errors=0)


@pytest.mark.parametrize(
    ("name", "reports", "evictions", "expected"),
    [
        ("redis", [SOUND, Report(Served(), 0)], 1, []),
        ("moto", [SOUND], 0, []),
        ("redis", [SOUND], 0, ["redis has evicted nothing"]),
        ("redis", [Report(Served(requests=1), 0)], 1, ["no token came from storage"]),
        ("redis", [SOUND, "an error"], 1, ["process 2 failed: an error"]),
        ("redis", [SOUND, Report(Served(wrong_bytes=3), 0)], 1, ["process 2 read 3 bytes other than"]),
    ],
    ids=["sound", "no limit", "no eviction", "no hit", "a process failed", "wrong bytes"],
)
def test_what_is_wrong_is_told(name: str, reports: list[Report | str], evictions: int, expected: list[str]) -> None:
    outcome = Outcome(soak_of(ENGINES[name]), reports, evictions)
    found = complaints(outcome)
    assert len(found) == len(expected), f"got {found}"
    assert all(map(str.startswith, found, expected)), f"expected {expected}, got {found}"
    assert len(table(outcome).splitlines()) == len(reports) + 4, "a row for each, also for one that failed"
