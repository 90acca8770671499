"""`python -m hicache.tests.proof.drawn_pairs [NAME…]`: the quick verdict on each drawn cache, beside the sound one.

Runs `hicache verify` on both, in pairs whose order changes, and prints the headline, the number of causes and the ratio
of the times. Exits with 1 if a clause that a reader expects is not named first, if more than three causes are listed,
or if a run of the sound cache fails. Times are only printed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from hicache.testing.adapter import CacheAdapter
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.contract import CONTRACT
from hicache.testing.report import read_run
from hicache.testing.report.matrix import Overview, overview
from hicache.testing.report.text import headline
from hicache.tests.proof.mutants.drawn import DRAWN, Drawn

MAX_CAUSES = 3

LIMIT_S = 3600.0
"""Until a verification that hangs is killed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one verification ended. `view`: its report."""

    code: int
    view: Overview
    duration_s: float


def verdict(adapter: type[CacheAdapter], folder: Path, options: Sequence[str]) -> Verdict:
    """Run `hicache verify` on a cache."""
    path = f"{adapter.__module__}:{adapter.__qualname__}"
    command = [sys.executable, "-m", "hicache", "verify", "--require", "nothing", "--adapter", path]
    begin = perf_counter()
    with (folder.with_suffix(".log")).open("w") as log:
        done = subprocess.run(
            [*command, "--report", str(folder), *options],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
        )
    duration_s = perf_counter() - begin
    return Verdict(done.returncode, overview(read_run(folder / "run.json"), CONTRACT), duration_s)


def problems_of(drawn: Drawn, found: Verdict) -> list[str]:
    """What is wrong with the verdict on a broken cache."""
    causes = found.view.causes
    named = causes[0].named if causes else ()
    wrong = {
        f"exit code {found.code}": found.code != 1,
        f"expected {' or '.join(drawn.clauses)} first": not set(drawn.clauses) & set(named),
        f"more than {MAX_CAUSES} causes": len(causes) > MAX_CAUSES,
    }
    return [problem for problem, is_wrong in wrong.items() if is_wrong]


def main() -> int:
    """Verify the drawn caches that the command line names, or all."""
    names = {drawn.adapter.__name__: drawn for drawn in DRAWN}
    parser = argparse.ArgumentParser(prog="python -m hicache.tests.proof.drawn_pairs", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--only", action="append", default=[], help="stage to run, as of hicache verify")
    asked = parser.parse_args()
    if unknown := set(asked.names) - names.keys():
        parser.error(f"unknown {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    options = [word for stage in asked.only for word in ("--only", stage)]
    wrong = 0
    for number, name in enumerate(asked.names or names):
        wrong += not _pair(names[name], options, broken_first=bool(number % 2))
    return 1 if wrong else 0


def _pair(drawn: Drawn, options: Sequence[str], *, broken_first: bool) -> bool:
    """Verify one broken cache and the sound one, and print the result. Returns whether both are as expected."""
    adapters: list[type[CacheAdapter]] = [ReferenceAdapter, drawn.adapter]
    found: dict[type[CacheAdapter], Verdict] = {}
    with TemporaryDirectory(prefix="hicache-drawn-") as folder:
        for adapter in reversed(adapters) if broken_first else adapters:
            found[adapter] = verdict(adapter, Path(folder) / adapter.__name__, options)
    sound, broken = (found[adapter] for adapter in adapters)
    problems = problems_of(drawn, broken)
    if sound.code:
        failed = [f"{one.node_id}: {one.reason}" for one in sound.view.failures]
        problems.append(f"the sound cache: exit code {sound.code}: {headline(sound.view)}: {'; '.join(failed)}")
    ratio = broken.duration_s / sound.duration_s
    figures = (
        f"{len(broken.view.causes)} causes",
        f"{broken.duration_s:.0f} s, {ratio:.2f} of the sound cache's {sound.duration_s:.0f} s",
        "; ".join(problems) or "ok",
    )
    sys.stdout.write(f"{drawn.source} {drawn.adapter.__name__}: {headline(broken.view)}\n  {', '.join(figures)}\n")
    sys.stdout.flush()
    return not problems


if __name__ == "__main__":
    sys.exit(main())
