"""SglangHostVerbs: SGLang's host tier under the suites. Without a GPU each copy is synchronous."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from hicache.config import CacheConfig, HostConfig, WritePolicy
from hicache.engines.sglang.pools import FULL, SglangHostPools, replace_kernels, server_options
from hicache.engines.sglang.view import INDEX, Locked, own, walk
from hicache.testing.adapter import HostVerbs, PageBytes
from hicache.testing.snapshot import HostNodeView, HostView, TransferView
from hicache.types import EvictResult, Handle, LoadBack, Sizes, Slots, TransferKind, TransferPhase

HOST_DEPARTURES = frozenset({"EVICT-2", "EVICT-8", "MATCH-12"})
"""Clauses that SGLang replaces with rules of its own when there is a host tier.

EVICT-2: the unmatched rest of the node where a match ends is evicted last. EVICT-8: an eviction from the host takes
data that is not on the device. MATCH-12: the host hit counts all host data past the device anchor, also data that is
on the device.
"""


Arriving = frozenset[tuple[int, str]]
"""Host copies that are not yet acknowledged, by the number of the node and component."""


@dataclass(frozen=True, slots=True, eq=False)
class Receipt:
    """One lock: the node, and the parameters that SGLang returned for the release.

    `has_window`: its window was not released before.
    """

    node: Handle
    params: Any
    has_window: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A load that a caller waits for: its lock, and the FULL slots that it loaded."""

    receipt: Receipt
    indices: Slots


class SglangHostVerbs(HostVerbs):
    """The verbs of the host tier, over SGLang's `cache`. `found`: the last match, by its node."""

    host_pools_type: ClassVar[type[SglangHostPools]] = SglangHostPools
    cache: Any
    config: CacheConfig
    base: Any
    found: dict[Handle, Any]

    def root(self) -> Any:
        """SGLang's root node."""
        return self.cache.root_node

    @abstractmethod
    def node_of(self, handle: Handle) -> Any:
        """SGLang's node of a handle."""

    @abstractmethod
    def locked_by(self, receipt: Receipt) -> Iterator[Locked]:
        """The components and nodes that the release of a receipt unlocks on the device."""

    @abstractmethod
    def host_locked_by(self, receipt: Receipt) -> Iterator[Locked]:
        """The same for a host receipt."""

    @abstractmethod
    def host_modules(self) -> Sequence[str]:
        """The modules of SGLang that copy between the tiers."""

    def open_host(self, host: HostConfig, params: Any) -> None:
        """Add a host tier to the cache."""
        self.host = host
        replace_kernels(self.host_modules())
        self.cache.init_hicache(SimpleNamespace(**server_options(self.config, host)), params)
        self.cache.load_back_threshold = host.load_back_threshold_tokens
        if host.write_policy is WritePolicy.WRITE_THROUGH_SELECTIVE:
            self.cache.write_through_threshold = 1 + host.selective_hits
        self.host_pools = self.host_pools_type(self.config, host, self.cache.host_pool_group)
        self.tickets: list[Ticket] = []

    def step(self) -> None:
        if self.config.host is not None:
            self.cache.ready_to_load_host_cache()
            self.cache.check_hicache_events()

    def evict_host(self, component: str, tokens: int) -> EvictResult:
        before, holding = self.host_pools.available(), self._count_host(component)
        kind = self.component_type()[component.upper()]
        counted = self.cache.evict_host(tokens, kind)
        after = self.host_pools.available()
        freed = {name: after[name] - count for name, count in before.items()} | {component: counted}
        return EvictResult(freed, holding - self._count_host(component), 0)

    @abstractmethod
    def component_type(self) -> Any:
        """SGLang's enumeration of components."""

    def lock_host(self, handle: Handle) -> Receipt:
        # SGLang also locks unacknowledged copies. After a step there are none, so the snapshot has each lock.
        self.step()
        return Receipt(handle, self.cache.inc_host_lock_ref(handle).to_dec_params())

    def unlock_host(self, receipt: Receipt) -> None:
        self.cache.dec_host_lock_ref(receipt.node, receipt.params)

    def load_back(self, handle: Handle, *, quota: int | None) -> LoadBack | None:
        found = self.found[handle]
        hits = (found.host_hit_length, found.swa_host_hit_length, found.mamba_host_hit_length)
        if not any(hits) or not self.cache.load_back(handle, quota):
            return None
        # As in SGLang's scheduler: the request locks its prefix, and the copies of the batch are started.
        receipt = Receipt(handle, self.cache.inc_lock_ref(handle).to_dec_params())
        self.cache.ready_to_load_host_cache()
        self.cache.loading_check()
        ticket = Ticket(receipt, self._path(self.node_of(handle), self.node_of(found.last_device_node)))
        self.tickets.append(ticket)
        return LoadBack(ticket.indices, ticket)

    def load_phase(self, ticket: Ticket) -> TransferPhase:
        if ticket not in self.tickets:
            raise ValueError(f"the load of {len(ticket.indices)} slots was claimed or abandoned before")
        return TransferPhase.DONE

    def claim(self, ticket: Ticket) -> Slots | None:
        self.abandon(ticket)
        return ticket.indices

    def abandon(self, ticket: Ticket) -> None:
        self.tickets.remove(ticket)
        self.cache.dec_lock_ref(ticket.receipt.node, ticket.receipt.params)

    def host_sizes(self) -> Mapping[str, Sizes]:
        # SGLang has no such counters.
        free = self.host_pools.available()
        counts = {name: {True: 0, False: 0} for name in free}
        arriving = self._arriving()
        for node in walk(self.root()):
            for name, by_lock in counts.items():
                data = node.component_data[INDEX[name]]
                if data.host_value is not None and (node.id, name) not in arriving:
                    by_lock[data.host_lock_ref > 0] += len(data.host_value)
        return {name: Sizes(by_lock[False], by_lock[True], free[name]) for name, by_lock in counts.items()}

    def read_host(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        return self.host_pools.read(pool, slots, layer)

    def has_host_locks(self) -> bool:
        """Whether a node is locked on the host."""
        nodes = walk(self.root())
        return any(node.component_data[INDEX[name]].host_lock_ref for node in nodes for name in self.config.components)

    def host_view(self) -> HostView:
        """The host tier. Copies that are not yet acknowledged are shown as transfers."""
        nodes, arriving = list(walk(self.root())), self._arriving()
        pins = self._count(nodes, (lock for one in self.own_receipts() for lock in self.locked_by(one)))
        below = self._count(nodes, (lock for one in self.own_host_receipts() for lock in self.host_locked_by(one)))
        views = tuple([self._host_node(node, pins[node.id], below[node.id], arriving) for node in nodes])
        pools = {name: self.host_pools.view(name) for name in self.config.components}
        return HostView(views, pools, tuple(self._backups()), {})

    def reset_host(self) -> None:
        """Reset the host tier after a reset of the tree."""
        self.tickets.clear()
        self.host_pools.reserve()

    def own_host_receipts(self) -> Iterator[Receipt]:
        """The locks on the host that the cache itself holds."""
        return iter(())

    def _count(self, nodes: Sequence[Any], locked: Iterable[Locked]) -> dict[int, dict[str, int]]:
        """How often each node is locked, by its number and by component."""
        counts = {node.id: dict.fromkeys(self.config.components, 0) for node in nodes}
        for name, node in locked:
            counts[node.id][name] += 1
        return counts

    def _host_node(
        self, node: Any, pins: Mapping[str, int], host_pins: Mapping[str, int], arriving: Arriving
    ) -> HostNodeView:
        held = {name: node.component_data[INDEX[name]] for name in self.config.components}
        # SGLang also locks copies that are not yet acknowledged, which are shown as transfers.
        there = {name: (node.id, name) not in arriving for name in held}
        return HostNodeView(
            slots={name: self._shown(name, data) if there[name] else None for name, data in held.items()},
            locks={name: data.host_lock_ref if there[name] else 0 for name, data in held.items()},
            pins=pins,
            host_pins={name: count if there[name] else 0 for name, count in host_pins.items()},
        )

    def _shown(self, name: str, data: Any) -> Slots | None:
        return None if data.host_value is None else self.host_pools.shown(name, data.host_value)

    def _backups(self) -> Iterator[TransferView]:
        arriving = self._arriving()
        for _, _, nodes in self.ongoing_writes():
            device: dict[str, list[Slots]] = {}
            host: dict[str, list[Slots]] = {}
            for node in nodes:
                for name in self.config.components:
                    data = node.component_data[INDEX[name]]
                    slots, copied = own(data.value), self._shown(name, data)
                    if slots is not None and copied is not None and (node.id, name) in arriving:
                        device.setdefault(name, []).append(slots)
                        host.setdefault(name, []).append(copied)
            ends = [{name: np.concatenate(parts) for name, parts in end.items()} for end in (device, host)]
            if device:
                yield TransferView(TransferKind.BACKUP, *ends)

    @abstractmethod
    def ongoing_writes(self) -> Iterator[tuple[Handle, Any, list[Any]]]:
        """For each backup: the node it locks, the parameters of the release (None: no lock), the nodes it copies."""

    @abstractmethod
    def is_arriving(self, component: str, slots: Any) -> bool:
        """Whether these host slots of a node are the target of a copy that is not yet acknowledged."""

    def own_receipts(self) -> Iterator[Receipt]:
        """The locks on the device that the cache itself holds."""
        for handle, params, _ in self.ongoing_writes():
            if params is not None:
                yield Receipt(handle, params)
        yield from (ticket.receipt for ticket in self.tickets)

    def _arriving(self) -> Arriving:
        nodes = [node for _, _, several in self.ongoing_writes() for node in several]
        return frozenset(
            (node.id, name)
            for node in nodes
            for name in self.config.components
            if (slots := node.component_data[INDEX[name]].host_value) is not None and self.is_arriving(name, slots)
        )

    def _count_host(self, component: str) -> int:
        nodes = walk(self.root())
        return sum(node.component_data[INDEX[component]].host_value is not None for node in nodes)

    def _path(self, node: Any, above: Any) -> Slots:
        parts: list[Slots] = []
        while node.id != above.id:
            parts.append(np.array(node.component_data[INDEX[FULL]].value.numpy(), dtype=np.int64))
            node = node.parent
        return np.concatenate(parts[::-1]) if parts else np.empty(0, dtype=np.int64)
