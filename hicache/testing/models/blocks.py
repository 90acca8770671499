"""BlockModel: the oracle of caches of blocks or chunks, a set of cached prefixes. It shares no code with a cache."""

from __future__ import annotations

from hicache.config import CacheConfig
from hicache.testing.geometry import geometry_of
from hicache.testing.snapshot import BlockSnapshot
from hicache.testing.violation import violation
from hicache.types import Component, Key, Namespace

TOKEN_BYTES = 4

Cached = tuple[str, Namespace, bytes]
"""A component, a namespace, and the prefix that a block of this component ends: token ids, 4 bytes little-endian."""


class BlockModel:
    """Which prefixes are cached, by component, and which were computed. It has no blocks, no references and no order.

    A block counts with its whole prefix: FULL and SWA have the data of the block's own tokens, MAMBA has the state
    after the prefix. A chunk counts as a block of FULL, on any tier.
    """

    def __init__(self, config: CacheConfig) -> None:
        self._components = config.components
        self._geometry = geometry_of(config)
        self._window = config.sliding_window_size or 0
        self.cached: set[Cached] = set()
        self._computed: set[Cached] = set()

    def expected_hit(self, key: Key, limit: int) -> int:
        """The longest prefix of at most `limit` tokens that every component can serve.

        A whole number of blocks of each; with all blocks of FULL, those of SWA in the window before the next token, and
        the state at its end.
        """
        alignment = self._geometry.alignment
        lengths = range(limit // alignment * alignment, 0, -alignment)
        return next((length for length in lengths if self._needed(key, length) <= self.cached), 0)

    def expected_admission(self, key: Key) -> int:
        """What an admission must find: the last tokens may have to be computed in any case."""
        return self.expected_hit(key, len(key.tokens) - self._geometry.recomputed_tokens)

    def compute(self, key: Key) -> None:
        """A request computed a prompt: each part of it may be cached from now on."""
        data = _data(key)
        for component in self._components:
            step = self._geometry.cached_tokens(component)
            ends = range(step, len(key.tokens) + 1, step)
            self._computed.update((component, key.namespace, data[: end * TOKEN_BYTES]) for end in ends)

    def adopt(self, snapshot: BlockSnapshot) -> None:
        """Take over the contents of a cache."""
        self.cached = _content(snapshot)

    def require_computed(self, verb: str) -> None:
        """Raise InvariantError when a prefix is cached that no request computed. `verb`: the one that was called."""
        for component, namespace, prefix in self.cached - self._computed:
            place = f"{verb}: a prefix of {len(prefix) // TOKEN_BYTES} tokens of {component}, {namespace}"
            raise violation("REQ-11", place, "not cached, as no request computed it", "cached")

    def _needed(self, key: Key, length: int) -> set[Cached]:
        data, needed = _data(key), set[Cached]()
        for component in self._components:
            step = self._geometry.cached_tokens(component)
            first = {Component.FULL.value: 0, Component.SWA.value: length - self._window}.get(component, length - 1)
            ends = (end for end in range(step, length + 1, step) if end > first)
            needed.update((component, key.namespace, data[: end * TOKEN_BYTES]) for end in ends)
        return needed


def _data(key: Key) -> bytes:
    return key.identity().astype("<i4").tobytes()


def _content(snapshot: BlockSnapshot) -> set[Cached]:
    chunks = () if snapshot.offload is None else snapshot.offload.chunks
    found = {(Component.FULL.value, chunk.namespace, chunk.prefix) for chunk in chunks}
    return found | {(block.component, block.namespace, block.prefix) for block in snapshot.blocks}
