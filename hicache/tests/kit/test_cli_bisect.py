"""`hicache bisect`: the commit that broke a clause of a small engine, and what it says of one commit."""

from __future__ import annotations

import os
import subprocess
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hicache.cli import stage
from hicache.cli.app import app
from hicache.cli.bisect import verdict
from hicache.cli.stage import StageResult
from hicache.testing.caches import dictionary
from hicache.testing.plugin.failures import FLAKY, STALE
from hicache.testing.report import Execution, Outcome
from hicache.tests.kit.suite_runs import CONFTEST, PREAMBLE, execution, record

ENGINE = Path(dictionary.__file__).read_text(encoding="utf-8")

COMMITS = (
    ("begin", "", ""),
    ("name the engine", "NAME = ''", "NAME = 'engine'"),
    ("add a comment", "# The end", "# The end of the file"),
    ("name it again", "'engine'", "'dictionary'"),
    ("rename the cache", "class PrefixDictionary", "class Dictionary"),
    ("take the name back", "class Dictionary", "class PrefixDictionary"),
    ("use no prefix", "self.slots[prefix] = self.slots.pop(prefix)", "pass"),
    ("say less", "# The end of the file", "# The end"),
    ("remove the name", "NAME = 'dictionary'", ""),
)
"""A message, a text of the engine, and what replaces it. Counted from 0, 4 cannot be tested, and 6 breaks LRU."""

ADAPTER = """
from engine import PrefixDictionary
from hicache.testing.caches.dictionary import DictionaryAdapter

class Adapter(DictionaryAdapter):
    def __init__(self, config):
        super().__init__(config)
        self.cache = PrefixDictionary(config.capacity_tokens["full"])
"""

SUITE = """
import numpy as np
from hicache.types import Key, SHARED

def key(token):
    return Key(np.array([token], dtype=np.int64), SHARED)

@clause("EVICT-2")
def test_the_least_recently_used_goes(adapter):
    for token in (1, 2):
        options = {"shared": 0, "window_start": 0, "state": None, "priority": 0}
        adapter.insert(key(token), adapter.allocate(1), **options)
    adapter.match(key(1), chunked=False)
    adapter.evict("full", 1)
    assert len(adapter.match(key(1), chunked=False).device_indices) == 1, "EVICT-2: 1 was used last"

@clause("EVICT-2")
def test_nothing_is_cached(adapter):
    assert len(adapter.match(key(1), chunked=False).device_indices) == 0, "EVICT-2: nothing is cached"

@clause("KEY-1")
def test_a_failure_of_another_clause(adapter):
    assert False, "KEY-1: it always fails"
"""


def git(folder: Path, *words: str) -> str:
    """The output of a git command. All commits have one date: git bisect orders equal ones by their hashes."""
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
    dates = dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), "2026-01-01T00:00:00Z")
    environment = {**os.environ, **dates}
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, env=environment).stdout


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The repository of an engine with a first commit and COMMITS; an adapter and a suite are in the current folder."""
    suite = {"__init__": "", "conftest": CONFTEST, "test_it": PREAMBLE + textwrap.dedent(SUITE)}
    (tmp_path / "conformance").mkdir()
    for name, text in suite.items():
        (tmp_path / "conformance" / f"{name}.py").write_text(text, encoding="utf-8")
    (tmp_path / "adapter_of_engine.py").write_text(ADAPTER, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stage, "suite_folder", lambda name: tmp_path / name)
    file = tmp_path / "repository" / "python" / "engine" / "__init__.py"
    file.parent.mkdir(parents=True)
    git(tmp_path, "init", "--quiet", "repository")
    # An import may write bytecode there.
    (tmp_path / "repository" / ".git" / "info" / "exclude").write_text("__pycache__/\n", encoding="utf-8")
    source = f"{ENGINE}\nNAME = ''\n# The end\n"
    for message, text, other in COMMITS:
        assert text in source, f"{message}: the engine has no {text}"
        source = source.replace(text, other)
        file.write_text(source, encoding="utf-8")
        git(file.parent, "add", "--all")
        git(file.parent, "commit", "--quiet", "-m", message)
    yield tmp_path / "repository"
    changed = git(tmp_path / "repository", "status", "--porcelain")
    assert not changed, f"the source tree is not changed, got {changed}"


def bisect(*words: str) -> tuple[int, list[str]]:
    """The exit code of the command on the adapter, and its lines."""
    fixed = ("--adapter", "adapter_of_engine:Adapter", "--engine-source", "repository", "--jobs", "1")
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["bisect", *fixed, *words])
    return done.exit_code, done.output.splitlines()


def test_the_commit_that_broke_a_clause_is_found(repository: Path) -> None:
    code, lines = bisect("--good", "HEAD~8", "--clause", "EVICT-2")
    found = git(repository, "log", "-1", "--format=%h %s", "HEAD~2").strip()
    assert (code, lines[-2]) == (0, f"first bad commit: {found}"), f"expected {found}, got {code} and {lines}"
    assert found.endswith("use no prefix"), f"the sixth commit broke it, got {found}"
    assert lines[-1] == "tested 6 commits, 1 of them cannot be tested", f"got {lines}"
    assert sum("cannot import name 'PrefixDictionary'" in line for line in lines) == 1, f"got {lines}"
    assert git(repository, "worktree", "list").count("\n") == 1, "the worktree is removed"


@pytest.mark.parametrize(
    ("commit", "clause", "code", "line"),
    [
        ("HEAD", "EVICT-2", 1, "bad: EVICT-2 fails in 1 tests, such as conformance/test_it.py::test_the_least"),
        (
            "HEAD~4",
            "EVICT-2",
            125,
            "cannot be tested: adapter_of_engine:Adapter: cannot import name",
        ),
        ("HEAD~8", "KEY-2", 125, "cannot be tested: no test of KEY-2 passed"),
    ],
)
def test_one_commit_is_good_bad_or_cannot_be_tested(
    repository: Path, commit: str, clause: str, code: int, line: str
) -> None:
    branch = git(repository, "branch", "--show-current").strip()
    git(repository, "checkout", "--quiet", commit)
    found = bisect("--clause", clause)
    git(repository, "checkout", "--quiet", branch)
    assert (found[0], len(found[1])) == (code, 1), f"expected {code} and one line, got {found}"
    assert found[1][0].startswith(f"source: {line}"), f"expected {line}, got {found}"


@pytest.mark.usefixtures("repository")
def test_a_commit_that_breaks_the_clause_is_refused_as_the_good_one() -> None:
    code, lines = bisect("--good", "HEAD", "--bad", "HEAD~8", "--clause", "EVICT-2")
    assert code == 2, f"expected a usage error, got {code}: {lines}"
    assert "Invalid value for --good" in lines[-1], f"expected --good, got {lines}"
    assert lines[-1].endswith("says: bad"), f"expected the answer of its test, got {lines}"


@pytest.mark.usefixtures("repository")
def test_a_commit_without_the_engine_cannot_be_tested(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, lines = bisect("--engine-source", "empty", "--clause", "EVICT-2")
    assert (code, lines) == (125, ["source: cannot be tested: empty has no Python package"]), f"got {code} and {lines}"


PASSED = execution("EVICT-2")
BROKEN = execution("EVICT-2", outcome=Outcome.FAILED)
RAISED = execution("EVICT-2", outcome=Outcome.FAILED, causes=("TypeError in evict",), reason="no evict\nat line 1")


@pytest.mark.parametrize(
    ("executions", "of_clause", "of_any"),
    [
        ([PASSED], 0, 0),
        ([PASSED, BROKEN], 1, 1),
        ([PASSED, RAISED], 0, 1),
        ([RAISED], 125, 1),
        ([replace(BROKEN, causes=(STALE,))], 0, 0),
        ([replace(BROKEN, causes=(FLAKY,))], 125, 125),
        ([replace(BROKEN, outcome=Outcome.KNOWN_FAILURE)], 125, 125),
        ([PASSED, replace(BROKEN, outcome=Outcome.KNOWN_FAILURE)], 0, 0),
        ([execution("KEY-1")], 125, 0),
        ([], 125, 125),
    ],
)
def test_only_the_failures_that_are_asked_for_count(executions: list[Execution], of_clause: int, of_any: int) -> None:
    result = StageResult("conformance", record(*executions), None, 1.0)
    found = verdict(result, "EVICT-2")[0], verdict(result, "")[0]
    assert found == (of_clause, of_any), f"{executions}: expected {of_clause} and {of_any}, got {found}"


def test_a_process_that_cannot_test_says_why_in_one_line() -> None:
    problem = "the process ended with code 4; it ends with:\npytest: error: no option\n  rootdir: /tmp\n"
    found = verdict(StageResult("conformance", record(), problem, 1.0), "EVICT-2")
    assert found == (125, "cannot be tested: no test of EVICT-2 passed: pytest: error: no option"), f"got {found}"
