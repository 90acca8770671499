"""The run as text: Markdown for a pull request or a build summary, and JUnit XML for build servers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from xml.etree import ElementTree as ET

from hicache.testing.contract import CONTRACT
from hicache.testing.report.coverage import coverage, declared_next, untried
from hicache.testing.report.gpu import untried_on_gpu
from hicache.testing.report.legible import legible
from hicache.testing.report.matrix import Cause, Overview, ReasonGroup, Status
from hicache.testing.report.run import Execution, Outcome, RunRecord, counted, first_line, flaky_counts

_MAX_SHOWN = 3
"""The causes that a headline lists; the page has all."""


def headline(view: Overview) -> str:
    """The verdict in one sentence, and how many tests that are listed as flaky passed."""
    flaky = flaky_counts(view.record.executions)
    return "; ".join([_verdict(view), *([flaky] if flaky else [])])


def _verdict(view: Overview) -> str:
    found = coverage(view)
    counts = found.applying
    if view.verdict is Status.FAILED:
        return ". ".join(_sentences(view.causes))
    if view.verdict is Status.NOT_EXECUTED:
        return "No test passed, so nothing was verified"
    if reason := untried(view):
        return f"Not verified: {reason}"
    passed = f"{found.passed} of {counted(sum(counts.values()), 'clause')} passed"
    if counts[Status.PASSED_IN_PART]:
        passed += f", {counts[Status.PASSED_IN_PART]} of them in part"
    if counts[Status.KNOWN_FAILURE]:
        return f"{passed}, {counts[Status.KNOWN_FAILURE]} with a known failure; no other test failed"
    return f"{passed}; no test failed"


def _sentences(causes: Sequence[Cause]) -> Iterator[str]:
    """The broken clauses and the errors, each with the tests that found it; of all together, the first few."""
    for noun, plural, group in (
        ("clause broken", "clauses broken", [cause for cause in causes if cause.clause is not None]),
        ("error", "errors", [cause for cause in causes if cause.clause is None]),
    ):
        found = [f"{cause.name} in {cause.tests}" for cause in group if cause in causes[:_MAX_SHOWN]]
        more = [f"{len(group) - len(found)} more"] if found and len(group) > len(found) else []
        if group:
            listed = f": {'; '.join([*found, *more])}" if found else ""
            yield f"{len(group)} {noun if len(group) == 1 else plural}{listed}"


def render_markdown(view: Overview) -> str:
    """Render the page: headline, failures, sections, known failures, skipped, not executed, versions, environment."""
    executions = counted(len(view.record.executions), "test")
    figures = f"{executions}, {view.operations:,} operations, {view.test_s:,.1f} s test time"
    return "\n".join(
        [
            f"# {_plain(view.record.implementation)}",
            "",
            f"**{headline(view)}.** {figures}, started {_plain(view.record.started)}.",
            "",
            f"{coverage(view)}.",
            "",
            *([f"{on_gpu}.", ""] if (on_gpu := untried_on_gpu(view.record, CONTRACT)) else []),
            *_failures(view.causes),
            *_sections(view),
            *_groups("Known failures", view.known_failures),
            *_groups("Beyond the contract", view.beyond),
            *_skipped(view),
            *_not_executed(view),
            *_table("Versions", ("of", "version"), view.record.versions.named.items()),
            *_table("Environment", ("name", "value"), view.record.environment.items()),
        ]
    )


def _failures(causes: Iterable[Cause]) -> Iterator[str]:
    for cause in causes:
        smallest, *others = cause.failures
        yield f"## Failed: {_plain(cause.name)}, in {cause.tests}"
        yield ""
        if cause.clause is not None:
            yield f"> {_plain(cause.clause.sentence)}"
            yield ""
        if cause.also:
            yield f"May also explain: {_plain(', '.join(cause.also))}."
            yield ""
        yield f"The smallest example is {_plain(smallest.node_id)}:"
        yield from ("", *_fenced(smallest.reason), "", "To run it again:", "", *_fenced(smallest.replay), "")
        if others:
            yield from ("<details><summary>the other tests</summary>", "")
            yield from (f"- {_plain(one.node_id)}" for one in others)
            yield from ("", "</details>", "")


def _sections(view: Overview) -> Iterator[str]:
    rows = [(section.name, *(str(section.counts[status]) for status in Status)) for section in view.matrix.sections]
    return _table("Clauses", ("section", *(status.value for status in Status)), rows)


def _groups(title: str, groups: Iterable[ReasonGroup]) -> Iterator[str]:
    rows = [(group.reason, " ".join(group.clauses), str(group.executions)) for group in groups]
    return _table(title, ("reason", "clauses", "tests"), rows)


def _skipped(view: Overview) -> Iterator[str]:
    """What to declare next; the reasons alone where nothing is to be declared. The HTML page has all reasons."""
    rows = [(one.name, one.meaning, str(one.clauses), str(one.tests)) for one in declared_next(view)]
    if rows:
        yield from _table("Skipped: what to declare next", ("capability", "what it is", "clauses", "tests"), rows)
        yield from ("All reasons are in report.html.", "")
    else:
        yield from _groups("Skipped", view.skips)


def _not_executed(view: Overview) -> Iterator[str]:
    rows = [(tier, " ".join(clause.id for clause in clauses)) for tier, clauses in view.not_executed.items()]
    return _table("Not executed", ("tier", "clauses"), rows)


def _table(title: str, names: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    lines = [_row(row) for row in rows]
    if lines:
        yield from (f"## {title}", "", _row(names), "|---" * len(names) + "|", *lines, "")


def _row(values: Iterable[str]) -> str:
    return f"| {' | '.join(_plain(value) for value in values)} |"


def _plain(text: str) -> str:
    """The text on one line, with all markup escaped."""
    return re.sub(r"([\\`*_\[\]<>&|~#])", r"\\\1", " ".join(legible(text).split()))


def _fenced(text: str) -> Iterator[str]:
    """The text unchanged, in a fence longer than any in the text."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    yield from (fence, legible(text), fence)


def render_junit(record: RunRecord) -> str:
    """Render a `testsuites` document. Clauses and configuration are properties of each test case."""
    root = ET.Element("testsuites", {"name": legible(record.implementation), **_totals(record.executions)})
    for suite in dict.fromkeys(execution.suite for execution in record.executions):
        executions = [execution for execution in record.executions if execution.suite == suite]
        element = ET.SubElement(
            root, "testsuite", {"name": legible(suite), "timestamp": legible(record.started), **_totals(executions)}
        )
        _add_properties(element, [*record.versions.named.items(), *record.environment.items()])
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
            *(("cause", cause) for cause in execution.causes),
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
