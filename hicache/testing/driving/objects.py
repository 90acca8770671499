"""Objects: checks the nodes that a cache marks as stored against the objects in its store."""

from __future__ import annotations

import numpy as np

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter
from hicache.testing.laws.storage import Keys, check_kept, check_order
from hicache.testing.snapshot import Snapshot
from hicache.testing.storage.scripted import store_of
from hicache.types import Component, Key, Namespace, Pool


class Objects:
    """The object keys of one cache, and its store. Checks nothing when the store cannot be read."""

    def __init__(self, adapter: CacheAdapter, config: CacheConfig) -> None:
        self._adapter = adapter
        self._bigram = config.bigram
        # With MLA one rank of the group writes for all, to a store that the other ranks may not see.
        is_shared = config.model is not None and config.model.is_mla and config.topology.tp_size > 1
        self._store = None if is_shared else store_of(config)
        self._known: dict[tuple[Namespace, bytes], Keys] = {}
        pools = {Pool.KV: True, Pool.INDEXER: Pool.INDEXER in config.sidecars}
        pools |= {Pool.SWA: Component.SWA in config.components, Pool.MAMBA: Component.MAMBA in config.components}
        self._pools = [pool for pool, is_kept in pools.items() if is_kept]

    def check(self, snapshot: Snapshot) -> None:
        """Raise InvariantError unless every page marked as stored is in the store, written in the required order."""
        store = self._store
        if store is None:
            return

        def keys_of(row: int) -> Keys:
            return self._keys(snapshot.nodes[row].namespace, snapshot.prefix(row))

        check_kept(snapshot, keys_of, store.was_written)
        if not store.has_refused:
            check_order(snapshot, keys_of, store.was_written)

    def _keys(self, namespace: Namespace, prefix: bytes) -> Keys:
        known = self._known.get((namespace, prefix))
        if known is None:
            key = Key(self._tokens(prefix), namespace)
            known = {pool: tuple(self._adapter.storage_keys(pool, key)) for pool in self._pools}
            self._known[namespace, prefix] = known
        return known

    def _tokens(self, prefix: bytes) -> np.typing.NDArray[np.int32]:
        tokens = np.frombuffer(prefix, dtype="<i4").astype(np.int32)
        return np.append(tokens[::2], tokens[-1:]) if self._bigram else tokens
