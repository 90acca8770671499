"""HitComparison: the requests of a trace that hit more in one cache than in another."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hicache.errors import ConfigurationError

ALIKE = ("trace", "footprint_tokens", "capacity_tokens", "running")
"""The fields in which two replays must agree, so that all differences come from the caches."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One request, counted from 0, and its hits in tokens by tier in each cache."""

    request: int
    hits: tuple[Mapping[str, int], Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class HitComparison:
    """Two replays of one trace. `adapters`: of both caches. `differences`: requests with different hits, in order."""

    adapters: tuple[str, str]
    requests: int
    hit_tokens: tuple[int, int]
    differences: Sequence[Difference]


def compare_hits(first: Path, second: Path) -> HitComparison:
    """Compare two `replay.json`. Raises ConfigurationError naming a file that is not one, or is of another replay."""
    left, right = _read(first), _read(second)
    for name in ALIKE:
        if left[name] != right[name]:
            raise ConfigurationError(f"{second}: {name} is {right[name]!r}, but {left[name]!r} in {first}")
    hits = [_by_request(left), _by_request(right)]
    if len(hits[0]) != len(hits[1]):
        raise ConfigurationError(f"{second}: {len(hits[1])} requests were replayed, but {len(hits[0])} in {first}")
    pairs = list(zip(*hits, strict=True))
    return HitComparison(
        adapters=(left["adapter"], right["adapter"]),
        requests=len(pairs),
        hit_tokens=(_total(hits[0]), _total(hits[1])),
        differences=[Difference(number, pair) for number, pair in enumerate(pairs) if pair[0] != pair[1]],
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        table = json.loads(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: cannot be read as a replay: {error}") from error
    missing = [name for name in (*ALIKE, "adapter", "hit_lengths") if not isinstance(table, dict) or name not in table]
    if missing:
        raise ConfigurationError(f"{path}: not a replay of this version: {', '.join(missing)} missing")
    return dict(table)


def _by_request(table: Mapping[str, Any]) -> list[Mapping[str, int]]:
    """The hits of each request, by tier."""
    lengths: Mapping[str, Sequence[int]] = table["hit_lengths"]
    return [dict(zip(lengths, row, strict=True)) for row in zip(*lengths.values(), strict=True)]


def _total(hits: Sequence[Mapping[str, int]]) -> int:
    return sum(sum(one.values()) for one in hits)
