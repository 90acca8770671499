"""The process of one host: a cache that serves the prompts once for each line of its input, and says what it saw.

`python -m hicache.tests.engines.hosts.serving FILE`: the file has the backend, its options and the number of prompts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

import hicache
from hicache.config import ExecutorKind
from hicache.types import StopPolicy, Tokens

PREFIX = 512
"""Tokens of a prompt that can be cached. It has one more, which is always computed."""

ANSWER_S = 90
"""How long a call of the backend may take. A call of Mooncake waits up to 60 seconds for a node that is cut off, and a
cache that waits less goes on without its storage, also when the node is back."""

_PAGE, _LAYERS = 64, 4
_POLL_S = 0.001

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Served:
    """One pass over all prompts. `storage_tokens`: prefetched. `longest_s`: the longest call of a verb.

    `checked_bytes`: read from the cache and compared. `wrong_tokens`: whose bytes are not those that were computed.
    """

    requests: int
    storage_tokens: int
    longest_s: float
    checked_bytes: int
    wrong_tokens: int


class Host:
    """A cache, and random bytes that depend on the prompt, in place of a model."""

    def __init__(self, cache: hicache.UnifiedRadixCache, prompts: int) -> None:
        self._cache, self._requests, self._prompts = cache, hicache.RequestManager(cache), prompts
        self._longest_s, self._checked_bytes, self._wrong_tokens = 0.0, 0, 0

    def serve(self) -> Served:
        """Forget what device and host have, and serve each prompt once; what is computed goes to the storage."""
        self._cache.reset()
        self._longest_s, self._checked_bytes, self._wrong_tokens = 0.0, 0, 0
        came = sum(self._serve_one(number) for number in range(self._prompts))
        self._cache.drain()  # its wait is for what is under way, as at the end of a process
        return Served(self._prompts, came, self._longest_s, self._checked_bytes, self._wrong_tokens)

    def _serve_one(self, number: int) -> int:
        """The tokens that came from storage."""
        prompt = np.arange(number * PREFIX, (number + 1) * PREFIX + 1, dtype=np.int32)
        came = self._fetch(prompt)
        request = self._timed(self._requests.admit, prompt)
        assert request is not None, "there are slots for one prompt"
        while not self._timed(self._requests.resume, request):
            self._step()
        self._compare_and_compute(number, request.table[:PREFIX], request.cached_tokens)
        self._timed(self._requests.finish, request)
        self._step()
        return came

    def _fetch(self, prompt: Tokens) -> int:
        operation = self._timed(self._cache.prefetch, self._cache.key(prompt[:-1]))
        if operation is None:
            return 0
        while (came := self._timed(self._cache.check_prefetch, operation)) is None:
            self._step()
        return came

    def _compare_and_compute(self, number: int, slots: Any, cached: int) -> None:
        pool = self._cache.pools.buffers["kv"]
        for layer in range(_LAYERS):
            shape = (PREFIX, pool.spec.slot_bytes)
            data = np.random.default_rng([number, layer]).integers(0, 256, shape, dtype=np.uint8)
            read = pool.read(slots[:cached], layer)
            right = np.frombuffer(read.tobytes(), np.uint8).reshape(cached, pool.spec.slot_bytes) == data[:cached]
            self._checked_bytes += right.size
            self._wrong_tokens += int((~right.all(axis=1)).sum())
            pool.write(slots[cached:], layer, data[cached:])

    def _step(self) -> None:
        self._timed(self._cache.step)
        time.sleep(_POLL_S)  # the threads of the cache have the processor meanwhile

    def _timed(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        begin = time.monotonic()
        result = verb(*args, **kwargs)
        self._longest_s = max(self._longest_s, time.monotonic() - begin)
        return result


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
        page_size=_PAGE,
        capacity_tokens=tokens,
        host=hicache.HostConfig({"full": 2 * tokens}),
        model=hicache.ModelShape.hybrid(full_layers=_LAYERS, kv_heads=2, head_dim=32, dtype="bfloat16"),
        storage=storage,
    )


def main() -> None:
    """Serve until the input ends."""
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with _opened(**settings) as cache:
        host = Host(cache, settings["prompts"])
        for _ in sys.stdin:
            print(json.dumps(asdict(host.serve())), flush=True)  # noqa: T201 - the other process reads it


if __name__ == "__main__":
    main()
