"""A plot of a replay over the time of its trace, as SVG: hit rate, occupancy, evictions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hicache.testing.replay.outcome import ReplayOutcome
from hicache.types import Component, Tier

_FAINT = {Tier.DEVICE.value: "#c6dbef", Tier.HOST.value: "#fdd0a2", Tier.STORAGE.value: "#dadaeb"}
_STRONG = {Tier.DEVICE.value: "#1f5f99", Tier.HOST.value: "#c2571a", Tier.STORAGE.value: "#6a51a3"}
_LABEL = {
    Tier.DEVICE.value: "on the device",
    Tier.HOST.value: "and on the host",
    Tier.STORAGE.value: "and in storage",
}
_REFUSED, _LOST = ("#f4a6a6", "#e8c1e0"), "#e6e6e6"
_LIMIT, _SECOND = "#2a7f3f", "#6b6b6b"
_MS_PER_MINUTE = 60_000
_MILLION = 1e6


def draw_replay(outcome: ReplayOutcome, path: Path) -> None:
    """Draw three panels over the minutes of the trace to an SVG file; equal outcomes give equal files."""
    figure = Figure(figsize=(9, 7.5), layout="constrained")
    rates, occupancy, evictions = figure.subplots(3, 1, sharex=True, height_ratios=(2, 1, 1))
    figure.suptitle(f"{outcome.trace}, {outcome.requests} requests\n{outcome.configuration}", fontsize="medium")
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
    """The tiers stacked: areas are rates of single windows of the trace, lines are rates of all requests so far."""
    inputs = [window.input_tokens for window in outcome.timeline]
    hits = [0] * len(inputs)
    below = np.zeros(len(inputs))
    so_far = list(accumulate(inputs))
    for tier, rate in outcome.hit_rates.items():
        hits = [hit + window.hit_tokens[tier] for hit, window in zip(hits, outcome.timeline, strict=True)]
        top = np.array(_percent(zip(hits, inputs, strict=True)))
        axes.fill_between(minutes, below, top, color=_FAINT[tier], linewidth=0)
        totals = zip(accumulate(hits), so_far, strict=True)
        axes.plot(minutes, _percent(totals), color=_STRONG[tier], label=f"{_LABEL[tier]} {rate:.2%}")
        below = top
    for name, color, tokens in _misses(outcome):
        top = below + np.array(_percent(zip(tokens, inputs, strict=True)))
        if any(tokens):
            label = f"{name} {sum(tokens) / outcome.input_tokens:.2%}"
            axes.fill_between(minutes, below, top, color=color, linewidth=0, label=label)
        below = top
    best, lru, above = outcome.optimal_hit_rate, outcome.lru_hit_rate, " above storage" if outcome.storage else ""
    axes.axhline(100 * best, color=_LIMIT, linestyle="--", label=f"offline optimum{above} {best:.2%}")
    axes.axhline(100 * lru, color=_SECOND, linestyle=":", label=f"LRU by blocks{above} {lru:.2%}")
    _draw_storage(axes, outcome)
    axes.set_ylabel("hit rate, %\n(areas: per window, lines: so far)")
    axes.set_ylim(0, 100)
    axes.legend(
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=3 if outcome.storage else 4,
        frameon=False,
        fontsize="small",
    )


def _misses(outcome: ReplayOutcome) -> Iterator[tuple[str, str, list[int]]]:
    """What was refused, by component, and what was evicted before reuse: name, color, and tokens by window."""
    for name, color in zip(outcome.refused_tokens or {}, _REFUSED, strict=False):
        yield f"refused by {name}", color, [window.refused_tokens.get(name, 0) for window in outcome.timeline]
    yield outcome.lost_name, _LOST, [window.lost_tokens for window in outcome.timeline]


def _draw_storage(axes: Axes, outcome: ReplayOutcome) -> None:
    """The hit rate without any eviction, and the time of the restart."""
    if (storage := outcome.storage) is None:
        return
    rate = storage.unbounded_hit_rate
    axes.axhline(100 * rate, color=_LIMIT, linestyle="-", label=f"nothing lost {rate:.2%}")
    if storage.restarted and storage.middle_ms is not None:
        axes.axvline(storage.middle_ms / _MS_PER_MINUTE, color=_SECOND, label="restart")


def _draw_occupancy(axes: Axes, minutes: list[float], outcome: ReplayOutcome) -> None:
    capacities = {Tier.DEVICE.value: outcome.capacity_tokens}
    if outcome.host is not None:
        capacities[Tier.HOST.value] = outcome.host.capacity_tokens
    for tier, capacity_tokens in capacities.items():
        held = [window.occupied_tokens.get(tier) for window in outcome.timeline]
        axes.plot(minutes, _millions(held), color=_STRONG[tier])
        capacity = capacity_tokens[Component.FULL] / _MILLION
        label = f"{tier}, of {capacity:.4g} million tokens"
        axes.axhline(capacity, color=_STRONG[tier], linestyle="--", label=label)
    axes.set_ylabel("in the tree,\nmillion tokens")
    axes.set_ylim(bottom=0)
    axes.legend(loc="center right", frameon=False, fontsize="small")


def _draw_evictions(axes: Axes, minutes: list[float], outcome: ReplayOutcome) -> None:
    evicted = _millions([window.evicted_tokens for window in outcome.timeline])
    axes.plot(minutes, evicted, color=_STRONG[Tier.DEVICE])
    axes.set_ylabel("evicted from the\ndevice so far,\nmillion tokens")
    axes.set_ylim(bottom=0)


def _percent(parts: Iterable[tuple[int, int]]) -> list[float]:
    return [100 * hit / tokens if tokens else 0.0 for hit, tokens in parts]


def _millions(tokens: list[int | None]) -> list[float]:
    """Values in millions, with a gap where a value is missing."""
    return [float("nan") if count is None else count / _MILLION for count in tokens]
