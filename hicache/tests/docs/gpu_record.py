"""The record of a run on a GPU that the repository keeps, docs/gpu/run.json, and what docs/gpu.md says of it.

`python -m hicache.tests.docs.gpu_record reports/gpu/run.json` keeps a record, and writes its part of the page.
"""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from hicache.testing.contract import CONTRACT
from hicache.testing.report import Execution, Outcome, RunRecord, read_run, write_run
from hicache.testing.report.coverage import coverage
from hicache.testing.report.gpu import DRIVER, GPU, NO_GPU, untried_on_gpu
from hicache.testing.report.matrix import overview
from hicache.testing.report.run import COMMIT, NO_EVIDENCE, NOT_WHOLE

ROOT = Path(__file__).parents[3]
KEPT = ROOT / "docs" / "gpu" / "run.json"
PAGE = ROOT / "docs" / "gpu.md"
BEGIN, END = "<!-- record: begin -->\n", "<!-- record: end -->\n"

REQUIRED = (COMMIT, GPU, DRIVER, "torch")
OPTIONAL = ("hicache", "python", "numpy", "pytest", "hypothesis", NOT_WHOLE)
"""What of the environment is kept, beside what a record must have. A command line has paths, and is not kept."""

FOLDERS = re.compile(r"(?<![\w.\-/])~?/(?:[\w.+-]+/)+[\w.+-]*|\b[A-Za-z]:\\\S+")
"""An absolute path. Names of configurations such as full/page16 are none."""

NONE = (
    "The repository has no record of a run on a GPU: there is no `docs/gpu/run.json`. The figures of this section\n"
    "were written down after a run whose commit and driver are not known, and no test compares them with it.\n"
)


def to_keep(record: RunRecord, host: str) -> RunRecord:
    """The record without what names a machine or its folders. `host`: the name of the machine."""
    named = names_of(host)

    def plain(text: str) -> str:
        return named.sub("HOST", FOLDERS.sub("PATH", text))

    def kept(one: Execution) -> Execution:
        return replace(
            one, reason=plain(one.reason), causes=tuple(map(plain, one.causes)), replay="", evidence=NO_EVIDENCE
        )

    environment = {name: plain(value) for name, value in record.environment.items() if name in (*REQUIRED, *OPTIONAL)}
    return replace(record, environment=environment, executions=tuple(map(kept, record.executions)))


def problems(record: RunRecord, host: str) -> Iterator[str]:
    """Why a record cannot be kept."""
    for name in REQUIRED:
        if record.environment.get(name, NO_GPU) in ("", NO_GPU):
            yield f"{name} is missing"
    commit = record.environment.get(COMMIT, "")
    if commit and not re.fullmatch("[0-9a-f]{40}", commit):
        yield f"{COMMIT} is {commit!r}, and not one commit without changes"
    if more := sorted(record.environment.keys() - {*REQUIRED, *OPTIONAL}):
        yield f"the environment has {', '.join(more)}"
    named = names_of(host)
    for text in texts(record):
        if found := FOLDERS.search(text):
            yield f"the path {found[0]} is in {text[:80]!r}"
        if named.search(text):
            yield f"the name of the machine is in {text[:80]!r}"


def names_of(host: str) -> re.Pattern[str]:
    """The name of a machine as a word; nothing for a machine without one."""
    return re.compile(rf"(?<![\w-]){re.escape(host)}(?![\w-])" if host else r"(?!)")


def texts(record: RunRecord) -> Iterator[str]:
    """Every text of a record that could name a machine."""
    yield from (record.implementation, *record.environment.values())
    for one in record.executions:
        steps = (text for step in one.evidence.steps for text in (step.arguments, step.answer))
        yield from (one.node_id, one.reason, one.replay, *one.causes, *steps)
        yield from (one.evidence.before, one.evidence.after, one.evidence.traceback)


def told(record: RunRecord | None) -> str:
    """What the page says of the record, in Markdown."""
    if record is None:
        return NONE
    named = {name: record.environment[name] for name in REQUIRED}
    counts = ", ".join(
        f"{sum(one.outcome is outcome for one in record.executions):,} {outcome.value.replace('_', ' ')}"
        for outcome in Outcome
    )
    found = coverage(overview(record, CONTRACT))
    lines = [
        f"[gpu/run.json](gpu/run.json) is the record of `hicache verify` at the commit {named[COMMIT]}",
        f"on {named[GPU]}, with the driver {named[DRIVER]} and torch {named['torch']}: {counts}.",
        "",
        *(f"- {level}" for level in found.levels),
        "",
        untried_on_gpu(record, CONTRACT) or "Each part of a cache that only a GPU runs ran on it.",
    ]
    return "\n".join(lines) + "\n"


def kept_record() -> RunRecord | None:
    """The record that the repository has, if it has one."""
    return read_run(KEPT) if KEPT.exists() else None


def main(path: str) -> int:
    """Keep a record and write the page; 1 where the record cannot be kept."""
    host = socket.gethostname()
    record = to_keep(read_run(Path(path)), host)
    if found := list(problems(record, host)):
        sys.stderr.writelines(f"{path}: {problem}\n" for problem in found)
        return 1
    KEPT.parent.mkdir(exist_ok=True)
    write_run(record, KEPT)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{told(record)}{END}{rest.partition(END)[2]}", encoding="utf-8")
    sys.stdout.write(f"{KEPT}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
