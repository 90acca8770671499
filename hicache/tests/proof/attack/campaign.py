"""Campaign: how many rounds an attack runs, and what it counts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic

SECONDS = "HICACHE_ATTACK_S"
"""The environment variable with the seconds that all campaigns together may take. Without it each runs a few rounds."""

COUNTS = "attack"
"""The name of the property of a test under which its counts are reported."""

LONGEST = "longest verb"
"""The name of the property of a test under which the seconds of its longest verb are reported."""


def shown(counts: Mapping[str, int], longest_s: float) -> str:
    """The counts of an attack in a line. `longest_s`: the seconds of its longest verb, or 0."""
    counted = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    return f"{counted}, longest verb {longest_s:.2f} s" if longest_s else counted


def total(attacks: Sequence[tuple[Mapping[str, int], float]], failed: int) -> list[str]:
    """The sums of all attacks, each given as its counts and its longest verb, and how many found a defect."""
    counts = sum((Counter(counted) for counted, _ in attacks), Counter[str]())
    longest_s = max((longest for _, longest in attacks), default=0.0)
    return [
        f"all {len(attacks)} attacks: {shown(counts, longest_s)}",
        f"attacks that found a wrong byte, a lost page or slot, a crash or a blocked verb: {failed}",
    ]


class Campaign:
    """One attack. `rounds` yields a seed for each round; `counts` is what the terminal shows at the end."""

    def __init__(self) -> None:
        given = os.environ.get(SECONDS)
        self._seconds = None if given is None else float(given)
        self.counts = Counter[str]()
        self.longest_s = 0.0

    def rounds(self, few: int, share: float) -> Iterator[int]:
        """The seeds of the rounds: `few` of them, or as many as fit into this share of the time of all campaigns."""
        end = None if self._seconds is None else monotonic() + share * self._seconds
        seed = 0
        while (seed < few) if end is None else (seed == 0 or monotonic() < end):
            self.counts["rounds"] += 1
            yield seed
            seed += 1

    def timed(self, began: float) -> None:
        """Record how long a verb took that began at this time of `monotonic`."""
        self.longest_s = max(self.longest_s, monotonic() - began)
