"""The page of a trial: the passes, each with its meaning, their scores, tokens by tier, times and divergences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from hicache.testing.report.pages import templates

from .comparison import ComparedPass, untested_tasks

MEANINGS: Mapping[str, str] = {
    r"first": "Asks every prompt with a cold cache. All other passes are compared with this one.",
    r"one forward": "Computes each prompt and its answer at once, without a cache and without chunks.",
    r"device": "Asks again; the prefixes of the prompts are on the device.",
    r"host": "Asks again after everything has left the device; the prefixes are loaded back from the host.",
    r"storage": "A new process asks, whose device and host are empty; the prefixes are prefetched from storage.",
    r"faults": "Asks again while storage fails and loses pages. What is lost is computed again.",
    r"after faults": "Asks again when storage works again; the prefixes are prefetched.",
    r"\d+ ranks: .*": "The same pass on several ranks, each of which runs the whole model. All must answer the same.",
    r".*, without .*": "A control: one component loses its data. The answers must change: else the check sees nothing.",
}
"""What a pass does, by its name."""


def meaning(name: str) -> str:
    """What the pass of this name does."""
    return next(told for pattern, told in MEANINGS.items() if re.fullmatch(pattern, name))


def render_page(title: str, settings: Mapping[str, str], passes: Sequence[ComparedPass]) -> str:
    """The report, one self-contained HTML page: scores, hits by tier, waiting times, and the divergence of tokens."""
    template = templates(Path(__file__).parent / "templates").get_template("accuracy.html")
    meanings = {one.name: meaning(one.name) for one in passes}
    untested = untested_tasks(passes)
    return template.render(title=title, settings=settings, passes=passes, meanings=meanings, untested=untested)
