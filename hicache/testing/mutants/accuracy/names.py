"""Names under which one finds what is another's: without the namespace, or without the dtype."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from unittest.mock import patch

from hicache.config import CacheConfig
from hicache.parallel.group import Group
from hicache.storage.keys import StorageKeys
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.testing.hybrid_model import reshaped
from hicache.tiers.prefetch import PrefetchOperation
from hicache.types import SHARED, InsertResult, Key, MatchResult, Namespace, Slots


@dataclass(frozen=True, slots=True)
class _Unnamed(Namespace):
    """Unlike any other, and with nothing to tell it by in a hash."""

    whose: Namespace = SHARED


class _OtherKeys(ReferenceAdapter):
    """Asks the reference for other keys than it is asked for."""

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        return super().match(self.other(key), chunked=chunked)

    def insert(
        self, key: Key, slots: Slots, *, shared: int, window_start: int, state: int | None, priority: int
    ) -> InsertResult:
        return super().insert(
            self.other(key), slots, shared=shared, window_start=window_start, state=state, priority=priority
        )

    def prefetch(self, key: Key) -> PrefetchOperation | None:
        return super().prefetch(self.other(key))

    def other(self, key: Key) -> Key:
        """The key in the place of this one."""
        raise NotImplementedError


class OneNamespace(_OtherKeys):
    """All share one tree."""

    def other(self, key: Key) -> Key:
        return Key(key.tokens, SHARED)


class HashesOfTokensAlone(_OtherKeys):
    """The tree keeps namespaces apart; the hashes that name pages in storage do not."""

    def other(self, key: Key) -> Key:
        return Key(key.tokens, _Unnamed(None, None, None, whose=key.namespace))


class DtypeUnnamed(ReferenceAdapter):
    """Storage is named after a model whatever its dtype."""

    def __init__(self, config: CacheConfig, groups: Mapping[str, Group] | None = None) -> None:
        names = StorageKeys.of(replace(config, model=reshaped(config.model, dtype=""))) if config.storage else None
        with patch.object(StorageKeys, "of", lambda _: names):
            super().__init__(config, groups)
