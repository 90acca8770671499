"""The run as one self-contained HTML page: no script, and no font or image from another file."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from hicache.testing.contract import Clause
from hicache.testing.report.figures import sections_figure, slowest_figure
from hicache.testing.report.matrix import Matrix, Status
from hicache.testing.report.overview import Overview
from hicache.testing.report.pages import SYMBOLS, templates
from hicache.testing.report.text import counted

_MAX_SLOW_TESTS = 12


@dataclass(frozen=True, slots=True)
class Family:
    """Columns whose names have the same first part, which lists the components."""

    name: str
    columns: tuple[str, ...]


def render_html(view: Overview, clauses: Mapping[str, Clause], replay_svgs: Sequence[bytes]) -> str:
    """Render the page. `replay_svgs`: the pictures of replays."""
    families = _families(view.matrix)
    timed = [execution for execution in view.record.executions if execution.duration_s > 0]
    template = templates().get_template("report.html")
    return template.render(
        view=view,
        record=view.record,
        matrix=view.matrix,
        clauses=clauses,
        status=Status,
        symbols=SYMBOLS,
        headline=headline(view),
        families=families,
        first_columns=_first_columns(families),
        failure_of=_first_failures(view),
        sections_figure=sections_figure(view.matrix),
        slowest_figure=slowest_figure(timed, _MAX_SLOW_TESTS) if timed else None,
        replay_images=[_data_address(picture) for picture in replay_svgs],
    )


def headline(view: Overview) -> str:
    """The verdict in one sentence."""
    counts = view.matrix.counts
    if view.verdict is Status.FAILED:
        return f"{counted(len(view.failures), 'test')} failed; {counted(counts[Status.FAILED], 'clause')} failed"
    if view.verdict is Status.NOT_EXECUTED:
        return "No test passed, so nothing was verified"
    passed = f"{counted(counts[Status.PASSED], 'clause')} passed"
    if counts[Status.PASSED_IN_PART]:
        passed += f", {counts[Status.PASSED_IN_PART]} in part"
    if counts[Status.KNOWN_FAILURE]:
        return f"{passed}, {counts[Status.KNOWN_FAILURE]} with a known failure; no other test failed"
    return f"{passed}; no test failed"


def _families(matrix: Matrix) -> list[Family]:
    """The columns of the matrix, in order: `full/page16/lru` is column `page16/lru` of family `full`."""
    parts = [configuration.partition("/") for configuration in matrix.configurations]
    return [
        Family(name or "any", tuple(rest for _, _, rest in columns))
        for name, columns in groupby(parts, key=lambda part: part[0])
    ]


def _first_columns(families: list[Family]) -> set[int]:
    """The columns at which a family begins."""
    first, begun = set(), 0
    for family in families:
        first.add(begun)
        begun += len(family.columns)
    return first


def _first_failures(view: Overview) -> Mapping[tuple[str, str], int]:
    """The number, from 1, of the failure on the page that a failed cell links to; 0 for other cells."""
    first: Counter[tuple[str, str]] = Counter()
    for number, failure in reversed(list(enumerate(view.failures, start=1))):
        for clause in failure.clauses:
            first[(clause, failure.configuration)] = number
    return first


def _data_address(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode('ascii')}"
