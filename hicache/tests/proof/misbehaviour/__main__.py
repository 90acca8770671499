"""`python -m hicache.tests.proof.misbehaviour [STAGE…]`: run the cells of the stages, and print what each said.

Exits with 1 if one of them has a problem.
"""

from __future__ import annotations

import argparse
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory

from hicache.tests.proof.misbehaviour.adapters import KINDS
from hicache.tests.proof.misbehaviour.cells import STAGES, Cell, Found, cells, run_cell

_JOBS = 4
"""Cells at a time, twice as many as a small machine has cores: a third of their time is spent waiting for a hang."""

_MAX_MESSAGE = 100


def main() -> int:
    """Run the cells that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m hicache.tests.proof.misbehaviour", description=__doc__)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"default: all of {', '.join(STAGES)}")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this kind; may be given several times")
    parser.add_argument("--verb", action="append", help="only this verb; may be given several times")
    parser.add_argument("--sample", type=int, metavar="N", help="only so many cells, drawn by the seed")
    parser.add_argument("--seed", type=int, default=_today(), help="default: the number of the day")
    parser.add_argument("--jobs", type=int, default=_JOBS, metavar="N", help=f"cells at a time; default: {_JOBS}")
    asked = parser.parse_args()
    if unknown := set(asked.stages) - set(STAGES):
        parser.error(f"unknown stage {', '.join(sorted(unknown))}; known: {', '.join(STAGES)}")
    chosen = [
        cell
        for stage in asked.stages or STAGES
        for cell in cells(stage)
        if cell.kind in (asked.kind or KINDS) and cell.verb in (asked.verb or (cell.verb,))
    ]
    if asked.sample is not None:
        chosen = random.Random(asked.seed).sample(chosen, min(asked.sample, len(chosen)))
        sys.stdout.write(f"{len(chosen)} cells, drawn by the seed {asked.seed}\n")
    wrong = 0
    with ThreadPoolExecutor(asked.jobs) as pool:
        for found in pool.map(_found, chosen):
            wrong += bool(found.problems)
            _show(found)
    sys.stdout.write(f"{len(chosen)} cells, {wrong} with a problem\n")
    return 1 if wrong or not chosen else 0


def _found(cell: Cell) -> Found:
    with TemporaryDirectory(prefix="hicache-cell-") as folder:
        return run_cell(cell, Path(folder))


def _today() -> int:
    return datetime.now(timezone.utc).date().toordinal()


def _show(found: Found) -> None:
    verdict = "; ".join(found.problems) or "ok"
    words = (f"{found.cell!s:<50}", f"code {found.code}", f"{found.duration_s:5.1f} s", verdict)
    sys.stdout.write(f"{'  '.join(words)}  {found.message[:_MAX_MESSAGE]}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
