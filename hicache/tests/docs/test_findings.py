"""The findings: each entry has its fields and steps, and the table of all is made of them."""

from __future__ import annotations

import pytest

from hicache.testing.contract import CONTRACT
from hicache.tests.inventory.findings import NAME, PAGE, Finding, entries, findings, findings_table
from hicache.tests.inventory.reference import between

ENTRY = """
## A cache

### A defect (1.2)

- Clause: LOCK-5, POOL-1
- Release: 1.2
- Upstream: none named

1. Do it.

### By design

Nothing.
"""


@pytest.mark.parametrize("finding", findings(), ids=lambda one: f"{one.engine}-{one.anchor}")
def test_an_entry_names_clauses_of_the_contract_and_has_steps(finding: Finding) -> None:
    unknown = [clause for clause in finding.clauses if clause != "none" and clause not in CONTRACT]
    assert not unknown, f"{finding.title}: the contract has no {unknown}"
    assert finding.steps, f"{finding.title}: expected numbered steps"


def test_the_table_has_a_row_for_each_entry() -> None:
    shown = between(PAGE.read_text(encoding="utf-8"), NAME)
    assert shown == findings_table(), "run python -m hicache.tests.inventory.findings"


def test_the_fields_of_an_entry_are_read() -> None:
    expected = Finding("sglang", "A cache", "A defect (1.2)", ("LOCK-5", "POOL-1"), ("1.2",), "none named", steps=True)
    assert list(entries("sglang", ENTRY)) == [expected], f"got {list(entries('sglang', ENTRY))}"


@pytest.mark.parametrize("field", ["Clause", "Release", "Upstream"])
def test_an_entry_without_a_field_is_refused(field: str) -> None:
    lacking = "\n".join(line for line in ENTRY.splitlines() if f"- {field}:" not in line)
    with pytest.raises(ValueError, match=r"A defect .*expected the fields"):
        list(entries("sglang", lacking))
