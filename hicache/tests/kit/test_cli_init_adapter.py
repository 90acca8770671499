"""`hicache init-adapter`: what it writes passes the suites unchanged, and what it cannot write it refuses."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hicache.cli.app import app
from hicache.cli.init_adapter import CLASS, OPEN_IT, STAND_IN, Door
from hicache.testing.adapter import Capability
from hicache.testing.report import Outcome, RunRecord, read_run

NEEDED = {Door.VERBS: {"KEY-1", "POOL-2", "INS-1", "LOCK-5", "EVICT-1"}, Door.REQUESTS: {"KEY-1", "MATCH-1", "REQ-1"}}
"""Clauses whose tests need the door and no other capability."""

MACHINES = {
    Door.VERBS: "test_machines.py::test_any_order_of_verbs_from_outside[full]",
    Door.REQUESTS: "test_machines.py::test_any_mix_of_requests_from_outside[full]",
}
"""The state machine that needs the door alone."""

CONFORMANCE = "hicache.suites.conformance"

ENTRY = re.compile(r"^    # ([A-Z_]{3,})  ", re.MULTILINE)
"""A capability in the list at the end of a skeleton."""


def init(*arguments: str) -> tuple[int, str]:
    """The exit code and the output of `hicache init-adapter`."""
    result = CliRunner(env={"COLUMNS": "400"}).invoke(app, ["init-adapter", *arguments])
    return result.exit_code, result.output


def written(folder: Path, *arguments: str) -> str:
    """The skeleton that these options write."""
    path = folder / "fresh_adapter.py"
    ended, output = init(str(path), *arguments)
    assert ended == 0, f"expected 0, got {ended}: {output}"
    return path.read_text(encoding="utf-8")


def run_of(adapter: str, folder: Path, *suites: str) -> RunRecord:
    """A run of these suites by their names in the wheel, without the tests of backends, from the folder."""
    options = ("-q", "-p", "no:cacheprovider", "-k", "not storage", "--hicache-report", str(folder / "run.json"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--pyargs", *suites, "--hicache-adapter", adapter, *options],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, f"expected 0, got {done.returncode}: {done.stdout}{done.stderr}"
    return read_run(folder / "run.json")


@pytest.mark.parametrize("door", Door)
def test_a_skeleton_passes_as_it_is(tmp_path: Path, door: Door) -> None:
    written(tmp_path, "--door", door.value)
    run = run_of(f"fresh_adapter:{CLASS}", tmp_path, CONFORMANCE, "hicache.suites.properties")
    assert run.capabilities == (door.name,), f"expected the door alone, got {run.capabilities}"
    passed = {clause for one in run.executions if one.outcome is Outcome.PASSED for clause in one.clauses}
    assert passed >= NEEDED[door], f"clauses that need no other capability did not run: {NEEDED[door] - passed}"
    machines = [one.node_id for one in run.executions if one.outcome is Outcome.PASSED and one.suite == "properties"]
    assert any(name.endswith(MACHINES[door]) for name in machines), f"expected {MACHINES[door]}, got {machines}"


def test_pages_and_namespaces_of_the_skeleton_of_requests_need_only_be_declared(tmp_path: Path) -> None:
    text = written(tmp_path, "--door", "requests")
    declared = "frozenset({Capability.REQUESTS})"
    assert text.count(declared) == 1, f"expected {declared} once in {text}"
    more = "frozenset({Capability.REQUESTS, Capability.PAGED, Capability.NAMESPACES})"
    (tmp_path / "fresh_adapter.py").write_text(text.replace(declared, more), encoding="utf-8")
    run = run_of(f"fresh_adapter:{CLASS}", tmp_path, CONFORMANCE)
    pages = {one.configuration for one in run.executions if one.outcome is Outcome.PASSED}
    assert "full/page16/lru" in pages, f"expected pages of 16 tokens, got {pages}"


@pytest.mark.parametrize("door", Door)
def test_what_a_skeleton_lists_next_are_capabilities(tmp_path: Path, door: Door) -> None:
    text = written(tmp_path, "--door", door.value)
    listed = ENTRY.findall(text.partition("DECLARE NEXT")[2])
    unknown = set(listed) - set(Capability.__members__)
    assert not unknown, f"expected capabilities, got {unknown}"
    other = {Door.VERBS: "REQUESTS", Door.REQUESTS: "VERBS"}[door]
    missing = {"PAGED", "SNAPSHOT", "SIZES", "BYTES", "RESET", other} - set(listed)
    assert not missing, f"expected {missing} in the list {listed}"


@pytest.mark.parametrize("door", Door)
def test_the_class_has_the_name_of_the_option(tmp_path: Path, door: Door) -> None:
    text = written(tmp_path, "--door", door.value, "--name", "EngineAdapter")
    assert "class EngineAdapter(CacheAdapter):" in text, f"expected the class EngineAdapter, got {text}"
    assert CLASS not in text, f"expected no {CLASS} any more, got {text}"


@pytest.mark.parametrize("door", Door)
def test_the_cache_of_the_option_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: Door) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"engine_of_{door.value}.py").write_text("class EngineCache: ...\n", encoding="utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))
    text = written(tmp_path, "--door", door.value, "--cache", f"engine_of_{door.value}:EngineCache")
    line = f"from engine_of_{door.value} import EngineCache  # noqa: F401 - open it in __init__, in the place of "
    assert f"{line}{STAND_IN[door.value]}\n" in text, f"expected {line!r} in {text}"
    assert "YOUR CACHE: open EngineCache here" in text, f"expected the place to be named, got {text}"
    assert OPEN_IT not in text, f"expected the name of the cache instead of {OPEN_IT!r}, got {text}"
    compile(text, "fresh_adapter.py", "exec")


def test_the_next_commands_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "below").mkdir()
    _, here = init("one_adapter.py", "--name", "One")
    _, below = init("below/two_adapter.py")
    commands = (
        "  python -m pytest --pyargs hicache.suites.conformance --hicache-adapter one_adapter:One -q\n",
        "  hicache verify --adapter one_adapter:One --require nothing\n",
    )
    assert all(command in here for command in commands), f"expected {commands}, got {here}"
    assert "  cd " not in here, f"the file is in the current folder, got {here}"
    expected = (
        "  cd below\n  python -m pytest --pyargs hicache.suites.conformance --hicache-adapter two_adapter:MyAdapter"
    )
    assert expected in below, f"expected {expected!r}, got {below}"


REFUSED = {
    "a file that exists": (("there.py",), "there.py: it exists, and is not overwritten"),
    "no module": (("adapter.txt",), "adapter.txt: expected the file of a module"),
    "a name that cannot be imported": (("my-adapter.py",), "my-adapter.py: expected the file of a module"),
    "no folder": (("no/adapter.py",), "there is no folder no"),
    "the name of another module": (("json.py",), "there is another module json"),
    "no name": (("a.py", "--name", "class"), "'class' is not a valid class name"),
    "a name that is taken": (("a.py", "--name", "Key"), "the skeleton uses Key for something else"),
    "a path without a class": (("a.py", "--cache", "there"), "'there' is not of the form package.module:Class"),
    "a cache that is taken": (("a.py", "--cache", "there:Key"), "the skeleton uses Key for something else"),
    "no module of the cache": (("a.py", "--cache", "not_there:Cache"), "not_there:Cache: No module named 'not_there'"),
    "no such cache": (("a.py", "--cache", "json:Cache"), "json has no Cache"),
    "no such door": (("a.py", "--door", "window"), "'window' is not one of"),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_what_it_cannot_write_it_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "there.py").write_text("kept\n", encoding="utf-8")
    ended, output = init(*arguments)
    assert ended == 2, f"expected 2, got {ended}: {output}"
    assert message in output, f"expected {message!r}, got {output}"
    files = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert files == {"there.py": "kept\n"}, f"expected nothing to be written, got {files}"


def test_the_help_of_the_command_lists_it() -> None:
    output = CliRunner(env={"COLUMNS": "400"}).invoke(app, ["--help"]).output
    assert "init-adapter" in output, f"expected init-adapter in {output}"
