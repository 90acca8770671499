"""TransferVerbs: lets transfers go on, step by step where a test may move them, and reads layers as they arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from hicache.config import ExecutorKind
from hicache.testing.driving.host import HostTierVerbs
from hicache.testing.driving.loading import Loading
from hicache.testing.host_verbs import PendingTransfer
from hicache.testing.snapshot import HostNodeView, NodeView, Snapshot
from hicache.testing.violation import violation
from hicache.types import Handle, Pool, TransferPhase


class TransferVerbs(HostTierVerbs):
    """Bytes may arrive at any moment, but what is resident changes only where a transfer is taken over."""

    def step(self) -> None:
        """Take over what has ended, and start what is queued."""
        self.adapter.step()
        self._look_at_loads()
        self.verb_done()

    def drain(self) -> None:
        """Let all that is under way end, and take it over."""
        self.adapter.drain()
        self._look_at_loads()
        waiting = list(self._waiting())
        if waiting:
            raise violation("FLOW-4", "drain", "nothing under way", waiting)
        self.verb_done()

    def pending(self) -> Sequence[PendingTransfer]:
        """The transfers that a test may move, the oldest first."""
        pending = self.adapter.pending()
        for one in pending:
            if one.parts < 1 or not 0 <= one.layers_done <= one.layers:
                raise violation("FLOW-2", "pending", "one part or more, and no more layers than there are", one)
        return pending

    def advance(self, ticket: Handle) -> None:
        """Move one more layer of a pending transfer."""
        before = self._pending(ticket)
        self._move("advance", lambda: self.adapter.advance(ticket))
        after = self._pending(ticket)
        if before is not None and after is not None and after.layers_done != before.layers_done + 1:
            raise violation("FLOW-2", "advance", f"{before.layers_done + 1} layers", f"{after.layers_done} layers")
        self.verb_done()

    def complete(self, ticket: Handle) -> None:
        """Move all that is left of a pending transfer."""
        self._move("complete", lambda: self.adapter.complete(ticket))
        self._require_end("complete", ticket)
        self.verb_done()

    def fail(self, ticket: Handle, parts_done: int) -> None:
        """End a pending transfer after its first parts; the rest does not arrive."""
        self.failures += 1
        self._move("fail", lambda: self.adapter.fail(ticket, parts_done))
        self._require_end("fail", ticket)
        self.verb_done()

    def complete_all(self) -> None:
        """Move all pending transfers to their end, the oldest first, and take them over."""
        for one in self.pending():
            self.complete(one.ticket)
        self.step()

    def layer_ready(self, ticket: Handle, pool: Pool, layer: int) -> bool:
        """Whether what a load brings may be read in one layer of one pool."""
        return self.adapter.layer_ready(ticket, pool, layer)

    def read_ready_layers(self, ticket: Handle) -> Mapping[Pool, int]:
        """Read the whole prefix of a load in each layer that may be read, and in no other; returns how many, by pool.

        Raises InvariantError when bytes are wrong (HOST-6), when a layer may be read no more, or when the load has
        ended and a layer of the stack may not be read (HOST-9). Nothing is read of a load that failed.
        """
        load, phase = self.loads[id(ticket)], self.load_phase(ticket)
        if phase is TransferPhase.FAILED:
            return {}
        for pool, read in self._readers(load).items():
            layers = range(self.adapter.layers(pool))
            ready = frozenset(layer for layer in layers if self.adapter.layer_ready(ticket, pool, layer))
            load.read(pool, ready)
            if phase is TransferPhase.DONE and len(ready) < len(layers):
                raise violation("HOST-9", f"layers of {pool.value} after a load", sorted(layers), sorted(ready))
            for layer in sorted(ready):
                read(layer)
        return {pool: len(ready) for pool, ready in load.ready.items()}

    def _readers(self, load: Loading) -> dict[Pool, Callable[[int], None]]:
        """What reads one layer of each pool."""
        readers: dict[Pool, Callable[[int], None]] = {}
        for pool in self.contents.prefix_pools:
            readers[pool] = partial(self.contents.verify_layer, pool, load.key, load.slots)
        state = self._state_of(load.key) if self._has_states and self.can_look else None
        if state is not None:
            readers[Pool.MAMBA] = partial(self.contents.verify_state_layer, load.key, state)
        return readers

    def _look_at_loads(self) -> None:
        for load in self.loads.values():
            load.look(self.adapter.load_phase(load.ticket))

    def _waiting(self) -> Iterator[str]:
        """What is under way, in words."""
        for load in self.loads.values():
            if not load.phase.has_ended:
                yield f"a load that is {load.phase.value}"
        host = self.snapshot().host if self.can_look else None
        for transfer in host.transfers if host is not None else ():
            yield f"a {transfer.kind.value}"
        if self.config.host is not None and self.config.host.executor is ExecutorKind.STEPPED:
            yield from (f"a pending {one.kind.value}" for one in self.adapter.pending())
        if self.config.storage is not None and self.config.storage.executor is ExecutorKind.STEPPED:
            yield from (f"a pending {one.kind.value}" for one in self.adapter.pending_storage())

    def _pending(self, ticket: Handle) -> PendingTransfer | None:
        return next((one for one in self.pending() if one.ticket == ticket), None)

    def _move(self, verb: str, act: Callable[[], None]) -> None:
        before = _resident(self.snapshot()) if self.can_look else None
        act()
        if before is not None and _resident(self.snapshot()) != before:
            raise violation("FLOW-2", verb, "what is resident to stay as it was until it is taken over", "a change")

    def _require_end(self, verb: str, ticket: Handle) -> None:
        if self._pending(ticket) is not None:
            raise violation("FLOW-4", verb, "a transfer that has ended", "one that is still pending")


def _resident(snapshot: Snapshot) -> list[list[bytes | None]]:
    """The slots of every node on every tier, as values that can be compared."""
    views: list[NodeView | HostNodeView] = [*snapshot.nodes]
    views += snapshot.host.nodes if snapshot.host is not None else ()
    return [[None if slots is None else slots.tobytes() for slots in view.slots.values()] for view in views]
