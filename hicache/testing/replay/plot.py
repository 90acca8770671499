"""A replay over the time of its trace, as SVG: hit rate, occupancy, evictions."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hicache.testing.replay.outcome import ReplayOutcome
from hicache.types import Component

_FAINT, _STRONG, _LIMIT, _SECOND = "#9ecae1", "#1f5f99", "#2a7f3f", "#b3622d"
_MS_PER_MINUTE = 60_000
_MILLION = 1e6


def draw_replay(outcome: ReplayOutcome, path: Path) -> None:
    """Draw three panels over the minutes of the trace into an SVG file, the same bytes for the same outcome."""
    figure = Figure(figsize=(9, 7.5), layout="constrained")
    rates, occupancy, evictions = figure.subplots(3, 1, sharex=True, height_ratios=(2, 1, 1))
    figure.suptitle(f"{outcome.trace}: {outcome.configuration}, {outcome.requests} requests")
    minutes = [window.arrival_ms / _MS_PER_MINUTE for window in outcome.timeline]
    _draw_rates(rates, minutes, outcome)
    _draw_occupancy(occupancy, minutes, outcome)
    _draw_evictions(evictions, minutes, outcome)
    evictions.set_xlabel("minutes of the trace")
    for axes in (rates, occupancy, evictions):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    with mpl.rc_context({"svg.hashsalt": "hicache"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def _draw_rates(axes: Axes, minutes: list[float], outcome: ReplayOutcome) -> None:
    inputs = [window.input_tokens for window in outcome.timeline]
    hits = [window.hit_tokens for window in outcome.timeline]
    totals = zip(accumulate(hits), accumulate(inputs), strict=True)
    axes.plot(minutes, _percent(zip(hits, inputs, strict=True)), color=_FAINT, linewidth=0.8, label="in a window")
    axes.plot(minutes, _percent(totals), color=_STRONG, label=f"so far, {outcome.hit_rate:.2%} in the end")
    axes.axhline(100 * outcome.optimal_hit_rate, color=_LIMIT, linestyle="--", label="optimum, whole trace")
    axes.axhline(100 * outcome.lru_hit_rate, color=_SECOND, linestyle=":", label="LRU by blocks, whole trace")
    axes.set_ylabel("hit rate, %")
    axes.set_ylim(0, 100)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False)


def _draw_occupancy(axes: Axes, minutes: list[float], outcome: ReplayOutcome) -> None:
    axes.plot(minutes, _millions([window.occupied_tokens for window in outcome.timeline]), color=_STRONG)
    capacity = outcome.capacity_tokens[Component.FULL] / _MILLION
    axes.axhline(capacity, color=_LIMIT, linestyle="--", label=f"capacity, {capacity:.4g} million tokens")
    axes.set_ylabel("in the tree,\nmillion tokens")
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower right", frameon=False)


def _draw_evictions(axes: Axes, minutes: list[float], outcome: ReplayOutcome) -> None:
    axes.plot(minutes, _millions([window.evicted_tokens for window in outcome.timeline]), color=_STRONG)
    axes.set_ylabel("evicted so far,\nmillion tokens")
    axes.set_ylim(bottom=0)


def _percent(parts: Iterable[tuple[int, int]]) -> list[float]:
    return [100 * hit / tokens if tokens else 0.0 for hit, tokens in parts]


def _millions(tokens: list[int | None]) -> list[float]:
    """A gap where the adapter could not tell."""
    return [float("nan") if count is None else count / _MILLION for count in tokens]
