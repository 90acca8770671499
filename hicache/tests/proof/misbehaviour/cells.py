"""Cells: each kind of misbehaviour, in each verb that a stage of `hicache verify` calls, and the run of one cell."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from time import perf_counter

from hicache.cli.program import program
from hicache.config import read_table
from hicache.tests.proof.misbehaviour import adapters
from hicache.tests.proof.misbehaviour.adapters import KINDS, MISBEHAVED

STAGE_LIMIT_S = 300
"""What a stage may take: far beyond what a cell needs."""

ATTEMPTS = 3
"""How often a cell is run until its verb is called. A cell whose verb is called in none of them has a problem."""

HANG_LIMITS_S = (20, 60, 240)
"""The same where a verb hangs, which costs this time: the first limit that the stage needs to reach the verb."""

LIMIT_S = 600.0
"""Until a command that hangs is killed: far beyond what its own limits allow."""

STAGES = ("replay", "conformance", "properties", "distributed_tests", "accuracy")

TABLE = Path(__file__).with_name("cells.toml")
"""By stage, the verbs for which each test is run."""

_DIED = r"the process of (the test|a rank) ended|ended with code"

TOLD: Mapping[str, str] = {
    "exit0": _DIED,
    "exit1": _DIED,
    "segfault": rf"{_DIED}|SIGSEGV",
    "system_exit": "SystemExit|code 0",
    "keyboard_interrupt": "KeyboardInterrupt|keyboard-interrupt",
    "hang": r"took too long|limit of --timeout|no output for|did not end in time",
    "flood": r"characters of output",
    "thread": r"left running|left a thread",
    # A fork without the threads of its parent may hang, and then holds the output of the stage.
    "fork": r"left running|left a fork behind|left a thread or a process running",
}
"""By kind, the words of which one has to be in the output."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One adapter under one stage. `keyword`: the tests that are run, as for -k; empty for all."""

    stage: str
    kind: str
    verb: str
    keyword: str

    def __str__(self) -> str:
        return f"{self.stage}: {self.kind} in {self.verb}"


@dataclass(frozen=True, slots=True)
class Found:
    """What a run of a cell said. `is_reached`: the verb was called. `message`: the line that names what happened."""

    cell: Cell
    code: int
    is_reached: bool
    has_report: bool
    message: str
    duration_s: float

    @property
    def problems(self) -> list[str]:
        """What is wrong with it."""
        wrong = {
            "the verb was not called": self.is_reached,
            f"exit code {self.code}": self.code == 1,
            "no report": self.has_report,
            "no message": bool(self.message),
        }
        return [problem for problem, is_right in wrong.items() if not is_right]


def cells(stage: str) -> Iterator[Cell]:
    """Each kind in each verb that the tests of a stage call."""
    for keyword, verbs in read_table(f"@{TABLE}")[stage].items():
        for verb, kind in product(verbs, KINDS):
            yield Cell(stage, kind, verb, keyword)


def command(cell: Cell, folder: Path) -> list[str]:
    """The command that verifies a cell and writes its report into `folder`."""
    return [
        *program("hicache", "verify", "--require", "nothing", "--only", cell.stage, "--jobs", "1"),
        *("--adapter", f"{adapters.__name__}:{cell.kind}_in_{cell.verb}", "--report", str(folder)),
        *(("-k", cell.keyword) if cell.keyword else ()),
        *(("--full",) if cell.stage == "accuracy" else ()),
    ]


def environment(sign: Path) -> dict[str, str]:
    """The environment of the command. `sign`: the file that says that the verb was called."""
    return os.environ | {MISBEHAVED: str(sign), "COLUMNS": "200"}


def run_cell(cell: Cell, folder: Path) -> Found:
    """Run `hicache verify` on a cell, in an empty folder. A search may not draw the verb: then again."""
    for number, limit_s in enumerate(HANG_LIMITS_S if cell.kind == "hang" else (STAGE_LIMIT_S,) * ATTEMPTS):
        place = folder / str(number)
        place.mkdir()
        found = _run(cell, place, limit_s)
        if found.is_reached:
            break
    return found


def _run(cell: Cell, folder: Path, limit_s: int) -> Found:
    sign, report = folder / "misbehaved", folder / "report"
    begin = perf_counter()
    done = subprocess.run(
        [*command(cell, report), "--timeout", str(limit_s)],
        check=False,
        env=environment(sign),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=LIMIT_S,
    )
    (folder / "output").write_text(done.stdout, encoding="utf-8")
    told = [line.strip() for line in done.stdout.splitlines() if re.search(TOLD[cell.kind], line)]
    has_report = (report / "report.html").is_file()
    return Found(cell, done.returncode, sign.exists(), has_report, told[0] if told else "", perf_counter() - begin)
