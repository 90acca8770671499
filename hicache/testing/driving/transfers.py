"""TransferVerbs: advances transfers, step by step where a test may do so, and reads layers as they are loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from hicache.config import ExecutorKind
from hicache.testing.driving.host import HostTierVerbs
from hicache.testing.driving.open_load import OpenLoad
from hicache.testing.host_verbs import PendingTransfer
from hicache.testing.snapshot import HostNodeView, NodeView, Snapshot
from hicache.testing.violation import violation
from hicache.types import Handle, Pool, TransferPhase


class TransferVerbs(HostTierVerbs):
    """Checks that bytes may move at any time, but that residency changes only when a finished transfer is applied."""

    def step(self) -> None:
        """Apply the results of finished transfers, and start the queued ones."""
        self.adapter.step()
        self._update_loads()
        self.verb_done()

    def drain(self) -> None:
        """Wait for all transfers to finish, and apply their results."""
        self.adapter.drain()
        self._update_loads()
        waiting = list(self._in_flight())
        if waiting:
            raise violation("FLOW-4", "drain", "nothing in flight", waiting)
        self.verb_done()

    def pending(self) -> Sequence[PendingTransfer]:
        """The transfers that a test can advance, oldest first."""
        pending = self.adapter.pending()
        for one in pending:
            if one.parts < 1 or not 0 <= one.layers_done <= one.layers:
                raise violation("FLOW-2", "pending", "at least one part, and at most as many layers as there are", one)
        return pending

    def advance(self, ticket: Handle) -> None:
        """Copy one more layer of a pending transfer."""
        before = self._pending(ticket)
        self._move("advance", lambda: self.adapter.advance(ticket))
        after = self._pending(ticket)
        if before is not None and after is not None and after.layers_done != before.layers_done + 1:
            raise violation("FLOW-2", "advance", f"{before.layers_done + 1} layers", f"{after.layers_done} layers")
        self.verb_done()

    def complete(self, ticket: Handle) -> None:
        """Copy all remaining layers of a pending transfer."""
        self._move("complete", lambda: self.adapter.complete(ticket))
        self._require_end("complete", ticket)
        self.verb_done()

    def fail(self, ticket: Handle, parts_done: int) -> None:
        """End a pending transfer after its first parts; the other parts fail."""
        self.failures += 1
        self._move("fail", lambda: self.adapter.fail(ticket, parts_done))
        self._require_end("fail", ticket)
        self.verb_done()

    def complete_all(self) -> None:
        """Complete all pending transfers, oldest first, and apply their results."""
        for one in self.pending():
            self.complete(one.ticket)
        self.step()

    def layer_ready(self, ticket: Handle, pool: Pool, layer: int) -> bool:
        """Whether the target slots of a load can be read in one layer of one pool."""
        return self.adapter.layer_ready(ticket, pool, layer)

    def read_ready_layers(self, ticket: Handle) -> Mapping[Pool, int]:
        """Read the whole prefix of a load in each readable layer, and in no other; returns how many layers, by pool.

        Raises InvariantError when bytes are wrong (HOST-6), when a layer is no longer readable, or when the load has
        ended and a layer of the stack is not readable (HOST-9). Nothing is read of a load that failed.
        """
        load, phase = self.loads[id(ticket)], self.load_phase(ticket)
        if phase is TransferPhase.FAILED:
            return {}
        for pool, read in self._readers(load).items():
            layers = range(self.adapter.layers(pool))
            ready = frozenset(layer for layer in layers if self.adapter.layer_ready(ticket, pool, layer))
            load.record_ready(pool, ready)
            if phase is TransferPhase.DONE and len(ready) < len(layers):
                raise violation("HOST-9", f"layers of {pool.value} after a load", sorted(layers), sorted(ready))
            for layer in sorted(ready):
                read(layer)
        return {pool: len(ready) for pool, ready in load.ready.items()}

    def _readers(self, load: OpenLoad) -> dict[Pool, Callable[[int], None]]:
        """The function that reads one layer, by pool."""
        readers: dict[Pool, Callable[[int], None]] = {}
        for pool in self.contents.prefix_pools:
            readers[pool] = partial(self.contents.verify_layer, pool, load.key, load.slots)
        state = self._state_of(load.key) if self._has_states and self.has_snapshot else None
        if state is not None:
            readers[Pool.MAMBA] = partial(self.contents.verify_state_layer, load.key, state)
        return readers

    def _update_loads(self) -> None:
        for load in self.loads.values():
            load.record_phase(self.adapter.load_phase(load.ticket))

    def _in_flight(self) -> Iterator[str]:
        """Descriptions of what is in flight."""
        for load in self.loads.values():
            if not load.phase.has_ended:
                yield f"a load that is {load.phase.value}"
        host = self.snapshot().host if self.has_snapshot else None
        for transfer in host.transfers if host is not None else ():
            yield f"a {transfer.kind.value}"
        if self.config.host is not None and self.config.host.executor is ExecutorKind.STEPPED:
            yield from (f"a pending {one.kind.value}" for one in self.adapter.pending())
        if self.config.storage is not None and self.config.storage.executor is ExecutorKind.STEPPED:
            yield from (f"a pending {one.kind.value}" for one in self.adapter.pending_storage())

    def _pending(self, ticket: Handle) -> PendingTransfer | None:
        return next((one for one in self.pending() if one.ticket == ticket), None)

    def _move(self, verb: str, act: Callable[[], None]) -> None:
        before = _resident(self.snapshot()) if self.has_snapshot else None
        act()
        if before is not None and _resident(self.snapshot()) != before:
            raise violation("FLOW-2", verb, "residency unchanged until a step applies the transfer", "a change")

    def _require_end(self, verb: str, ticket: Handle) -> None:
        if self._pending(ticket) is not None:
            raise violation("FLOW-4", verb, "a transfer that has ended", "a pending one")


def _resident(snapshot: Snapshot) -> list[list[bytes | None]]:
    """The slots of every node on every tier, as comparable values."""
    views: list[NodeView | HostNodeView] = [*snapshot.nodes]
    views += snapshot.host.nodes if snapshot.host is not None else ()
    return [[None if slots is None else slots.tobytes() for slots in view.slots.values()] for view in views]
