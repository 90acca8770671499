"""Generation: one running request of an engine."""

from __future__ import annotations

from dataclasses import dataclass

from hicache.types import Handle, Namespace, Slots, Tokens

from .prefix_finder import Hits
from .recorded_cache import RecordedCache


@dataclass(slots=True, eq=False)
class Generation:
    """A request between its arrival and its end.

    `tokens`: the prompt and the appended tokens. `table`: its FULL slots in whole pages; the first `cached_tokens`
    belong to the tree, the others to the request. `computed_tokens`: how many tokens are in the pools. `receipt`: of
    the lock on its cached prefix. `state`: its own MAMBA slot, with the state after `computed_tokens`, or None without
    states. `running`: the cache that the model goes on from, or None to read it from the pools.
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
