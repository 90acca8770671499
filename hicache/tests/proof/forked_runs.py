"""Runs of a suite on a changed cache, each in a process that is forked from one with torch and the suites imported.

    python -m hicache.tests.proof.forked_runs [SLUG ...]

Runs the mutants that are named, or all, and says of each whether its test has found it.
"""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hicache.tests.proof.changed_source import Change, Imports, load_changed
from hicache.tests.proof.mutant_table import MUTANTS

ROOT = Path(__file__).parents[3]

PRELOADED = (
    *("torch", "pytest", "_hypothesis_pytestplugin", "hypothesis.stateful", "multiprocessing.popen_forkserver"),
    *(f"hicache.testing.plugin.{name}" for name in ("hooks", "fixtures", "known_failures", "session")),
    *("hicache.testing.caches.reference", "hicache.testing.report", "hicache.testing.storage.misbehaving"),
    *("hicache.storage.hf3fs.backend", "conformance.conftest"),
)
"""What a run imports. A process that is forked has it, without what imports a module that is changed."""

FAMILIES = ("deepseek_v32", "gemma3", "qwen3", "qwen3_next")

PRELOADED_LATER: Mapping[str, tuple[str, ...]] = {
    "accuracy": ("accuracy.test_families", *(f"transformers.models.{one}.modeling_{one}" for one in FAMILIES)),
    "properties": ("properties.test_machines",),
}
"""What the first run of a suite imports besides that."""

QUIET = (
    *("-p", "no:cacheprovider", "-p", "hicache.testing.plugin.hooks"),
    *("-p", "_hypothesis_pytestplugin", "--strict-markers", "-W", "error", "--assert=plain", "--tb=native", "-x"),
)

GUARD_S = 1.0
"""How long a misbehaving backend is waited for."""

LIMIT_S = 300
"""A run is killed after this time, which is far beyond that of any."""


@dataclass(frozen=True, slots=True)
class Run:
    """How a run ended. `reasons`, `causes`: of the executions that failed, known or not. `words`: what pytest printed.

    `verbs`: how many these executions called. `status`: of the process, 0 unless it died.
    """

    passed: int
    reasons: Sequence[str]
    causes: Sequence[str]
    verbs: int
    words: str
    status: int


class ForkServer:
    """A process that forks one for each run. Close it at the end."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "hicache.tests.proof.forked_runs", "--serve"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, changes: Sequence[Change], *arguments: str) -> Run:
        """Run pytest with the arguments on the changed modules. Raises RuntimeError when the server has died."""
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None, "the input is a pipe"
        assert answers is not None, "the output is a pipe"
        asked.write(json.dumps([[asdict(change) for change in changes], arguments]) + "\n")
        asked.flush()
        answer = answers.readline()
        if not answer:
            raise RuntimeError(f"the fork server ended with {self._process.wait()}")
        return Run(**json.loads(answer))

    def close(self) -> None:
        """End the server."""
        self._process.communicate()


def serve() -> None:
    """Run what each line of the standard input asks for, in a process of its own; a line of JSON answers."""
    imports = Imports()
    _preload(PRELOADED)
    for line in sys.stdin:
        changes, arguments = json.loads(line)
        _preload(PRELOADED_LATER.get(arguments[0].partition("/")[0], ()))
        with tempfile.TemporaryDirectory() as folder:
            answer = _forked([Change(**change) for change in changes], arguments, imports, Path(folder))
        sys.stdout.write(json.dumps(asdict(answer)) + "\n")
        sys.stdout.flush()


def _preload(modules: Sequence[str]) -> None:
    """Import modules, and freeze what they have made: a collection in a fork would copy all of that memory."""
    if not sys.modules.keys() >= {*modules}:
        for name in modules:
            import_module(name)
        gc.collect()
        gc.freeze()


def _forked(changes: Sequence[Change], arguments: Sequence[str], imports: Imports, folder: Path) -> Run:
    pid = os.fork()
    if pid == 0:
        with _last_words(folder):
            load_changed(changes, imports)
            (folder / "run.json").write_text(json.dumps(_run(arguments)), encoding="utf-8")
    _, status = os.waitpid(pid, 0)
    words = (folder / "words").read_text(encoding="utf-8", errors="replace")
    found: dict[str, Any] = {"passed": 0, "reasons": (), "causes": (), "verbs": 0}
    if status == 0:
        found = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return Run(**found, words=words, status=os.waitstatus_to_exitcode(status))


@contextmanager
def _last_words(folder: Path) -> Iterator[None]:
    """End this process behind the block, and write what it prints to a file."""
    status = 1
    try:
        signal.alarm(LIMIT_S)
        words = os.open(folder / "words", os.O_WRONLY | os.O_CREAT)
        for standard in (1, 2):
            os.dup2(words, standard)
        yield
        status = 0
    except BaseException:  # noqa: BLE001 - also an exit: this process goes no further
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run(arguments: Sequence[str]) -> dict[str, Any]:
    import pytest

    from hicache.testing.plugin import session
    from hicache.testing.report import Outcome, RunRecord
    from hicache.testing.storage import misbehaving

    records: list[RunRecord] = []

    def keep(record: RunRecord, directory: Path, _: object) -> Path:
        records.append(record)
        return directory

    misbehaving.GUARD_S = GUARD_S
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    with patch.object(session, "write_report", keep):
        code = pytest.main([*QUIET, "--rootdir", str(ROOT), "--hicache-report", "out", *arguments])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest ended with {code!r}")
    (record,) = records
    failed = [one for one in record.executions if one.outcome in (Outcome.FAILED, Outcome.KNOWN_FAILURE)]
    return {
        "passed": sum(one.outcome is Outcome.PASSED for one in record.executions),
        "reasons": [one.reason for one in failed],
        "causes": [cause for one in failed for cause in one.causes],
        "verbs": sum(one.operations for one in failed),
    }


def found(message: str, run: Run) -> bool:
    """Whether an execution of this run has failed for the reason that a mutant names."""
    return any(re.search(message, reason) for reason in run.reasons)


def main(slugs: Sequence[str]) -> int:
    """Run mutants by name; returns the exit status, 1 when a test does not find one."""
    server, missed = ForkServer(), 0
    for mutant in [one for one in MUTANTS if one.slug in slugs or not slugs]:
        run = server.run(mutant.changes, *mutant.arguments)
        missed += not (is_found := found(mutant.message, run))
        details = "found\n" if is_found else f"NOT FOUND\n{run.reasons}\n{run.words}\n"
        sys.stdout.write(f"{mutant.slug}: {details}")
        sys.stdout.flush()
    server.close()
    return 1 if missed else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        sys.exit(main(sys.argv[1:]))
