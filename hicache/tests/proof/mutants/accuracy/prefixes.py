"""Trees that hand out, protect or take over something else than the prefix in question, or know it by a wrong name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from unittest.mock import patch

from hicache.components import component_tree
from hicache.components.base import ComponentTier
from hicache.components.component_tree import REGISTRY
from hicache.components.swa import SwaComponent
from hicache.config import CacheConfig, StorageConfig
from hicache.parallel.group import Group
from hicache.storage.keys import StorageKeys
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.hybrid_model import reshaped
from hicache.tests.proof.mutants.accuracy.transfers import OtherParts
from hicache.tiers.prefetch import PrefetchOperation
from hicache.tree.node import FULL, Node
from hicache.types import SHARED, InsertResult, Key, MatchResult, Namespace, Slots


class HostAsDevice(ReferenceAdapter):
    """What of a component is on the host passes for being on the device, where the node's FULL pages are there."""

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        found = super().match(key, chunked=chunked)
        best: Node = found.best_match
        if best.parent is None or best.device[FULL].value is None:
            return found
        return replace(
            found,
            device_indices=self.cache.slots_to(best),
            device_anchor=best,
            host_hit_length=0,
            component_host_hit_lengths=dict.fromkeys(found.component_host_hit_lengths, 0),
        )


class FreesWhatIsKept(ReferenceAdapter):
    """An insert gives the last page to the tree, and frees it as well."""

    def insert(
        self, key: Key, slots: Slots, *, shared: int, window_start: int, state: int | None, priority: int
    ) -> InsertResult:
        result = super().insert(key, slots, shared=shared, window_start=window_start, state=state, priority=priority)
        if result.accepted_length > result.prefix_length:
            self.cache.pools.free(self.cache.pools.pages_of(slots[: result.accepted_length])[-1:])
        return result

    def free(self, slots: Slots) -> None:
        self.cache.pools.free(self.cache.pools.pages_of(slots))


class _Unprotected(SwaComponent):
    def acquire(self, node: Node, tier: ComponentTier) -> int:
        return node.end


class NoWindowLock(OtherParts):
    """A lock protects no window."""

    parts = ((component_tree, "REGISTRY", {**REGISTRY, SwaComponent.name: _Unprotected}),)


def state_of(node: Node, components: int) -> Slots | None:
    """The state that a node holds on the device; it is the last of its components."""
    return node.device[components - 1].value


class StateBefore(ReferenceAdapter):
    """A request goes on from the state of the node before, where that has one."""

    def fork_state(self, handle: Node) -> int | None:
        before, components = handle.parent, len(self.cache.config.components)
        is_there = before is not None and state_of(before, components) is not None
        return super().fork_state(before if before is not None and is_there else handle)


class NoCopy(ReferenceAdapter):
    """A request goes on in the tree's own state, and writes to it."""

    def fork_state(self, handle: Node) -> int | None:
        return self.cache.state_of(handle)

    def free_state(self, slot: int) -> None:
        components = len(self.cache.config.components)
        held = [state for node in self.cache.tree.radix.nodes() if (state := state_of(node, components)) is not None]
        if not any(slot in state for state in held):
            super().free_state(slot)


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


class FingerprintUnnamed(ReferenceAdapter):
    """Storage is named after a model without its RoPE and its revision."""

    def __init__(self, config: CacheConfig, groups: Mapping[str, Group] | None = None) -> None:
        names = StorageKeys.of(self.named(config, config.storage)) if config.storage else None
        with patch.object(StorageKeys, "of", lambda _: names):
            super().__init__(config, groups)

    def named(self, config: CacheConfig, storage: StorageConfig) -> CacheConfig:
        """The configuration that storage is named after."""
        return replace(config, storage=replace(storage, model_fingerprint=None))


class DtypeUnnamed(FingerprintUnnamed):
    """Storage is named after a model without its dtype, which the fingerprint has too."""

    def named(self, config: CacheConfig, storage: StorageConfig) -> CacheConfig:
        return replace(super().named(config, storage), model=reshaped(config.model, dtype=""))
