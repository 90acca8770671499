"""The run as JUnit XML, for build servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from hicache.testing.report.run import Execution, Outcome, RunRecord
from hicache.testing.report.text import first_line, legible


def render_junit(record: RunRecord) -> str:
    """Render a `testsuites` document. Clauses and configuration are properties of each test case."""
    root = ET.Element("testsuites", {"name": legible(record.implementation), **_totals(record.executions)})
    for suite in dict.fromkeys(execution.suite for execution in record.executions):
        executions = [execution for execution in record.executions if execution.suite == suite]
        element = ET.SubElement(
            root, "testsuite", {"name": legible(suite), "timestamp": legible(record.started), **_totals(executions)}
        )
        _add_properties(element, list(record.environment.items()))
        for execution in executions:
            _add_case(element, execution)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _totals(executions: Sequence[Execution]) -> dict[str, str]:
    outcomes = Counter(execution.outcome for execution in executions)
    return {
        "tests": str(len(executions)),
        "failures": str(outcomes[Outcome.FAILED]),
        "errors": "0",
        "skipped": str(outcomes[Outcome.SKIPPED] + outcomes[Outcome.KNOWN_FAILURE]),
        "time": f"{sum(execution.duration_s for execution in executions):.3f}",
    }


def _add_case(parent: ET.Element, execution: Execution) -> None:
    path, _, parameters = execution.node_id.partition("[")
    place, _, name = path.rpartition("::")
    attributes = {
        "classname": legible(place),
        "name": legible(f"{name}[{parameters}" if parameters else name),
        "time": f"{execution.duration_s:.3f}",
    }
    case = ET.SubElement(parent, "testcase", attributes)
    _add_properties(
        case,
        [
            *(("clause", clause) for clause in execution.clauses),
            ("configuration", execution.configuration),
            ("operations", str(execution.operations)),
        ],
    )
    message = {"message": legible(first_line(execution.reason))}
    if execution.outcome is Outcome.FAILED:
        ET.SubElement(case, "failure", message).text = legible(f"{execution.reason}\n\nreplay: {execution.replay}")
    elif execution.outcome is not Outcome.PASSED:
        ET.SubElement(case, "skipped", {**message, "type": execution.outcome.value}).text = legible(execution.reason)


def _add_properties(parent: ET.Element, properties: Sequence[tuple[str, str]]) -> None:
    element = ET.SubElement(parent, "properties")
    for name, value in properties:
        ET.SubElement(element, "property", {"name": legible(name), "value": legible(value)})
