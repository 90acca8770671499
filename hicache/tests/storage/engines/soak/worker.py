"""One process of a soak: a cache over the engine that serves drawn prompts, and says at its end what it saw.

`python -m hicache.tests.storage.engines.soak.worker FILE`: the file has the fields of Work.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import hicache
from hicache.config import ExecutorKind
from hicache.storage.base import StorageBackend, StorageStats
from hicache.storage.registry import open_backend
from hicache.testing.driving.prompts import page_tokens
from hicache.tests.storage.engines.server import MODEL, PAGE, Served, Server
from hicache.types import StopPolicy, Tokens

SCOPE = "soak-1"

PROMPT_PAGES, BRANCHES = 8, 4
"""The longest prompt, and how many pages may follow a page: processes share the first pages, and few share the last."""

DEVICE_PAGES, HOST_PAGES = 16, 64

REQUESTS_OF_LIFE = 32
"""After so many requests device and host are forgotten, as if the process were started again."""

ANSWER_S = 90
"""More than a call of any engine takes: a cache that has waited so long goes on without its storage."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one process does. `seed`: of its prompts. `requests`: how many, None: as many as fit into `duration_s`."""

    backend: str
    options: Mapping[str, Any] = field(repr=False)
    seed: int
    requests: int | None
    duration_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """What one process saw. `storage_errors`: calls of the backend that raised, and pages that failed in an answer."""

    served: Served
    storage_errors: int


def done(work: Work) -> Report:
    """Serve, until all that is under way has ended."""
    with closing(open_backend(work.backend, SCOPE, work.options)) as backend, _opened(backend) as cache:
        server = Server(cache)
        for number, prompt in enumerate(_prompts(work, cache.config)):
            if number and number % REQUESTS_OF_LIFE == 0:
                cache.drain()
                cache.reset()
            server.serve(prompt)
        cache.drain()
        return Report(server.served, cache.counters.storage_errors + _failed(backend.stats()))


def _prompts(work: Work, config: hicache.CacheConfig) -> Iterator[Tokens]:
    rng, until, served = random.Random(work.seed), time.monotonic() + work.duration_s, 0
    while served < work.requests if work.requests is not None else time.monotonic() < until:
        pages = [rng.randrange(BRANCHES) for _ in range(rng.randint(1, PROMPT_PAGES))]
        yield np.array([*page_tokens(pages, config), 0], dtype=np.int32)
        served += 1


def _opened(backend: StorageBackend) -> hicache.UnifiedRadixCache:
    storage = hicache.StorageConfig(
        "metered",
        model="soak@1",
        options={"inner": backend},
        prefetch_threshold=PAGE,
        stop_policy=StopPolicy.WAIT_COMPLETE,
        answer_timeout_s=ANSWER_S,
        executor=ExecutorKind.THREADED,
    )
    return hicache.open_cache(
        page_size=PAGE,
        capacity_tokens=DEVICE_PAGES * PAGE,
        host=hicache.HostConfig({"full": HOST_PAGES * PAGE}),
        model=MODEL,
        storage=storage,
    )


def _failed(stats: StorageStats) -> int:
    """Pages that were neither absent nor refused because the engine was full."""
    misses, refused = stats.misses, stats.refused
    return sum(misses.values()) - misses.get("absent", 0) + sum(refused.values()) - refused.get("full", 0)


def main() -> None:
    """Do the work of a file, and print the report as JSON."""
    # The process that started this one gets Ctrl-C as well, and ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    report = done(Work(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
    print(json.dumps(asdict(report)))  # noqa: T201 - the other process reads it


if __name__ == "__main__":
    main()
