"""The HTML pages of a run and of a comparison: self-contained, with no font, image or script from a file."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hicache.testing.contract import Clause
from hicache.testing.plugin.tags import CLAUSE_ID
from hicache.testing.report.comparison import DIFFERS, WORST_FIRST, Comparison, contract_difference, difference
from hicache.testing.report.coverage import applying_clauses, coverage, declared_next
from hicache.testing.report.failure_text import message_parts, trees
from hicache.testing.report.gpu import untried_on_gpu
from hicache.testing.report.legible import legible
from hicache.testing.report.matrix import SYMBOLS, Cell, Matrix, Overview, Status
from hicache.testing.report.run import NO_PROFILE, Outcome, counted, first_line
from hicache.testing.report.text import headline

NOT_APPLYING = "does not apply"
"""The group of the clauses that do not apply to the cache of a run."""

_MAX_SLOW_TESTS = 12
_TEMPLATES = Path(__file__).parent / "templates"


def render_html(view: Overview, clauses: Mapping[str, Clause], replays: Mapping[str, bytes]) -> str:
    """Render the page of a run. `replays`: the pictures of replays by name; each has a page `NAME.html` beside this."""
    families, found = _families(view.matrix), coverage(view)
    applying = {clause.id for clause in applying_clauses(view)}
    rows = [row for section in view.matrix.sections for row in section.rows]
    group_of = {row.clause.id: row.status.value if row.clause.id in applying else NOT_APPLYING for row in rows}
    shares = {one.name: Counter(group_of[row.clause.id] for row in one.rows) for one in view.matrix.sections}
    statuses = {one.value: one for one in Status}
    timed = sorted((one for one in view.record.executions if one.duration_s > 0), key=lambda one: -one.duration_s)
    template = templates().get_template("report.html")
    return template.render(
        view=view,
        record=view.record,
        matrix=view.matrix,
        clauses=clauses,
        status=Status,
        symbols=SYMBOLS,
        **_script(),
        groups=[
            (name, statuses.get(name), count)
            for name in (*statuses, NOT_APPLYING)
            if (count := sum(share[name] for share in shares.values()))
        ],
        headline=headline(view),
        anchors=group_of.keys(),
        found=found,
        levels=() if view.record.profile == NO_PROFILE else found.levels,
        group_of=group_of,
        shares=shares,
        not_applying=NOT_APPLYING,
        not_executed=_not_executed(view, applying),
        untried=untried_on_gpu(view.record, clauses),
        families=families,
        first_columns=_first_columns(families),
        number_of={
            name: number for number, cause in enumerate(view.causes, start=1) for name in (cause.name, *cause.also)
        },
        longest_section=max((sum(share.values()) for share in shares.values()), default=0),
        undeclared=declared_next(view),
        slowest=timed[:_MAX_SLOW_TESTS],
        replays={name: data_address(picture) for name, picture in replays.items()},
    )


def render_comparison(comparison: Comparison, clauses: Mapping[str, Clause]) -> str:
    """Render the page of a comparison.

    It shows clauses by implementations, the failures of each, and what each did not run and why.
    """
    records = [one.view.record for one in comparison.implementations]
    return (
        templates()
        .get_template("comparison.html")
        .render(
            comparison=comparison,
            clauses=clauses,
            status=Status,
            outcome=Outcome,
            symbols=SYMBOLS,
            **_script(),
            groups=_groups(comparison),
            headline=difference(comparison),
            anchors={one.clause.id for one in comparison.clauses},
            found={one.name: coverage(one.view) for one in comparison.implementations},
            contracts=contract_difference(comparison),
            versions=tuple(dict.fromkeys(name for record in records for name in record.versions.named)),
            numbers={one.name: number for number, one in enumerate(comparison.implementations, start=1)},
            environment=tuple(dict.fromkeys(name for record in records for name in record.environment)),
        )
    )


def _groups(comparison: Comparison) -> list[tuple[str, Status | None, int]]:
    """The groups of clauses that can be filtered: the name, the status if it is one, and the number of clauses."""
    counts = Counter(one.group for one in comparison.clauses)
    groups = [(DIFFERS, None, counts[DIFFERS]), *((one.value, one, counts[one.value]) for one in WORST_FIRST)]
    return [group for group in groups if group[2]]


def _pieces(text: str, anchors: AbstractSet[str]) -> Iterator[tuple[str, str]]:
    """The text in pieces, each with the clause that it names, or with an empty id. `anchors`: clauses with a row."""
    shown, end = legible(text), 0
    for named in CLAUSE_ID.finditer(shown):
        if named[0] in anchors:
            yield shown[end : named.start()], ""
            yield named[0], named[0]
            end = named.end()
    yield shown[end:], ""


def _not_executed(view: Overview, applying: AbstractSet[str]) -> list[tuple[str, str, dict[str, list[Clause]]]]:
    """The clauses without an execution, by tier: those that apply and the others, each with a title and an id."""
    parts = []
    for title, slug, does_apply in (("Not executed", "not-executed", True), ("Do not apply", "not-applying", False)):
        of_tiers = {
            tier: [clause for clause in clauses if (clause.id in applying) is does_apply]
            for tier, clauses in view.not_executed.items()
        }
        parts.append((title, slug, {tier: clauses for tier, clauses in of_tiers.items() if clauses}))
    return parts


def _script() -> dict[str, str]:
    """The script of the filters. A page allows it alone, so that text of an adapter can never run as one."""
    script = (_TEMPLATES / "filters.js").read_text(encoding="utf-8")
    return {
        "script": script,
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
    }


TEMPLATES = Path(__file__).parent / "templates"


def templates(folder: Path = TEMPLATES) -> Environment:
    """The environment of the templates in a folder, and of those here, which it may include.

    It escapes all text and raises for an undefined variable.
    """
    environment = Environment(
        loader=FileSystemLoader([folder, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(legible=legible, first_line=first_line, tally=_tally, counted=counted)
    environment.filters.update(pieces=_pieces, message_parts=message_parts, trees=trees)
    return environment


@dataclass(frozen=True, slots=True)
class Family:
    """Columns whose names have the same first part, which lists the components."""

    name: str
    columns: tuple[str, ...]


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


def data_address(svg: bytes) -> str:
    """A picture as the address of an image in a page."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode('ascii')}"


def _tally(cell: Cell) -> str:
    return ", ".join(f"{cell.results[status]} {status.value}" for status in Status if cell.results.get(status))
