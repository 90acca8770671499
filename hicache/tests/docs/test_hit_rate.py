"""The page about low hit rates: its program prints what it says, and each metric that it names exists."""

from __future__ import annotations

import re
import sys
from subprocess import run

from hicache.prometheus import METRICS
from hicache.tests.docs.pages import ROOT, blocks_of_pages

PAGE = "docs/guide/hit_rate.md"


def test_the_program_prints_what_the_page_says() -> None:
    program, printed = (block for block in blocks_of_pages() if block.page == PAGE)
    command = [sys.executable, "-W", "error", "-c", "\n".join(program.lines)]
    done = run(command, check=False, capture_output=True, text=True)
    expected = [*printed.lines]
    assert done.stdout.splitlines() == expected, f"{program.place}: expected {expected}, got {done.stdout}{done.stderr}"


def test_each_metric_of_the_page_exists() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    known = {one.name + ("_total" if one.kind == "counter" else "") for one in METRICS}
    named = set(re.findall(r"hicache_\w+", text))
    assert named, "the page names metrics"
    assert named <= known, f"{PAGE}: no cache has {sorted(named - known)}"
