"""The tables of the suite on several releases of an engine, and the adapters that the command drives them with."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hicache.engines import releases
from hicache.testing.load import load_adapter
from hicache.testing.report import Execution, Outcome, RunRecord, write_run
from hicache.tests.kit.html_page import HtmlPage
from hicache.tests.kit.suite_runs import execution, record


def failed(test: str, *causes: str) -> Execution:
    """A failed execution of a test."""
    return replace(execution("KEY-1", outcome=Outcome.FAILED), node_id=test, causes=causes)


PASSED = execution("KEY-1")
OLD = record(PASSED, failed("test_a[1]", "LOCK-5"), failed("test_a[2]", "LOCK-5"), failed("test_b[1]", "KEY-2"))
NEW = record(PASSED, PASSED, failed("test_a[2]", "POOL-1"), execution("KEY-3", outcome=Outcome.SKIPPED))


def test_a_failure_is_counted_in_each_release_under_the_clause_that_was_broken_most() -> None:
    expected = [releases.Failures("test_b", "KEY-2", (1, 0)), releases.Failures("test_a", "LOCK-5", (2, 1))]
    found = releases.failures([OLD, NEW])
    assert found == expected, f"expected {expected}, got {found}"


def test_a_failure_of_no_clause_is_listed_without_one() -> None:
    found = releases.failures([record(failed("test_c[1]"))])
    assert found == [releases.Failures("test_c", "", (1,))], f"expected one failure without a clause, got {found}"


def test_the_tables_have_a_row_for_each_release_and_a_column_for_each_release() -> None:
    lines = releases.table({"1.0": OLD, "1.1": NEW}).splitlines()
    assert lines == [
        "| release | executed | passed | failed | skipped |",
        "|---|---|---|---|---|",
        "| 1.0 | 4 | 1 | 3 | 0 |",
        "| 1.1 | 3 | 2 | 1 | 1 |",
        "",
        "| clause | test | 1.0 | 1.1 |",
        "|---|---|---|---|",
        "| KEY-2 | `test_b` | 1 |  |",
        "| LOCK-5 | `test_a` | 2 | 1 |",
    ], f"expected each release in a row and in a column, got {lines}"


@pytest.mark.parametrize("engine", releases.ADAPTERS)
def test_each_release_has_an_adapter_of_its_own(engine: str) -> None:
    for release, name in releases.ADAPTERS[engine].items():
        adapter: Any = load_adapter(name)
        assert adapter.version == release, f"{name} drives {adapter.version}, and stands for {release}"


def test_the_command_installs_and_runs_each_release_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[list[str], str]] = []
    records = {"Vllm0320": OLD, "Vllm0330": NEW}

    def pretend(command: Sequence[str], **options: Any) -> None:
        called.append((list(command), options.get("env", {}).get("PYTHONPATH", "")))
        if "--hicache-report" in command:
            place = Path(command[command.index("--hicache-report") + 1])
            place.mkdir(parents=True, exist_ok=True)
            adapter = command[command.index("--hicache-adapter") + 1]
            write_run(renamed(records[adapter.rpartition(":")[2]], adapter), place / "run.json")

    def renamed(run: RunRecord, adapter: str) -> RunRecord:
        return replace(run, implementation=adapter)

    monkeypatch.setattr(subprocess, "run", pretend)
    releases.main(["vllm", "0.32.0", "0.33.0", "--report", str(tmp_path), "--pytest", "-k LOCK"])
    installed = [tmp_path / f"vllm-{release}" / "installed" for release in ("0.32.0", "0.33.0")]
    targets = [command[-3:] for command, _ in called[::2]]
    assert targets == [
        ["--target", str(installed[0]), "vllm==0.32.0"],
        ["--target", str(installed[1]), "vllm==0.33.0"],
    ], f"expected each release in a folder of its own, got {targets}"
    assert [path for _, path in called[1::2]] == list(map(str, installed)), "each run sees its own release alone"
    options = [command[-2:] for command, _ in called[1::2]]
    assert all(two == ["-k", "LOCK"] for two in options), f"expected each run to get -k LOCK, got {options}"
    written, table = (tmp_path / "releases.md").read_text("utf-8"), releases.table({"0.32.0": OLD, "0.33.0": NEW})
    assert written == table, f"expected the table:\n{table}\ngot:\n{written}"
    page = HtmlPage((tmp_path / "compare.html").read_text("utf-8"))
    named = [row.one("b").text for row in page.part("Implementations").one("tbody").all("tr")]
    assert named == ["Vllm0320", "Vllm0330"], f"compare.html does not name the adapter of each release: {named}"


def test_a_release_without_an_adapter_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        releases.main(["vllm", "0.1.0", "--report", str(tmp_path)])
    assert ended.value.code == 2, f"expected a usage error, got {ended.value.code}"
    told = capsys.readouterr().err
    assert "no adapter drives 0.1.0" in told, f"expected the release to be refused, got {told}"
