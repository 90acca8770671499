"""The process of one host: a cache that serves the prompts once for each line of its input, and says what it saw.

`python -m hicache.tests.storage.engines.hosts.serving FILE`: the file names the backend, its options, and the prompts.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import hicache
from hicache.config import ExecutorKind
from hicache.tests.storage.engines.server import MODEL, PAGE, Served, Server
from hicache.types import StopPolicy

PREFIX = 512
"""Tokens of a prompt that can be cached. It has one more, which is always computed."""

ANSWER_S = 90
"""How long a call of the backend may take. A call of Mooncake waits up to 60 seconds for a node that is cut off, and a
cache that waits less goes on without its storage, also when the node is back."""


def serve_all(cache: hicache.UnifiedRadixCache, prompts: int) -> Served:
    """Forget what device and host have, and serve each prompt once; what is computed goes to the storage."""
    cache.reset()
    server = Server(cache)
    for number in range(prompts):
        server.serve(np.arange(number * PREFIX, (number + 1) * PREFIX + 1, dtype=np.int32))
    cache.drain()  # its wait is for what is under way, as at the end of a process
    return server.served


def _opened(backend: str, options: dict[str, Any], prompts: int) -> hicache.UnifiedRadixCache:
    storage = hicache.StorageConfig(
        backend,
        model="hosts@1",
        options=options,
        stop_policy=StopPolicy.WAIT_COMPLETE,
        answer_timeout_s=ANSWER_S,
        executor=ExecutorKind.THREADED,
    )
    tokens = 2 * prompts * PREFIX
    return hicache.open_cache(
        page_size=PAGE,
        capacity_tokens=tokens,
        host=hicache.HostConfig({"full": 2 * tokens}),
        model=MODEL,
        storage=storage,
    )


def main() -> None:
    """Serve until the input ends."""
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with _opened(**settings) as cache:
        for _ in sys.stdin:
            served = serve_all(cache, settings["prompts"])
            print(json.dumps(asdict(served)), flush=True)  # noqa: T201 - the other process reads it


if __name__ == "__main__":
    main()
