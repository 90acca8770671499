"""The run of a soak: an engine with a limit, processes whose caches share it, and what is wrong with what they saw."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from hicache.storage.base import StorageBackend
from hicache.storage.registry import open_backend
from hicache.tests.storage.engines.engine import Engine, EngineProcess
from hicache.tests.storage.engines.server import Served
from hicache.tests.storage.engines.soak.worker import SCOPE, Report, Work
from hicache.tests.storage.engines.throughput import line

EVICTION_S = 10
"""How long an engine that evicts in a thread of its own may take until it has."""

PATIENCE_S = 120.0
"""How long a process may take beside the time in which it serves requests."""

HEAD = (
    *("process", "requests", "tokens from device", "from host", "of these from storage"),
    *("bytes checked", "wrong bytes", "longest verb", "storage errors"),
)

_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Soak:
    """A run. `requests`: of each process, None: as many as fit into `duration_s`. `capacity_bytes`: of the engine."""

    engine: Engine
    processes: int
    requests: int | None
    duration_s: float
    capacity_bytes: int

    @property
    def limit_s(self) -> float | None:
        """How long a process may take; None if it may take as long as its requests do."""
        return self.duration_s + PATIENCE_S if self.requests is None else None

    @property
    def may_evict(self) -> bool:
        """Whether the engine has a limit at which it evicts."""
        return "eviction" not in self.engine.lacks


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run. `evictions`: objects, of the engine.

    `reports`: of each process, or the last of its errors if it failed.
    """

    soak: Soak
    reports: Sequence[Report | str]
    evictions: int


def soaked(soak: Soak, say: Callable[[str], None]) -> Outcome:
    """Run it. All processes have ended when it returns or raises."""
    with TemporaryDirectory(prefix="hicache-soak-") as name:
        folder, engine = Path(name), soak.engine
        with (
            closing(EngineProcess(engine, folder, capacity_bytes=soak.capacity_bytes)) as process,
            closing(open_backend(engine.backend, SCOPE, process.options)) as observer,
        ):
            works = [
                Work(engine.backend, process.options, seed, soak.requests, soak.duration_s)
                for seed in range(soak.processes)
            ]
            with _workers(works, folder) as workers:
                say(f"{soak.processes} processes serve requests on {engine.name}")
                until = None if soak.limit_s is None else time.monotonic() + soak.limit_s
                reports = [reported(worker, _log(folder, seed), until) for seed, worker in enumerate(workers)]
            return Outcome(soak, reports, _evictions(observer) if soak.may_evict else 0)


def complaints(outcome: Outcome) -> list[str]:
    """What is wrong with a run, in words."""
    found, storage_tokens = [], 0
    for number, report in enumerate(outcome.reports, start=1):
        if isinstance(report, str):
            found.append(f"process {number} failed: {report}")
            continue
        storage_tokens += report.served.storage_tokens
        if wrong := report.served.wrong_bytes:
            found.append(f"process {number} read {wrong} bytes other than those that were computed")
    if not storage_tokens:
        found.append("no token came from storage")
    if outcome.soak.may_evict and not outcome.evictions:
        found.append(f"{outcome.soak.engine.name} has evicted nothing")
    return found


def table(outcome: Outcome) -> str:
    """A row for each process, and the evictions of the engine."""
    rows = [[str(number), *_cells(report)] for number, report in enumerate(outcome.reports, start=1)]
    lines = [line(cells) for cells in (HEAD, ["---"] * len(HEAD), *rows)]
    evictions = f"{outcome.evictions:,} objects evicted" if outcome.soak.may_evict else "never evicts"
    return "\n".join([*lines, "", f"{outcome.soak.engine.name}: {evictions}"])


def _cells(report: Report | str) -> list[str]:
    if isinstance(report, str):
        return ["failed"] + [""] * (len(HEAD) - 2)
    served = report.served
    tokens = [served.device_tokens, served.host_tokens, served.storage_tokens]
    counts = [served.requests, *tokens, served.checked_bytes, served.wrong_bytes]
    return [*(f"{count:,}" for count in counts), f"{served.longest_s * 1_000:.0f} ms", f"{report.storage_errors:,}"]


@contextmanager
def _workers(works: Sequence[Work], folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Started processes, which are ended with the block."""
    with ExitStack() as started:
        workers = []
        for work in works:
            file = folder / f"work{work.seed}.json"
            file.write_text(json.dumps(asdict(work)), encoding="utf-8")
            command = [sys.executable, "-m", "hicache.tests.storage.engines.soak.worker", str(file)]
            with _log(folder, work.seed).open("wb") as log:
                worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
            workers.append(started.enter_context(worker))
            started.callback(worker.kill)
        yield workers


def _log(folder: Path, seed: int) -> Path:
    return folder / f"work{seed}.log"


def reported(worker: subprocess.Popen[str], log: Path, until: float | None) -> Report | str:
    """What a process saw, once it has ended, or its errors. It is killed at this time of the monotonic clock."""
    try:
        output, _ = worker.communicate(timeout=None if until is None else max(0.0, until - time.monotonic()))
        failed = f"exit code {worker.returncode}" if worker.returncode else ""
    except subprocess.TimeoutExpired:
        worker.kill()
        output, failed = "", "killed, as it has not ended in time"
    if failed:
        return f"{failed}, {log.read_text(encoding='utf-8', errors='replace')[-2000:]}"
    told = json.loads(output)
    return Report(Served(**told["served"]), told["storage_errors"])


def _evictions(observer: StorageBackend) -> int:
    """How much the engine has evicted since the observer was opened."""
    until = time.monotonic() + EVICTION_S
    while not (evicted := observer.stats().removed) and time.monotonic() < until:
        time.sleep(_POLL_S)
    return evicted
