"""Runs of the plugin on small suites and a small cache, and records of runs made by hand."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from multiprocessing import forkserver, popen_forkserver
from pathlib import Path

import hypothesis
import pytest
from hypothesis import stateful

from hicache.storage.hf3fs import backend
from hicache.testing import process_starts
from hicache.testing.caches import reference
from hicache.testing.plugin import fixtures, journal, known_failures, session
from hicache.testing.plugin.known_failures import VERSIONS
from hicache.testing.plugin.tags import SUITES
from hicache.testing.report import NO_EVIDENCE, SCHEMA_VERSION, Execution, Outcome, RunRecord, read_run
from hicache.testing.storage import misbehaving
from hicache.tests.kit.hosted_cache import FlatCache

ROOT = Path(__file__).parents[3]

LOADED = (
    *(hypothesis, stateful, forkserver, popen_forkserver),
    *(backend, reference, fixtures, journal, known_failures, misbehaving, process_starts, session),
)
"""Modules that a run imports. A run in this process would import them again, and unload them at its end.

`process_starts` adds an audit hook, which nothing removes: each one makes every `id`, `open` and import slower.
`forkserver` has a process, in which torch is imported: one for all runs.
"""

FLAT_CACHE = f"{FlatCache.__module__}:{FlatCache.__name__}"

CONFTEST = "from hicache.testing.plugin.fixtures import adapter, adapter_type, driver, pytest_generate_tests"

PREAMBLE = """
import pytest
from hicache.config import EvictionPolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
"""


def write_suite(pytester: pytest.Pytester, source: str, folder: str = "conformance", conftest: str = CONFTEST) -> None:
    """Write a suite of one module, `test_it.py`, with the preamble before it."""
    files = {"__init__": "", "conftest": conftest, "test_it": PREAMBLE + textwrap.dedent(source)}
    for name, text in files.items():
        path = pytester.path / folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def run(
    pytester: pytest.Pytester, *options: str, adapter: str | None = FLAT_CACHE, interrupts: bool = False
) -> pytest.RunResult:
    """Run pytest in this process, where the real suites may have been imported under the same names.

    `adapter`: None to name none. `interrupts`: whether the run ends as after Ctrl-C, which otherwise ends the caller.
    """
    quiet = ("-p", "no:cacheprovider", "--strict-markers", "-W", "error", "--assert=plain")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in sys.modules if name.partition(".")[0] in SUITES]:
            patch.delitem(sys.modules, name)
        subject = () if adapter is None else ("--hicache-adapter", adapter)
        return pytester.runpytest_inprocess(*quiet, *subject, *options, no_reraise_ctrlc=interrupts)


def run_recorded(pytester: pytest.Pytester, *options: str) -> RunRecord:
    """Run pytest in this process, and return the record that the report would be made of."""
    records: list[RunRecord] = []

    def keep(record: RunRecord, directory: Path, _: object) -> Path:
        records.append(record)
        return directory

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "write_report", keep)
        # The tracebacks are not used, and pytest's own style reads the source of each line of each again.
        run(pytester, "--hicache-report", "out", "--tb=native", *options)
    assert len(records) == 1, f"expected one record of one run, got {records}"
    return records[0]


def run_apart(adapter: str, folder: Path, *arguments: str, absent: str = "") -> RunRecord:
    """Run pytest on an adapter in a process of its own, from the checkout; its record, which it writes to `folder`.

    `absent`: a library that the process cannot import.
    """
    run_file, environment = folder / "run.json", dict(os.environ)
    if absent:
        (folder / f"{absent}.py").write_text(f"raise ImportError('{absent} is absent in this test')\n", "utf-8")
        environment["PYTHONPATH"] = str(folder)
    options = ("-q", "-p", "no:cacheprovider", "--hicache-adapter", adapter, "--hicache-report", str(run_file))
    command = [sys.executable, "-m", "pytest", *arguments, *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert done.returncode in (0, 1), f"pytest ended with {done.returncode}: {done.stdout}{done.stderr}"
    return read_run(run_file)


HOSTILE = 'expected <b>1</b> & "2", got \x00\x1b[31mred\x1b[0m \ud800 ``` | </pre><script>alert(1)</script> ]]> é\ufffe'
"""A failure's message with the worst contents: markup of every format, control characters, a lone surrogate."""


def execution(
    *clauses: str,
    outcome: Outcome = Outcome.PASSED,
    configuration: str = "full/page16/lru",
    reason: str = "",
    name: str = "test_one",
    suite: str = "conformance",
    duration_s: float = 0.25,
    causes: tuple[str, ...] | None = None,
    lacks: tuple[str, ...] = (),
) -> Execution:
    """One execution of `name`, with 7 operations. `causes`: of a failure; by default all its clauses."""
    if causes is None:
        causes = clauses if outcome in (Outcome.FAILED, Outcome.KNOWN_FAILURE) else ()
    node_id = f"{suite}/test_file.py::{name}[{configuration}]"
    return Execution(
        node_id,
        suite,
        clauses,
        configuration,
        outcome,
        causes,
        reason,
        lacks,
        NO_EVIDENCE,
        f"pytest '{node_id}'",
        duration_s,
        7,
    )


def record(
    *executions: Execution, implementation: str = "package.cache:Adapter", started: str = "2026-01-02"
) -> RunRecord:
    """One run of these executions."""
    return RunRecord(
        schema_version=SCHEMA_VERSION,
        versions=VERSIONS,
        implementation=implementation,
        started=started,
        environment={"python": "3.10.1"},
        profile="tree",
        capabilities=("BYTES", "SWA"),
        executions=executions,
    )
