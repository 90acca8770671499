"""The picture of a comparison of policies of states, as SVG: a panel for each trace, a line for each policy."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hicache.config import Recency
from hicache.testing.replay.states import CAPACITIES, KEPT, StateComparison

_COLORS = dict(zip(KEPT, ("#1f5f99", "#c2571a", "#2a7f3f"), strict=True))
_STYLES = {Recency.PATH: ":", Recency.USED: "-", Recency.COVERAGE: "--"}


def draw_states(comparison: StateComparison, path: Path) -> None:
    """Draw hit rates over capacity to an SVG file; equal comparisons give equal files."""
    traces = list(comparison.requests)
    figure = Figure(figsize=(3.2 * len(traces) + 0.4, 4.4), layout="constrained")
    panels = figure.subplots(1, len(traces), squeeze=False)[0]
    for axes, trace in zip(panels, traces, strict=True):
        _draw(axes, comparison, trace)
    panels[0].set_ylabel("hit rate, %")
    panels[len(panels) // 2].set_xlabel("states on the device, as a share of the requests", fontsize="small")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize="small")
    with mpl.rc_context({"svg.hashsalt": "hicache", "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def _draw(axes: Axes, comparison: StateComparison, trace: str) -> None:
    places = range(len(CAPACITIES))
    for policy in comparison.policies:
        rates = [100 * one.hit_rate for one in comparison.of(policy) if one.trace == trace]
        color, style = _COLORS[policy.kept], _STYLES[policy.recency]
        axes.plot(places, rates, color=color, linestyle=style, marker=".", label=policy.name)
    most = [100 * one.unlimited_hit_rate for one in comparison.of(comparison.policies[0]) if one.trace == trace]
    axes.plot(places, most, color="#6b6b6b", linewidth=0.8, label="a state after each page, nothing lost")
    axes.set_xticks(places, CAPACITIES)
    axes.set_ylim(bottom=0)
    axes.set_title(f"{trace}\n{comparison.requests[trace]:,} requests", fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
