"""The run as Markdown, for a pull request or a build summary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from hicache.testing.contract import Clause
from hicache.testing.report.html import headline
from hicache.testing.report.matrix import Status
from hicache.testing.report.overview import Group, Overview
from hicache.testing.report.run import Execution
from hicache.testing.report.text import counted, legible


def render_markdown(view: Overview, clauses: Mapping[str, Clause]) -> str:
    """Render the page: headline, failures, sections, known failures, skipped and not executed, environment."""
    executions = counted(len(view.record.executions), "test")
    figures = f"{executions}, {view.operations:,} operations, {view.test_s:,.1f} s test time"
    return "\n".join(
        [
            f"# {_plain(view.record.implementation)}",
            "",
            f"**{headline(view)}.** {figures}, started {_plain(view.record.started)}.",
            "",
            *_failures(view.failures, clauses),
            *_sections(view),
            *_groups("Known failures", view.known_failures),
            *_groups("Skipped", view.skips),
            *_not_executed(view),
            *_table("Environment", ("name", "value"), view.record.environment.items()),
        ]
    )


def _failures(failures: Iterable[Execution], clauses: Mapping[str, Clause]) -> Iterator[str]:
    for failure in failures:
        yield f"## Failed: {_plain(failure.node_id)}"
        yield ""
        yield from (f"- **{clause}** {_plain(clauses[clause].sentence)}" for clause in failure.clauses)
        yield from ("", *_fenced(failure.reason), "", "To run it again:", "", *_fenced(failure.replay), "")


def _sections(view: Overview) -> Iterator[str]:
    rows = [(section.name, *(str(section.counts[status]) for status in Status)) for section in view.matrix.sections]
    return _table("Clauses", ("section", *(status.value for status in Status)), rows)


def _groups(title: str, groups: Iterable[Group]) -> Iterator[str]:
    rows = [(group.reason, " ".join(group.clauses), str(group.executions)) for group in groups]
    return _table(title, ("reason", "clauses", "tests"), rows)


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
