"""run.json: what is written is what is read, and a file that is not ours is refused with the field's name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hicache.errors import ConfigurationError
from hicache.testing.report import Outcome, read_run, write_run
from hicache.tests.kit.run_records import HOSTILE, execution, record

Change = Callable[[dict[str, Any]], object]


def test_a_record_reads_as_it_was_written(tmp_path: Path) -> None:
    written = record(
        execution("KEY-1"),
        execution("KEY-1", "KEY-2", outcome=Outcome.FAILED, reason=HOSTILE, name="test_two"),
        execution(outcome=Outcome.SKIPPED, configuration="", name="test_three"),
    )
    write_run(written, tmp_path / "run.json")
    assert read_run(tmp_path / "run.json") == written, "run.json does not hold the record that was written"


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("schema_version is 2", lambda table: table.update(schema_version=2)),
        ("schema_version is True", lambda table: table.update(schema_version=True)),
        ("implementation is missing", lambda table: table.pop("implementation")),
        ("started is 3 (int)", lambda table: table.update(started=3)),
        ("environment is [] (list)", lambda table: table.update(environment=[])),
        ("environment.python is 3 (int)", lambda table: table["environment"].update(python=3)),
        ("capabilities[1] is None", lambda table: table.update(capabilities=["SWA", None])),
        ("capabilities is 'SWA'", lambda table: table.update(capabilities="SWA")),
        ("executions is {} (dict)", lambda table: table.update(executions={})),
        ("executions[1] is 'x'", lambda table: table["executions"].append("x")),
        ("more is unknown", lambda table: table.update(more=1)),
        ("executions[0].replay is missing", lambda table: table["executions"][0].pop("replay")),
        ("executions[0].outcome is 'fine'", lambda table: table["executions"][0].update(outcome="fine")),
        ("executions[0].duration_s is nan", lambda table: table["executions"][0].update(duration_s=float("nan"))),
        ("executions[0].duration_s is '1'", lambda table: table["executions"][0].update(duration_s="1")),
        ("executions[0].operations is -1", lambda table: table["executions"][0].update(operations=-1)),
        ("executions[0].operations is 1.0", lambda table: table["executions"][0].update(operations=1.0)),
        ("executions[0].tier is unknown", lambda table: table["executions"][0].update(tier="host")),
    ],
)
def test_a_wrong_field_is_named_with_the_file(tmp_path: Path, field: str, change: Change) -> None:
    path = tmp_path / "run.json"
    write_run(record(execution("KEY-1")), path)
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))
    with pytest.raises(ConfigurationError) as raised:
        read_run(path)
    assert str(raised.value).startswith(f"{path}: {field}"), f"expected {path}: {field}, got {raised.value}"


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_a_file_that_is_no_table_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"run\.json"):
        read_run(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"run\.json"):
        read_run(tmp_path / "run.json")
