"""Charts of a run as SVG elements that use the colour variables of the page, in the light and the dark scheme."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hicache.testing.report.legible import legible
from hicache.testing.report.matrix import Matrix, Status
from hicache.testing.report.run import Execution

# Each of these colours is replaced by a variable of the style sheet.
_INK, _FAINT, _ACCENT, _ON_STATUS = "#010101", "#020202", "#030303", "#040302"
_STATUS: Mapping[Status, str] = {status: f"#04040{place}" for place, status in enumerate(Status)}
_VARIABLES: Mapping[str, str] = {
    _INK: "--ink",
    _FAINT: "--faint",
    _ACCENT: "--accent",
    _ON_STATUS: "--on-status",
    **{colour: f"--{status.value.replace(' ', '-')}" for status, colour in _STATUS.items()},
}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "hicache",
    "font.size": 8,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _FAINT,
    "xtick.color": _FAINT,
    "xtick.labelcolor": _INK,
    "ytick.color": _FAINT,
    "ytick.labelcolor": _INK,
}
_WIDTH_IN = 5.0
_BAR_IN = 0.23
_MARGIN_IN = 0.6


def sections_figure(matrix: Matrix) -> str:
    """The number of clauses of each section by status, as stacked bars."""
    with mpl.rc_context(_STYLE):
        figure, axes = _horizontal_bars([section.name for section in matrix.sections])
        left = [0] * len(matrix.sections)
        for status, colour in _STATUS.items():
            counts = [section.counts[status] for section in matrix.sections]
            bars = axes.barh(range(len(counts)), counts, left=left, color=colour, height=0.78)
            numbers = [str(count) if count else "" for count in counts]
            axes.bar_label(bars, numbers, label_type="center", fontsize=6.5, color=_ON_STATUS)
            left = [before + count for before, count in zip(left, counts, strict=True)]
        axes.set_xlabel("clauses")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return _svg(figure, "sections", "Number of clauses by section and status")


def slowest_figure(executions: Sequence[Execution], limit: int) -> str:
    """The `limit` slowest executions, the slowest on top."""
    slowest = sorted(executions, key=lambda execution: -execution.duration_s)[:limit]
    with mpl.rc_context(_STYLE):
        figure, axes = _horizontal_bars([_label(execution) for execution in slowest])
        bars = axes.barh(range(len(slowest)), [execution.duration_s for execution in slowest], color=_ACCENT)
        axes.bar_label(bars, fmt="%.2f s", padding=3, fontsize=7)
        axes.margins(x=0.15)
        axes.set_xlabel("seconds")
        return _svg(figure, "slowest", "Slowest tests")


def _horizontal_bars(labels: Sequence[str]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH_IN, _MARGIN_IN + _BAR_IN * len(labels)), layout="constrained")
    axes = figure.add_subplot()
    # The name of a test may contain a dollar, which starts a formula here, or letters that the font lacks.
    plain = [legible(label).encode("ascii", "backslashreplace").decode() for label in labels]
    axes.set_yticks(range(len(plain)), plain, parse_math=False)
    axes.invert_yaxis()
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    return figure, axes


def _label(execution: Execution, max_length: int = 44) -> str:
    name = execution.node_id.partition("[")[0].rpartition("::")[2]
    label = f"{name} {execution.configuration}".strip()
    return label if len(label) <= max_length else label[: max_length - 1] + "~"


def _svg(figure: Figure, name: str, title: str) -> str:
    """The figure as an element of a page. Its ids begin with `name`, and its colours are variables of the page."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Type": None})
    svg = drawn.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"#0[1-4]0[1-4]0[0-6]", lambda found: f"var({_VARIABLES[found[0]]})", svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)
