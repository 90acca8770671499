"""The conformance suite on several releases of an engine, side by side: `python -m hicache.engines.releases`.

Each release is installed without what it depends on, into a folder of its own; the environment of this process has
the rest, which `engines/requirements` names. `tox -e releases -- sglang` makes that environment, and runs this.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hicache.engines.interface import interfaces
from hicache.engines.runs import ROOT
from hicache.testing.contract import CONTRACT
from hicache.testing.report import Outcome, RunRecord, read_run, write_comparison
from hicache.testing.report.comparison import compare

ADAPTERS = {
    engine: {release: path for one in interfaces()[engine] for release, path in one.releases.items()}
    for engine in ("sglang", "vllm")
}
"""The adapter of each release, oldest first, by the name of the engine's package on the index."""

SUITE = ("conformance", "--ignore", "conformance/storage", "-q", "--tb=no", "-p", "no:cacheprovider")
"""The tests of a cache. Those of `conformance/storage` ask storage backends, and no cache."""


@dataclass(frozen=True, slots=True)
class Failures:
    """How often a test failed. `clause`: the one that it most often found broken, or the error that ended it."""

    test: str
    clause: str
    by_release: tuple[int, ...]


def install(engine: str, release: str, folder: Path) -> None:
    """Install one release, without what it depends on, into a folder that has nothing else.

    Raises CalledProcessError if pip cannot.
    """
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
        subprocess.run([*pip, "--target", str(folder), f"{engine}=={release}"], check=True)  # noqa: S603


def run(engine: str, release: str, folder: Path, report: Path, arguments: Sequence[str]) -> RunRecord:
    """Run the suite on the release in a folder, in a process of its own. `arguments`: further ones of pytest.

    Raises ConfigurationError if the run left no record.
    """
    options = ["--hicache-adapter", ADAPTERS[engine][release], "--hicache-report", str(report), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    # The exit code says that tests failed, which the record says as well.
    command = [sys.executable, "-m", "pytest", *SUITE, *options]
    subprocess.run(command, cwd=ROOT, env=environment, check=False)  # noqa: S603
    return read_run(report / "run.json")


def failures(runs: Sequence[RunRecord]) -> list[Failures]:
    """The tests that failed in any run, by clause."""
    counts: dict[str, Counter[int]] = {}
    causes: dict[str, Counter[str]] = {}
    for number, record in enumerate(runs):
        for one in record.executions:
            if one.outcome is Outcome.FAILED:
                test = one.node_id.partition("[")[0]
                counts.setdefault(test, Counter())[number] += 1
                causes.setdefault(test, Counter()).update(one.causes)
    found = [
        Failures(
            test,
            max(sorted(causes[test]), key=causes[test].__getitem__, default=""),
            tuple(by[n] for n in range(len(runs))),
        )
        for test, by in counts.items()
    ]
    return sorted(found, key=lambda one: (one.clause, one.test))


def table(runs: Mapping[str, RunRecord]) -> str:
    """Two tables in Markdown: the counts of each release, and the failures of each test. `runs`: by release."""
    lines = ["| release | executed | passed | failed | skipped |", "|---|---|---|---|---|"]
    for release, record in runs.items():
        counts = Counter(one.outcome for one in record.executions)
        passed, failed, skipped = (counts[name] for name in (Outcome.PASSED, Outcome.FAILED, Outcome.SKIPPED))
        lines.append(f"| {release} | {passed + failed} | {passed} | {failed} | {skipped} |")
    lines += ["", f"| clause | test | {' | '.join(runs)} |", "|---|---|" + "---|" * len(runs)]
    for one in failures(list(runs.values())):
        cells = " | ".join(str(count or "") for count in one.by_release)
        lines.append(f"| {one.clause} | `{one.test}` | {cells} |")
    return "\n".join(lines) + "\n"


def main(words: Sequence[str] | None = None) -> None:
    """Install and run each release, and write `releases.md` and the comparison of the runs, `compare.html`."""
    parser = argparse.ArgumentParser(prog="python -m hicache.engines.releases", description=__doc__)
    parser.add_argument("engine", choices=ADAPTERS)
    parser.add_argument("releases", nargs="*", help="by default all that have an adapter")
    parser.add_argument("--report", type=Path, default=Path("releases"), help="folder for the reports and the releases")
    parser.add_argument("--pytest", default="-n auto", help="further arguments of pytest, such as '-k LOCK'")
    options = parser.parse_args(words)
    adapters = ADAPTERS[options.engine]
    if unknown := set(options.releases) - adapters.keys():
        parser.error(f"no adapter drives {', '.join(sorted(unknown))}, but those of {', '.join(adapters)}")
    runs = {}
    for release in options.releases or adapters:
        place = options.report.resolve() / f"{options.engine}-{release}"
        install(options.engine, release, place / "installed")
        runs[release] = run(options.engine, release, place / "installed", place, options.pytest.split())
    (options.report / "releases.md").write_text(table(runs), encoding="utf-8")
    write_comparison(
        compare({f"{release}/run.json": one for release, one in runs.items()}, CONTRACT),
        options.report / "compare.html",
    )


if __name__ == "__main__":
    main()
