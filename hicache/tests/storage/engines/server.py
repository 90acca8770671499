"""Server: serves prompts on a cache with a storage tier, with bytes that stand for the tokens in place of a model."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import numpy as np

import hicache
from hicache.testing.driving.patterns import fill, prefix_digests
from hicache.types import SHARED, Key, Slots, Tokens

PAGE, LAYERS = 64, 4

MODEL = hicache.ModelShape.hybrid(full_layers=LAYERS, kv_heads=2, head_dim=32, dtype="bfloat16")
"""A page of it has 64 KiB."""

_POLL_S = 0.001

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class Served:
    """What a server has served.

    `device_tokens`, `host_tokens`: that requests found there. `storage_tokens`: those of the host that were prefetched
    for the request. `longest_s`: the longest call of a verb. `checked_bytes`: read from the cache and compared.
    `wrong_bytes`: those that differ from what was computed.
    """

    requests: int = 0
    device_tokens: int = 0
    host_tokens: int = 0
    storage_tokens: int = 0
    longest_s: float = 0.0
    checked_bytes: int = 0
    wrong_bytes: int = 0


class Server:
    """Serves one request at a time on a cache of MODEL with pages of PAGE tokens. `served`: so far."""

    def __init__(self, cache: hicache.UnifiedRadixCache) -> None:
        self.served = Served()
        self._cache, self._requests = cache, hicache.RequestManager(cache)

    def serve(self, prompt: Tokens) -> None:
        """Serve a prompt of whole pages and one more token, which is always computed: int32 [n * PAGE + 1]."""
        self._prefetch(prompt)
        while (request := self._timed(self._requests.admit, prompt)) is None:
            # What is copied to the host still has its slots.
            assert not self._cache.is_idle, "there are slots for one prompt once nothing is under way"
            self._step()
        self.served.device_tokens += request.shared_tokens
        self.served.host_tokens += request.loading_tokens
        while not self._timed(self._requests.resume, request):
            self._step()
        self._compare_and_compute(prompt, request.table[: len(prompt) - 1], request.computed_tokens)
        self._timed(self._requests.finish, request)
        self._step()
        self.served.requests += 1

    def _prefetch(self, prompt: Tokens) -> None:
        operation = self._timed(self._cache.prefetch, self._cache.key(prompt[:-1]))
        if operation is None:
            return
        while (came := self._timed(self._cache.check_prefetch, operation)) is None:
            self._step()
        self.served.storage_tokens += came

    def _compare_and_compute(self, prompt: Tokens, slots: Slots, cached: int) -> None:
        pool, digests = self._cache.pools.buffers["kv"], prefix_digests(Key(prompt, SHARED), PAGE, bigram=False)
        for layer in range(LAYERS):
            data = fill(digests, PAGE, layer, "kv", pool.spec.slot_bytes)
            read = np.frombuffer(pool.read(slots[:cached], layer).tobytes(), np.uint8)
            self.served.checked_bytes += read.size
            self.served.wrong_bytes += int((read != data[:cached].reshape(-1)).sum())
            pool.write(slots[cached:], layer, data[cached:])

    def _step(self) -> None:
        self._timed(self._cache.step)
        time.sleep(_POLL_S)  # the threads of the cache have the processor meanwhile

    def _timed(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        begin = time.monotonic()
        result = verb(*args, **kwargs)
        self.served.longest_s = max(self.served.longest_s, time.monotonic() - begin)
        return result
