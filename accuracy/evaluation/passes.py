"""Passes: evaluate the same tasks several times over one cache, whose upper tiers are cleared in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from hicache.config import CacheConfig, WritePolicy
from hicache.testing.adapter import CacheAdapter, PageBytes
from hicache.testing.driving.pools import pools_of
from hicache.types import Component, Slots, Tier

from ..cache_setup import CacheSetup, OpenCache
from ..engine.cache_config import device_config, with_host, with_storage
from ..engine.engine import NO_HITS
from ..engine.model_runner import ModelRunner
from ..engine.served_model import ServedModel
from .evaluate import ScoredPass, evaluate
from .recorder import AnsweredRequest, Forward
from .vocabulary import Vocabulary

FAULTS: Mapping[str, float] = {"error": 0.03, "partial": 0.1, "short": 0.05, "torn": 0.1, "gone": 0.05}
"""The probability of each fault, per call or per page."""


@dataclass(frozen=True, slots=True)
class CacheSize:
    """The size of a cache that holds all prompts of a pass. `tokens`: of FULL, in whole pages. `states`: of MAMBA."""

    page_size: int
    chunk_tokens: int
    tokens: int
    states: int


class Passes:
    """`setup`: the model over its cache, with a host tier, and file storage in `folder`. Close it at the end.

    `vocabulary`: of the model.
    """

    def __init__(
        self,
        model: ServedModel,
        vocabulary: Vocabulary,
        tasks: Sequence[Any],
        size: CacheSize,
        open_cache: OpenCache,
        folder: Path,
    ) -> None:
        self.vocabulary = vocabulary
        self._tasks = tasks
        self._size = size
        self.folder = folder
        self._files = {"root": str(folder)}
        self.setup = CacheSetup(model, self._config(model, "file", self._files), open_cache)

    def ask(self, *, limit: int | None = None, chats: bool = False, batch_size: int = 1) -> ScoredPass:
        """Evaluate all tasks over the cache in its current state."""
        config = self.setup.model.runner.model.config.get_text_config(decoder=True)
        return evaluate(
            self.setup.engine(self._size.chunk_tokens),
            self.vocabulary,
            self._tasks,
            max_tokens=config.max_position_embeddings,
            limit=limit,
            chats=chats,
            batch_size=batch_size,
        )

    def drop_above(self, tier: Tier) -> None:
        """Copy everything down to this tier, and clear the tiers above it."""
        if tier is Tier.HOST:
            self.setup.clear_device()
        elif tier is Tier.STORAGE:
            self._reopen("file", self._files)

    def reopen_with_faults(self) -> None:
        """Clear the device and the host as `drop_above(STORAGE)` does; from now on some reads and writes fail."""
        self._reopen("faulty", {"inner": "file", "inner_options": self._files, "seed": 1, **FAULTS})

    @contextmanager
    def released(self) -> Iterator[None]:
        """Store everything, then leave memory and storage to other processes until the context ends."""
        with self.setup.closed(), self.setup.model.runner.off_device():
            yield

    def close(self) -> None:
        """Close the cache that is open."""
        self.setup.adapter.close()

    def _reopen(self, backend: str, options: Mapping[str, Any]) -> None:
        with self.setup.closed():
            self.setup.config = self._config(self.setup.model, backend, options)

    def _config(self, model: ServedModel, backend: str, options: Mapping[str, Any]) -> CacheConfig:
        size = self._size
        config = device_config(
            model.layout,
            page_size=size.page_size,
            chunk_tokens=size.chunk_tokens,
            tokens=size.tokens,
            states=size.states,
            device=model.runner.device.type,
        )
        config = with_host(config, tokens=size.tokens, states=size.states, policy=WritePolicy.WRITE_THROUGH)
        runner = model.runner
        return with_storage(
            config, backend=backend, options=options, model=runner.model_type, fingerprint=runner.fingerprint
        )


def uncached_pass(runner: ModelRunner, first: ScoredPass) -> ScoredPass:
    """A pass with the tokens of the first one, generated tokens included, and logits computed without a cache."""
    requests = tuple(_in_one_forward(runner, number, request) for number, request in enumerate(first.requests))
    return replace(first, requests=requests, seconds=sum(one.seconds for one in requests))


def _in_one_forward(runner: ModelRunner, number: int, request: AnsweredRequest) -> AnsweredRequest:
    started = time.perf_counter()
    logits = runner.forward(request.tokens, 0, None)[request.reusable_tokens :][: len(request.logits)].cpu()
    seconds = time.perf_counter() - started
    length = len(request.tokens)
    forwards = (Forward(number, length, length, padding=0, rows=1),)
    return replace(request, hits=NO_HITS, forwards=forwards, logits=logits, wait_s=seconds, seconds=seconds)


@contextmanager
def zeroed_pools(adapter: CacheAdapter, *pools: str) -> Iterator[None]:
    """Return zeros for every read of the pools, until the context ends."""
    read = adapter.read

    def read_zeros(pool: str, slots: Slots, layer: int) -> PageBytes:
        rows = read(pool, slots, layer)
        return np.zeros_like(rows) if pool in pools else rows

    with patch.object(adapter, "read", read_zeros):
        yield


def pass_without(component: Component, tier: Tier, passes: Passes, ask: Callable[[], ScoredPass]) -> ScoredPass:
    """The pass from a tier when the data of this component is lost."""
    return pass_without_pools(pools_of(passes.setup.config, component), tier, passes, ask)


def pass_without_pools(pools: Sequence[str], tier: Tier, passes: Passes, ask: Callable[[], ScoredPass]) -> ScoredPass:
    """The pass from a tier when the data of these pools is lost."""
    passes.drop_above(tier)
    with zeroed_pools(passes.setup.adapter, *pools):
        return ask()
