"""Ctrl-C or SIGTERM in a stage of `hicache verify`: a report of what there is, exit code 130, no process that stays."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from hicache.testing.report import read_run
from hicache.tests.proof.misbehaviour.cells import LIMIT_S, STAGES, Cell, cells, command, environment

VERB = "match"
"""A verb that every stage calls."""


@pytest.fixture
def interrupted(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[int, str]:
    """The exit code and the output of a verification that Ctrl-C interrupts while the cache hangs in a verb."""
    return _ended_by(signal.SIGINT, request.param, tmp_path)


def _ended_by(number: signal.Signals, stage: str, tmp_path: Path) -> tuple[int, str]:
    """The exit code and the output of a verification that gets a signal while the cache hangs in a verb."""
    cell: Cell = next(one for one in cells(stage) if (one.kind, one.verb) == ("hang", VERB))
    sign, output = tmp_path / "hangs", tmp_path / "output"
    with output.open("w") as written:
        process = subprocess.Popen(
            command(cell, tmp_path / "report"),
            env=environment(sign),
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait_for(sign, process)
            os.killpg(process.pid, number)
            code = process.wait(LIMIT_S)
        finally:
            process.kill()
            process.wait()
    return code, output.read_text(encoding="utf-8")


def _wait_for(sign: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until the cache hangs. A process that ends before it does is a failure of the test."""
    end = time.monotonic() + LIMIT_S
    while not sign.exists():
        assert process.poll() is None, f"the command ended with {process.returncode} before {VERB} was called"
        assert time.monotonic() < end, f"{VERB} was not called within {LIMIT_S:g} s"
        time.sleep(0.05)


NEEDS_MODELS = pytest.mark.skipif(
    find_spec("transformers") is None, reason="transformers, which runs the models, is not installed here"
)


@pytest.mark.parametrize(
    "interrupted",
    [pytest.param(stage, marks=NEEDS_MODELS if stage == "accuracy" else ()) for stage in STAGES],
    indirect=True,
)
def test_ctrl_c_gives_the_report_of_what_there_is(interrupted: tuple[int, str], tmp_path: Path) -> None:
    code, output = interrupted
    assert code == 130, f"expected 130, got {code}:\n{output}"
    assert (tmp_path / "report" / "report.html").is_file(), f"expected a report:\n{output}"
    assert "interrupted" in output, f"expected it to be said:\n{output}"
    failed = [one.node_id for one in read_run(tmp_path / "report" / "run.json").executions if one.reason]
    assert not failed, f"an interrupt is not a failure, got {failed}"
    assert "Traceback" not in output, f"expected no traceback:\n{output}"
    assert "verified: " not in output.replace("not verified: ", ""), f"expected no claim:\n{output}"


def test_sigterm_ends_the_stage_and_gives_the_report_of_what_there_is(tmp_path: Path) -> None:
    code, output = _ended_by(signal.SIGTERM, "conformance", tmp_path)
    assert code == 130, f"expected 130, got {code}:\n{output}"
    assert (tmp_path / "report" / "report.html").is_file(), f"expected a report:\n{output}"
    assert "interrupted" in output, f"expected it to be said:\n{output}"
    left = _processes_of(tmp_path)
    assert not left, f"expected the processes of the stage to be ended, got {left}"


def _processes_of(folder: Path) -> list[str]:
    """The command lines that name a folder."""
    if not Path("/proc/self/cmdline").exists():
        pytest.skip("the processes of a machine are read from /proc, which this system does not have")
    return [line for one in Path("/proc").glob("[0-9]*") if str(folder) in (line := _command_line(one))]


def _command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        # It has ended since it was listed.
        return ""
