"""SGLang's cache on several ranks: each process opens its own cache, with the process groups of SGLang's scheduler.

Without a GPU a copy between the tiers ends within the call that starts it. Here the scheduler sees its end only when
the test says so, as a slow rank would.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hicache.config import CacheConfig, ExecutorKind, Topology
from hicache.engines.interface import release_of
from hicache.engines.sglang.adapter import Sglang0513, Sglang0523, Sglang0523Python, Sglang0523Rust, SglangAdapter
from hicache.engines.sglang.host import Receipt, Ticket
from hicache.engines.sglang.imports import import_from
from hicache.engines.sglang.pools import arriving_slots
from hicache.engines.sglang.storage_tier import PrefetchTicket
from hicache.optional_torch import distributed
from hicache.testing.adapter import Adapter, Capability, Pending
from hicache.testing.hybrid_model import HybridModel, reshaped
from hicache.testing.ranks.world import Mesh, RankWorld, mesh_of
from hicache.types import Handle, Key, LoadBack, TransferKind, TransferPhase

STATES = "the storage threads of all ranks"
"""The purpose of an exchange in which ranks tell how far their threads are."""


class HeldEvent:
    """The end of a copy: SGLang's scheduler sees it when it is released, or when it waits for it."""

    def __init__(self, kind: TransferKind, number: int, *, is_released: bool) -> None:
        self.ticket = (kind, number)
        self.is_released = is_released

    def query(self) -> bool:
        return self.is_released

    def synchronize(self) -> None:
        self.is_released = True


class Acks(list[Any]):
    """SGLang's queue of the copies that it has started, the oldest first. `holds`: their ends are held from now on."""

    def __init__(self, kind: TransferKind) -> None:
        super().__init__()
        self.holds = True
        self._kind = kind
        self._started = 0

    def append(self, ack: Any) -> None:
        self._started += 1
        event = HeldEvent(self._kind, self._started, is_released=not self.holds)
        super().append(ack._replace(finish_event=event))

    def release(self) -> None:
        """Let all copies end that were started."""
        for ack in self:
            ack.finish_event.synchronize()

    def pending(self) -> list[Pending]:
        """The copies whose end is held."""
        kind = self._kind
        return [Pending(one.finish_event.ticket, kind, len(one.node_ids), 1, 0) for one in self.held()]

    def held(self) -> list[Any]:
        """The acknowledgements whose end is held."""
        return [ack for ack in self if not ack.finish_event.is_released]


class SglangRank(SglangAdapter):
    """One rank of SGLang's cache."""

    capabilities = frozenset(
        {
            *(Capability.VERBS, Capability.RESET, Capability.PAGED, Capability.NAMESPACES, Capability.SWA),
            *(Capability.MAMBA, Capability.BYTES, Capability.SIZES, Capability.SNAPSHOT, Capability.HOST),
            *(Capability.STEPPED, Capability.STORAGE, Capability.STEPPED_STORAGE, Capability.RANKS),
        }
    )

    def __init__(self, config: CacheConfig, world: RankWorld | None = None) -> None:
        self._world = world
        self._loading: dict[int, HeldEvent] = {}
        super().__init__(share_of(config))
        if config.host is not None:
            self._hold(is_held=config.host.executor is ExecutorKind.STEPPED)

    @classmethod
    def on_rank(cls: type[Adapter], config: CacheConfig, world: RankWorld) -> Adapter:
        world.interpose()
        return cls(config, world)  # type: ignore[call-arg]

    def open_options(self) -> dict[str, Any]:
        return {**super().open_options(), **({} if self._world is None else group_options(self.config.topology))}

    def adopt_backend(self) -> None:
        super().adopt_backend()
        self.threads.watch_ranks()

    # Verbs. All ranks call these at the same time.

    def step(self) -> None:
        self._wait_for_all_ranks()
        super().step()
        self._wait_for_all_ranks()

    def drain(self) -> None:
        if self.config.host is None:
            return
        self._hold(is_held=False)
        before, left = "", self._left()
        while left != before:
            before = left
            self.release_all()
            self.step()
            left = self._left()
        self._hold(is_held=self.config.host.executor is ExecutorKind.STEPPED)
        if self.config.storage is not None:
            self.threads.gate.set_open(is_open=self._is_threaded)

    def release_all(self) -> None:
        if self.config.storage is not None:
            self.threads.gate.set_open(is_open=True)
            self._wait_for_all_ranks()

    def prefetch(self, key: Key) -> PrefetchTicket | None:
        self._wait_for_all_ranks()
        return super().prefetch(key)

    def load_back(self, handle: Handle, *, quota: int | None) -> LoadBack | None:
        before = len(self.cache.cache_controller.ack_load_queue)
        load = super().load_back(handle, quota=quota)
        started = self.cache.cache_controller.ack_load_queue[before:]
        if load is not None and started:
            self._loading[id(load.ticket)] = started[-1].finish_event
        return load

    def load_phase(self, ticket: Ticket) -> TransferPhase:
        phase = super().load_phase(ticket)
        waiting = [ack.finish_event for ack in self.cache.cache_controller.ack_load_queue]
        return TransferPhase.RUNNING if self._loading.get(id(ticket)) in waiting else phase

    def abandon(self, ticket: Ticket) -> None:
        super().abandon(ticket)
        self._loading.pop(id(ticket), None)

    # Each rank calls these when it likes.

    def pending(self) -> Sequence[Pending]:
        copies = [one for acks in self._acks() for one in acks.pending()]
        return [*copies, *super().pending()]

    def advance(self, ticket: Handle) -> None:
        held = [ack.finish_event for acks in self._acks() for ack in acks.held()]
        found = next((event for event in held if event.ticket == ticket), None)
        if found is None:
            super().advance(ticket)
        else:
            found.synchronize()

    # Snapshot.

    def own_receipts(self) -> Iterator[Receipt]:
        yield from super().own_receipts()
        for node, params, *_ in self.cache.ongoing_load_back.values():
            yield Receipt(node, params)

    def own_host_receipts(self) -> Iterator[Receipt]:
        yield from super().own_host_receipts()
        for node, _, *params in self.cache.ongoing_load_back.values():
            yield from (Receipt(node, one) for one in params)

    def _acks(self) -> tuple[Acks, ...]:
        if self.config.host is None:
            return ()
        controller = self.cache.cache_controller
        return controller.ack_write_queue, controller.ack_load_queue

    def _hold(self, *, is_held: bool) -> None:
        """Hold the ends of copies from now on; or release them, and hold none."""
        controller = self.cache.cache_controller
        if not isinstance(controller.ack_write_queue, Acks):
            controller.ack_write_queue = Acks(TransferKind.BACKUP)
            controller.ack_load_queue = Acks(TransferKind.LOAD)
        for acks in self._acks():
            acks.holds = is_held
            if not is_held:
                acks.release()

    def _left(self) -> str:
        """What is under way on all ranks."""
        own = [len(acks) for acks in self._acks()]
        if self.config.storage is not None:
            own += [*self.threads.answers(), len(self.cache.ongoing_prefetch), len(self.cache.ongoing_backup)]
        return json.dumps(self._gather(json.dumps(own)))

    def _wait_for_all_ranks(self) -> None:
        """Wait until no storage thread of any rank can go on: each is idle, waits at its gate, or for another rank."""
        if self.config.storage is None:
            return
        while True:
            self.threads.wait_until_idle()
            ranks = [json.loads(text) for text in self._gather(json.dumps(self.threads.crossings()))]
            reached = {name: min(counts.get(name, (0, 0))[0] for counts in ranks) for one in ranks for name in one}
            if all(left >= reached[name] for counts in ranks for name, (_, left) in counts.items()):
                return

    def _gather(self, text: str) -> list[str]:
        return [text] if self._world is None else self._world.gather(STATES, text)


class Sglang0513Rank(SglangRank, Sglang0513):
    """A rank of SGLang 0.5.13.post1."""


class _Rank0523(SglangRank, Sglang0523):
    """What a rank of 0.5.23 has with any tree."""

    def is_arriving(self, component: str, slots: Any) -> bool:
        controller = self.cache.cache_controller
        started = [self._writes[number] for ack in controller.ack_write_queue for number in ack.node_ids]
        return bool(arriving_slots([*controller.write_queue, *started], component, slots).all())


class Sglang0523Rank(_Rank0523, Sglang0523Python):
    """A rank of SGLang 0.5.23 with its tree in Python."""


class Sglang0523RustRank(_Rank0523, Sglang0523Rust):
    """A rank of SGLang 0.5.23 with its tree in Rust."""


def share_of(config: CacheConfig) -> CacheConfig:
    """The configuration with the layers and heads that a rank has, as SGLang's model runner divides them."""
    ranks = config.topology
    model = HybridModel.of(config.model)
    if ranks.tp_size == ranks.pp_size == 1:
        return config
    heads = {name: getattr(model, name) // ranks.tp_size for name in ("kv_heads", "conv_elements", "state_elements")}
    layers = {name: _layers(getattr(model, name), ranks) for name in ("full_layers", "swa_layers", "mamba_layers")}
    return replace(config, model=reshaped(config.model, **heads, **layers))


def _layers(count: int, ranks: Topology) -> int:
    return count * (ranks.pp_rank + 1) // ranks.pp_size - count * ranks.pp_rank // ranks.pp_size


def group_options(own: Topology) -> Mapping[str, Any]:
    """Make SGLang's groups, which all ranks make in one order; returns its options for those of this rank.

    `tp` has the ranks of a stage, and `attn_tp` and `attn_cp` divide it.
    """
    mesh = mesh_of(own)
    rank = mesh.rank_of(own)
    opened = {name: _open(groups, rank) for name, groups in groups_of(mesh).items()}
    return {**opened, "pp_rank": own.pp_rank, "pp_size": own.pp_size}


def groups_of(mesh: Mesh) -> Mapping[str, list[list[int]]]:
    """The ranks of each group, by SGLang's option for it."""
    stages = [
        range(first, first + mesh.ranks // mesh.pp_size) for first in range(0, mesh.ranks, mesh.ranks // mesh.pp_size)
    ]
    return {
        "tp_cache_group": [list(stage) for stage in stages],
        "attn_tp_cache_group": [
            list(stage[first : first + mesh.tp_size])
            for stage in stages
            for first in range(0, len(stage), mesh.tp_size)
        ],
        "attn_cp_cache_group": [
            list(stage[first :: mesh.tp_size]) for stage in stages for first in range(mesh.tp_size)
        ],
        "pp_cache_group": [[stage[place] for stage in stages] for place in range(len(stages[0]))],
    }


def _open(groups: list[list[int]], rank: int) -> Any:
    """This rank's own group."""
    opened = [(group, distributed.new_group(group, backend="gloo")) for group in groups]
    return next(made for group, made in opened if rank in group)


if release_of("sglang") is not None:
    # The fork server of a launch imports this module, so that its processes need not import SGLang again.
    import_from("sglang.srt.mem_cache.unified_radix_cache")
    import_from("sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller")
