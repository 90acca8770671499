"""`python -m hicache.tests.proof.divergence`: inject divergences, and print who names them.

Exits with 1 if one of them is not named by the error of every other rank, with its call. Of two ranks in different
calls the right one is unknown: there both are named.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from hicache.tests.proof.divergence.injected import KINDS, Case, draw
from hicache.tests.proof.divergence.opinions import OPINIONS, Agreement, Opinion

AT_ONCE = 3
"""Cases that run side by side: most of the time their ranks wait for one that does not come."""


def opinions_of(case: Case) -> dict[str, Opinion]:
    """The opinion of each on a case, each in a run of its own."""
    found = {}
    for name, opinion in OPINIONS.items():
        with TemporaryDirectory(prefix="hicache-divergence-") as folder:
            try:
                found[name] = opinion(case, Path(folder))
            except AssertionError as error:  # a rank hangs
                found[name] = Opinion(frozenset(), None, str(error))
    return found


def main() -> int:
    """Run as many cases as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m hicache.tests.proof.divergence", description=__doc__)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    asked = parser.parse_args()
    cases = [draw(seed) for seed in range(asked.first_seed, asked.first_seed + asked.cases)]
    rows = list[tuple[Case, dict[str, Agreement]]]()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for case, found in zip(cases, threads.map(opinions_of, cases), strict=True):
            rows.append((case, {name: opinion.of(case) for name, opinion in found.items()}))
            _show(case, found)
    sys.stdout.write(table(rows))
    unnamed = [case for case, found in rows if found["hicache"] not in (Agreement.ALL, Agreement.BOTH)]
    sys.stdout.write(f"{len(cases)} divergences, {len(unnamed)} not named by hicache\n")
    return 1 if unnamed or not cases else 0


def _show(case: Case, found: dict[str, Opinion]) -> None:
    said = "; ".join(f"{name}: {opinion.of(case).value}" for name, opinion in found.items())
    sys.stdout.write(f"{case!s:<75} {said}\n")
    for name, opinion in found.items():
        if opinion.of(case) not in (Agreement.ALL, Agreement.BOTH):
            sys.stdout.write(f"    {name}: {opinion.words[:200]}\n")
    sys.stdout.flush()


def table(rows: list[tuple[Case, dict[str, Agreement]]]) -> str:
    """By kind how often each names the rank and the call, and in all what each names."""
    lines = ["| the rank | cases |" + "".join(f" {name} |" for name in OPINIONS), "|---|---|" + "---|" * len(OPINIONS)]
    for kind in KINDS:
        of_kind = [found for case, found in rows if case.kind == kind]
        right = [sum(found[name] in (Agreement.ALL, Agreement.BOTH) for found in of_kind) for name in OPINIONS]
        lines.append(f"| {kind} | {len(of_kind)} |" + "".join(f" {count} |" for count in right))
    for agreement in Agreement:
        counts = Counter(name for _, found in rows for name, one in found.items() if one is agreement)
        lines.append(
            f"| in all: {agreement.value} | {len(rows)} |" + "".join(f" {counts[name]} |" for name in OPINIONS)
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
