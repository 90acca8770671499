"""The record of a run on a GPU: what is kept names no machine and no path, and the page says what the record says."""

from __future__ import annotations

import re
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hicache.testing import devices
from hicache.testing.plugin import session
from hicache.testing.report import Outcome, RunRecord, read_run, write_run
from hicache.testing.report.gpu import DRIVER, GPU
from hicache.testing.report.run import COMMIT, Evidence
from hicache.tests.docs import gpu_record
from hicache.tests.docs.gpu_record import BEGIN, END, KEPT, PAGE, kept_record, problems, to_keep, told
from hicache.tests.kit.suite_runs import execution, record

HOST = "gpu-node-7"

ENVIRONMENT = {
    COMMIT: "0123456789abcdef0123456789abcdef01234567",
    GPU: "NVIDIA H200",
    DRIVER: "580.82.07",
    "torch": "2.13.0",
    "command": "pytest --hicache-report /home/someone/reports",
    "platform": f"Linux on {HOST}",
}


@pytest.fixture
def run() -> RunRecord:
    """A run on a GPU, as `hicache verify` records it."""
    failed = execution("KEY-2", outcome=Outcome.FAILED, reason=f"no /var/lib/pages/1 on {HOST}", name="test_two")
    evidence = Evidence((), "", "", 'File "/home/someone/cache.py", line 3')
    executions = (execution("KEY-1"), replace(failed, evidence=evidence))
    return replace(record(*executions, implementation="package:Cache@cuda"), environment=ENVIRONMENT)


def test_the_page_says_what_the_kept_record_says_or_that_there_is_none() -> None:
    text = PAGE.read_text(encoding="utf-8")
    part = text.partition(BEGIN)[2].partition(END)[0]
    assert part == told(kept_record()), f"{PAGE.name}: expected {told(kept_record())!r}, got {part!r}"


def test_the_kept_record_has_no_problem() -> None:
    kept = kept_record()
    if kept is None:
        pytest.skip(f"the repository has no {KEPT.name} of a run on a GPU")
    found = list(problems(kept, socket.gethostname()))
    assert not found, f"{KEPT}: {found}"


def test_a_record_is_kept_without_machines_and_paths(run: RunRecord) -> None:
    kept = to_keep(run, HOST)
    assert list(problems(run, HOST)), "the run names its machine and paths: this test shows nothing"
    assert not list(problems(kept, HOST)), f"got {list(problems(kept, HOST))}"
    assert kept.environment == {name: ENVIRONMENT[name] for name in (COMMIT, GPU, DRIVER, "torch")}, f"got {kept}"
    assert kept.executions[1].reason == "no PATH on HOST", f"got {kept.executions[1].reason!r}"
    assert kept.executions[0].node_id == run.executions[0].node_id, f"got {kept.executions[0]}"


def test_a_machine_without_a_name_is_in_no_text(run: RunRecord) -> None:
    kept = to_keep(run, "")
    assert kept.executions[1].reason == f"no PATH on {HOST}", f"got {kept.executions[1].reason!r}"
    assert not list(problems(kept, "")), f"got {list(problems(kept, ''))}"


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.82.07  Sat Aug 23 02:13:49 UTC 2025",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build  (dvs-builder@U22)",
    ],
)
def test_the_driver_is_the_one_that_the_kernel_has_loaded(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "DRIVER_FILE", tmp_path / "version")
    assert not devices.driver(), "expected no driver without the file"
    (tmp_path / "version").write_text(f"{line}\nGCC version:  gcc version 12.3.0\n", encoding="utf-8")
    assert devices.driver() == "580.82.07", f"got {devices.driver()!r}"


def test_a_checkout_says_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "ROOT", tmp_path)
    assert not session.commit(), "expected no commit outside of a checkout"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    found = session.commit()
    assert re.fullmatch("[0-9a-f]{40}", found), f"expected a full commit, got {found!r}"
    (tmp_path / "file").touch()
    subprocess.run([*git, "add", "file"], check=True)
    assert session.commit() == f"{found}-dirty", f"got {session.commit()!r}"


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        (COMMIT, "", "commit is missing"),
        (COMMIT, f"{ENVIRONMENT[COMMIT]}-dirty", "and not one commit without changes"),
        (DRIVER, "", "driver is missing"),
        ("torch", "", "torch is missing"),
        (GPU, "none", "gpu is missing"),
        ("user", "someone", "the environment has user"),
        ("python", f"3.11 of {HOST}", "the name of the machine is in"),
        ("python", "/opt/python/3.11", "the path /opt/python/3.11 is in"),
    ],
)
def test_what_a_kept_record_lacks_or_tells_is_a_problem(run: RunRecord, name: str, value: str, problem: str) -> None:
    kept = to_keep(run, HOST)
    found = list(problems(replace(kept, environment={**kept.environment, name: value}), HOST))
    assert any(problem in one for one in found), f"expected {problem!r}, got {found}"


def test_the_page_says_the_levels_of_a_record(run: RunRecord) -> None:
    said = told(to_keep(run, HOST))
    for expected in (
        "at the commit 0123456789",
        "driver 580.82.07 and torch 2.13.0",
        "1 passed, 1 failed",
        "- device: ",
    ):
        assert expected in said, f"expected {expected!r} in {said!r}"


def test_the_command_keeps_a_record_and_writes_the_page(
    run: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, kept = tmp_path / "gpu.md", tmp_path / "gpu" / "run.json"
    page.write_text(f"before\n{BEGIN}old\n{END}after\n", encoding="utf-8")
    monkeypatch.setattr(gpu_record, "PAGE", page)
    monkeypatch.setattr(gpu_record, "KEPT", kept)
    write_run(run, tmp_path / "run.json")
    assert gpu_record.main(str(tmp_path / "run.json")) == 0, f"got {capsys.readouterr().err}"
    expected = f"before\n{BEGIN}{told(read_run(kept))}{END}after\n"
    assert page.read_text(encoding="utf-8") == expected, (
        f"expected {expected!r}, got {page.read_text(encoding='utf-8')!r}"
    )
    write_run(replace(run, environment={}), tmp_path / "run.json")
    assert gpu_record.main(str(tmp_path / "run.json")) == 1, "expected a record without a commit to be refused"
    assert "commit is missing" in capsys.readouterr().err, "expected the reason"
