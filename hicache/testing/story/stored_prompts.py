"""StoredPrompts: the stored pages of the prompts of the story, whether or not the tree knows of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from hicache.testing.adapter import CacheAdapter
from hicache.testing.storage.scripted import Store
from hicache.types import COMPONENT_POOL, SHARED, Component, Key


class StoredPrompts:
    """Asks the store for the objects of a prefix, by the keys that the adapter gives them.

    Prefixes are bytes: token ids, 4 bytes little-endian each. `prompts`: those whose pages storage may have.
    `awaited`: those that a prefetch brings now. `page_bytes`: of a page in a prefix.
    """

    def __init__(
        self,
        adapter: CacheAdapter,
        store: Store,
        prompts: Collection[bytes],
        awaited: Collection[bytes],
        page_bytes: int,
    ) -> None:
        self._adapter = adapter
        self._store = store
        self._prompts = prompts
        self._awaited = awaited
        self._page_bytes = page_bytes

    def has(self, prefix: bytes, segment_bytes: int, component: str) -> bool:
        """Whether storage has a component of a prefix's last part: all of its pages, or the state at its end."""
        objects = self._objects(prefix, component)
        count = 1 if component == Component.MAMBA else segment_bytes // self._page_bytes
        return bool(objects) and all(objects[-count:])

    def stored_prefixes(self) -> Sequence[bytes]:
        """Of each prompt the first pages whose FULL data is in storage, the shortest first."""
        stored = {prompt[: self._page_bytes * self._pages(prompt)] for prompt in self._prompts}
        return sorted(stored, key=lambda prefix: (len(prefix), prefix))

    def is_awaited(self, prefix: bytes) -> bool:
        """Whether a prefetch brings this prefix now."""
        return any(prompt.startswith(prefix) for prompt in self._awaited)

    def _pages(self, prompt: bytes) -> int:
        objects = self._objects(prompt, Component.FULL)
        return objects.index(False) if False in objects else len(objects)

    def _objects(self, prefix: bytes, component: str) -> list[bool]:
        """Whether storage has the object of each page (of MAMBA: of the state after it)."""
        key = Key(np.frombuffer(prefix, dtype="<i4").astype(np.int32), SHARED)
        return self._store.readable(self._adapter.storage_keys(COMPONENT_POOL[component], key))
