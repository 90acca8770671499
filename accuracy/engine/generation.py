"""Generation: one request that runs on the engine."""

from __future__ import annotations

from dataclasses import dataclass

from hicache.types import Handle, Namespace, Slots, Tokens

from .arrivals import Hits
from .recorded_cache import RecordedCache


@dataclass(slots=True, eq=False)
class Generation:
    """A request between its arrival and its end.

    `tokens`: the prompt and what was appended. `table`: its FULL slots in whole pages, the first `cached_tokens` the
    tree's and the rest its own. `computed_tokens`: how many are in the pools. `receipt`: of the lock on what it shares.
    `state`: its own MAMBA slot, which holds the state after `computed_tokens`, or None without states. `running`: the
    cache that the model goes on from, or None when it is to be read from the pools.
    """

    tokens: Tokens
    namespace: Namespace
    table: Slots
    cached_tokens: int
    computed_tokens: int
    receipt: Handle
    state: int | None
    hits: Hits
    branching_tokens: int
    running: RecordedCache | None

    @property
    def is_computed(self) -> bool:
        """Whether no token is left to compute."""
        return self.computed_tokens == len(self.tokens)
