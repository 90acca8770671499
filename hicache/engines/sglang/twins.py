"""Sglang0523Twins: SGLang's trees in Python and in Rust side by side, which must answer each verb alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hicache.config import CacheConfig
from hicache.engines.sglang.adapter import DEVICE, PARTIAL_LOCKS, Sglang0523Python, Sglang0523Rust
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.snapshot import HostView, PoolView, Snapshot

HANDLES = frozenset({"device_anchor", "best_match", "node", "ticket"})
"""The fields of results that are handles of a cache."""


READING = frozenset(
    {"partners", "layers", "slot_bytes", "read", "read_host", "sizes", "host_sizes", "sanity_check", "pending"}
)
"""The verbs that change nothing."""


class Pair(NamedTuple):
    """A handle of each cache: a node, a receipt or a ticket."""

    first: Any
    second: Any


class DifferenceError(AssertionError):
    """The two trees did not answer alike."""


def both(verb: str, *, is_handle: bool = False) -> Any:
    """A method that calls a verb on both caches and compares the answers. `is_handle`: an answer is a handle."""

    def call(self: Sglang0523Twins, *arguments: Any, **options: Any) -> Any:
        first, second = (
            answer(getattr(cache, verb), [part(one, place) for one in arguments], options)
            for place, cache in enumerate(self.twins)
        )
        if isinstance(first, Exception) and type(first) is type(second):
            raise first
        result = joined(verb, first, second, is_handle=is_handle)
        if verb not in READING:
            self.compare(verb)
        return result

    return call


def answer(verb: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """What a verb returned, or the error that it raised."""
    try:
        return verb(*arguments, **options)
    except Exception as error:  # noqa: BLE001 - compared with what the other cache did
        return error


def part(argument: Any, place: int) -> Any:
    """An argument for one of the caches."""
    return argument[place] if isinstance(argument, Pair) else argument


def joined(name: str, first: Any, second: Any, *, is_handle: bool = False) -> Any:
    """One answer of two. Raises DifferenceError."""
    if is_handle and first is not None and second is not None:
        return Pair(first, second)
    if dataclasses.is_dataclass(first) and type(first) is type(second):
        fields = [field.name for field in dataclasses.fields(first)]
        parts = {
            field: joined(f"{name}.{field}", getattr(first, field), getattr(second, field), is_handle=field in HANDLES)
            for field in fields
        }
        return dataclasses.replace(first, **parts)  # type: ignore[type-var]
    if plain(first) != plain(second):
        raise DifferenceError(f"{name}: the tree in Python answered {first!r}, and the tree in Rust {second!r}")
    return first


def plain(value: Any) -> Any:
    """A value that can be compared by ==."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return [plain(one) for one in value] if isinstance(value, tuple | list) else value


def nodes_of(snapshot: Snapshot) -> dict[tuple[Any, bytes], Any]:
    """The nodes of a snapshot by namespace and prefix, in any order."""
    below = [None] * len(snapshot.nodes) if snapshot.host is None else [plain(one) for one in snapshot.host.nodes]
    return {
        (node.namespace, snapshot.prefix(place)): (node.start, plain(node.slots), dict(node.locks), below[place])
        for place, node in enumerate(snapshot.nodes)
    }


def free_of(pools: Mapping[str, PoolView]) -> dict[str, list[int]]:
    """The free slots of each pool."""
    return {name: sorted(pool.free.tolist()) for name, pool in pools.items()}


def transfers_of(host: HostView) -> list[str]:
    """The transfers of a host tier, sorted."""
    return sorted(repr(plain(one)) for one in host.transfers)


class Sglang0523Twins(CacheAdapter):
    """SGLang 0.5.23 with both trees, on the device and on the host. Each must answer each verb as the other does."""

    interface = 2
    capabilities = (DEVICE | PARTIAL_LOCKS | {Capability.SNAPSHOT, Capability.HOST}) - {Capability.CENSUS}
    slot_axes = Sglang0523Python.slot_axes
    recencies = Sglang0523Python.recencies
    state_options = Sglang0523Python.state_options

    allocate, free, partners, release_window = both("allocate"), both("free"), both("partners"), both("release_window")
    allocate_state, free_state, fork_state = both("allocate_state"), both("free_state"), both("fork_state")
    match, insert, evict, reset = both("match"), both("insert"), both("evict"), both("reset")
    lock, unlock = both("lock", is_handle=True), both("unlock")
    lock_without_state, unlock_window = (
        both("lock_without_state", is_handle=True),
        both("unlock_window", is_handle=True),
    )
    evict_host, host_sizes, read_host = both("evict_host"), both("host_sizes"), both("read_host")
    lock_host, unlock_host = both("lock_host", is_handle=True), both("unlock_host")
    load_back, load_phase, claim, abandon = both("load_back"), both("load_phase"), both("claim"), both("abandon")
    step, drain, pending = both("step"), both("drain"), both("pending")
    layers, slot_bytes, write, read = both("layers"), both("slot_bytes"), both("write"), both("read")
    sizes, sanity_check = both("sizes"), both("sanity_check")

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self.twins = (Sglang0523Python(config), Sglang0523Rust(config))
        self.departures = self.twins[0].departures

    def close(self) -> None:
        for cache in self.twins:
            cache.close()

    def snapshot(self) -> Snapshot:
        return self.twins[0].snapshot()

    def compare(self, verb: str) -> None:
        """Raise DifferenceError unless both caches have the same data at the same places."""
        first, second = (cache.snapshot() for cache in self.twins)
        joined(f"nodes after {verb}", nodes_of(first), nodes_of(second))
        joined(f"free slots after {verb}", free_of(first.pools), free_of(second.pools))
        if first.host is not None and second.host is not None:
            joined(f"free host slots after {verb}", free_of(first.host.pools), free_of(second.host.pools))
            joined(f"transfers after {verb}", transfers_of(first.host), transfers_of(second.host))
