"""The table of runs: tox, the workflow, the page and the lists of known failures agree with it; and its command."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from hicache.engines import __main__ as main_module
from hicache.engines import runs
from hicache.engines.__main__ import listing, main
from hicache.engines.page import REPORTS
from hicache.engines.runs import KNOWN, ROOT, Run, read_runs
from hicache.errors import ConfigurationError
from hicache.testing.report.run import write_run
from hicache.tests.kit.suite_runs import execution, record
from hicache.tests.kit.test_workflows import tox_arguments

TABLE = read_runs()
FINDINGS = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")


def test_tox_has_the_environments_of_the_table() -> None:
    tox = ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    (section,) = [name for name in tox if "hicache.engines run" in tox[name].get("commands", "")]
    assert re.fullmatch(r"testenv:\{(.*)\}", section), f"expected [testenv:{{NAME,…}}], got {section}"
    found, expected = section[len("testenv:{") : -1].split(","), list(TABLE.environments)
    assert found == expected, f"tox.ini: expected {expected}, got {found}"


def test_each_environment_is_run_at_night_and_no_other_of_an_engine() -> None:
    names = [text.split()[1] for where, text in tox_arguments() if where == "nightly.yml, other-engines"]
    assert names == list(TABLE.environments), f"nightly.yml: expected {list(TABLE.environments)}, got {names}"


def test_each_list_of_known_failures_begins_with_the_runs_that_it_belongs_to() -> None:
    found = sorted({run.known for run in TABLE.runs if run.known is not None})
    assert found == sorted(KNOWN.glob("*.toml")), f"expected a run for each list, got {found}"
    for known in found:
        headers = "".join(run.header() for run in TABLE.runs if run.known == known)
        assert known.read_text(encoding="utf-8").startswith(headers), f"{known}: expected to begin with\n{headers}"


NOT_COUNTED = {
    "HiCacheFile, SGLang 0.5.13.post1",
    "SGLang 0.5.23, both trees side by side",
    "LMCache 0.5.6, host memory with any order of eviction",
    "nano-vllm, in any order of its free queue",
    "the backend `nixl-objects`",
    "the backend `objects` in a folder",
    "vLLM 0.33.0, CPU offloading with ARC",
}
"""Subjects without a row in the tables of results."""


def test_the_page_has_the_subjects_and_the_environments_of_the_table() -> None:
    for kind, suites in {"cache": {"cache", "models"}, "storage": {"storage"}}.items():
        listed = re.search(rf"^\| {kind} \| adapter, lines \|.*\n\|[-|]+\n((?:\|.*\n)+)", FINDINGS, re.MULTILINE)
        assert listed is not None, f"docs/findings.md: no table of each {kind}"
        found = {row.split("|")[1].strip() for row in listed[1].splitlines()} - {"the reference"}
        expected = {run.subject for run in TABLE.runs if run.suites in suites} - NOT_COUNTED
        assert found == expected, f"docs/findings.md, {kind}: expected rows of {sorted(expected)}, got {sorted(found)}"
    timed = set(re.findall(r"^\| `tox -e (\S+)` \|", FINDINGS, re.MULTILINE))
    assert timed == set(TABLE.environments), (
        f"docs/findings.md: expected {sorted(TABLE.environments)}, got {sorted(timed)}"
    )


@pytest.mark.parametrize("run", [run for run in TABLE.runs if ":" in run.path], ids=lambda run: run.class_name)
def test_the_class_of_a_run_exists(run: Run) -> None:
    module, _, name = run.path.partition(":")
    assert hasattr(import_module(module), name), f"{module} has no {name}"


@pytest.mark.parametrize("name", TABLE.names())
def test_the_class_names_one_run_of_its_environment(name: str) -> None:
    names = [run.class_name for run in TABLE.runs if run.environment == name and run.path]
    assert len(names) == len(set(names)), f"{name}: --only needs a class for each run, got {names}"


WRONG = {
    "unknown suites": (('suites = "cache"', 'suites = "caches"'), r"runs\[\d+\].suites is 'caches', known: cache, "),
    "unknown field": (('suites = "cache"', 'suites = "cache"\nsuite = "cache"'), r"runs\[\d+\].suite is unknown"),
    "no environment": (('environment = "nano-vllm"\n', ""), r"runs\[\d+\].environment is missing"),
    "no requirements": (('requirements = "vllm.txt"\n', ""), "environments.vllm-0.33.0.requirements is missing"),
    "unknown selection": (('selection = "whole"', 'selection = "all"'), "selection is 'all', known: whole"),
}


@pytest.mark.parametrize(("change", "named"), WRONG.values(), ids=WRONG)
def test_a_wrong_row_is_named(tmp_path: Path, change: tuple[str, str], named: str) -> None:
    path = tmp_path / "runs.toml"
    path.write_text(runs.TABLE.read_text(encoding="utf-8").replace(*change, 1), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=named):
        read_runs(path)


class Processes:
    """The processes of a command, which end with the given exit codes, and with 0 after them."""

    def __init__(self, *codes: int) -> None:
        self._codes = [*codes]
        self.words: list[list[str]] = []
        self.variables: list[str | None] = []

    def run(self, command: Sequence[str], *, env: dict[str, str], **_: object) -> SimpleNamespace:
        """Note the words after those of Python and its module."""
        self.words.append([*command[3:]])
        self.variables.append(env.get("OMP_NUM_THREADS"))
        return SimpleNamespace(returncode=self._codes.pop(0) if self._codes else 0)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    """The processes of the commands of a test, all of which succeed."""
    found = Processes()
    monkeypatch.setattr(subprocess, "run", found.run)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setattr(main_module, "missing", lambda *_: "")
    return found


def test_the_runs_of_an_environment_follow_one_another(processes: Processes) -> None:
    assert main(["run", "vllm-0.33.0", "-k", "LOCK-3"]) == 0, "each process ends with 0"
    found = [run for run in TABLE.runs if run.environment == "vllm-0.33.0"]
    # The last one is that of storage, which no argument narrows.
    expected = [[*run.arguments(), "-k", "LOCK-3"] for run in found[:-1]] + [[*found[-1].arguments()]]
    assert processes.words == expected, f"expected {expected}, got {processes.words}"
    assert set(processes.variables) == {"1"}, f"expected the variable of the table, got {processes.variables}"
    subject = ["--hicache-adapter", "hicache.engines.vllm.adapter:Vllm0330"]
    known = ["--hicache-known-failures", "hicache/engines/known/vllm-0.33.0.toml"]
    suites = ["conformance", "properties", "-n", "auto", "--hypothesis-profile", "hicache-ci"]
    assert processes.words[1] == [*suites, *subject, *known, "-k", "LOCK-3"], f"got {processes.words[1]}"


def test_the_first_run_that_fails_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Processes(0, 5, 1)
    monkeypatch.setattr(subprocess, "run", failing.run)
    monkeypatch.setattr(main_module, "missing", lambda *_: "")
    code = main(["run", "lmcache-0.5.6"])
    assert (code, len(failing.words)) == (5, 2), f"expected the code of the second of two, got {code}, {failing.words}"


@pytest.mark.parametrize(("codes", "expected"), [((5, 0, 5, 0), 0), ((5, 5, 5, 5), 5), ((5, 1), 1)])
def test_a_suite_in_which_nothing_matches_does_not_end_the_command(
    monkeypatch: pytest.MonkeyPatch, codes: tuple[int, ...], expected: int
) -> None:
    processes = Processes(*codes)
    monkeypatch.setattr(subprocess, "run", processes.run)
    monkeypatch.setattr(main_module, "missing", lambda *_: "")
    found = main(["run", "sglang-0.5.13", "-k", "LOCK-3"])
    assert found == expected, f"processes ended with {codes}: expected {expected}, got {found}"
    assert len(processes.words) == len(codes), f"expected {len(codes)} processes, got {processes.words}"


@pytest.mark.parametrize("name", TABLE.names())
def test_what_an_environment_lacks_is_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    started = Processes()
    monkeypatch.setattr(subprocess, "run", started.run)
    monkeypatch.setattr(runs, "installed_release", lambda _: None)
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    monkeypatch.delenv("HICACHE_ENGINE_SOURCE", raising=False)
    code, told = main(["run", name]), capsys.readouterr().err.splitlines()
    assert (code, len(told)) == (2, 1), f"{name}: expected 2 and one line, got {code} and {told}"
    assert told[0].startswith(f"python -m hicache.engines run: {name} needs the "), f"{name}: got {told}"
    assert not started.words, f"{name}: expected no process, got {started.words}"


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    monkeypatch.setattr(runs, "installed_release", {"obstore": "1", "nixl": "1"}.get)
    monkeypatch.delenv("HICACHE_ENGINE_SOURCE", raising=False)
    told = {name: runs.missing(name, TABLE) for name in ("vllm-0.33.0", "nano-vllm", "objects", "nixl-objects")}
    assert told == {
        "vllm-0.33.0": "needs the package vllm: python -m hicache.engines install vllm-0.33.0",
        "nano-vllm": "needs the variable HICACHE_ENGINE_SOURCE: docs/findings.md",
        "objects": "",
        "nixl-objects": "needs the file options.json: docs/nixl.md",
    }, f"got {told}"
    (tmp_path / "options.json").touch()
    monkeypatch.setenv("HICACHE_ENGINE_SOURCE", str(tmp_path))
    told = {name: runs.missing(name, TABLE) for name in ("nano-vllm", "nixl-objects")}
    assert not any(told.values()), f"got {told}"


def test_one_run_can_be_chosen_and_takes_arguments(processes: Processes) -> None:
    assert main(["run", "sglang-0.5.23", "--only", "Sglang0523Rank", "-k", "RANK-1"]) == 0, "the process ends with 0"
    ((*_, name, last),) = processes.words
    assert (name, last) == ("-k", "RANK-1"), f"expected the arguments of the command, got {processes.words}"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "vllm-0.33.0", "--only", "Vllm"], "--only Vllm: vllm-0.33.0 has Vllm0330, "),
        (["run", "vllm"], "invalid choice: 'vllm'"),
        (["install", "mini-sglang"], "invalid choice: 'mini-sglang'"),
        (["list", "all"], "unknown: all"),
        (["page", "missing/run.json"], "missing/run.json"),
    ],
)
def test_wrong_use_is_refused(capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    error = capsys.readouterr().err
    assert ended.value.code == 2, f"{words}: expected 2, got {ended.value.code}"
    assert told in error, f"{words}: expected {told!r}, got {error}"


def test_an_environment_is_installed_with_its_engine_alone(processes: Processes) -> None:
    assert main(["install", "vllm-0.33.0"]) == 0, "each process ends with 0"
    ours, engine = processes.words
    assert ours[:4] == ["install", "--quiet", "--constraint", "constraints.txt"], (
        f"expected pinned versions, got {ours}"
    )
    assert ours[-2:] == ["--requirement", str(ROOT / "hicache/engines/requirements/vllm.txt")], f"got {ours}"
    assert engine == ["install", "--quiet", "--no-deps", "vllm==0.33.0"], f"expected no dependencies, got {engine}"


def test_the_list_has_each_run() -> None:
    lines = listing(TABLE).splitlines()
    assert len(lines) == len(TABLE.runs) + len(TABLE.names()), f"expected a line for each, got {lines}"
    assert "mini-sglang (not installed by tox)" in lines, f"got {lines}"
    row = ["cache", "hicache.engines.vllm.adapter:Vllm0330", "vllm-0.33.0.toml"]
    assert row in [line.split() for line in lines], f"expected {row}, got {lines}"


def test_each_run_of_an_environment_has_a_report_of_its_own(processes: Processes) -> None:
    assert main(["run", "vllm-0.33.0", "--report", "out"]) == 0, "each process ends with 0"
    folders = [words[words.index("--hicache-report") + 1] for words in processes.words if "--hicache-report" in words]
    found = [run for run in TABLE.runs if run.environment == "vllm-0.33.0" and run.path]
    assert folders == [str(Path("out", run.class_name).absolute()) for run in found], f"got {folders}"


def test_the_page_compares_the_runs_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("Vllm0330", "NanoVllm"):
        (tmp_path / REPORTS / name).mkdir(parents=True)
        write_run(record(execution("LOCK-1"), implementation=f"engine:{name}"), REPORTS / name / "run.json")
    assert main(["page"]) == 0, "the runs are there"
    text = (tmp_path / REPORTS / "page.html").read_text(encoding="utf-8")
    assert "Vllm0330" in text, "the page lacks a run"
    assert "NanoVllm" in text, "the page lacks a run"
    assert main(["page", str(REPORTS / "NanoVllm"), "--html", "one.html"]) == 0, "a run is named"
    assert "Vllm0330" not in (tmp_path / "one.html").read_text(encoding="utf-8"), "the page has a run that is not named"


def test_a_page_without_runs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["page"])
    assert ended.value.code == 2, f"expected 2, got {ended.value.code}"
    assert "reports/engines has no reports: write them with" in capsys.readouterr().err, "expected what to do"
