"""LoadMachine: loads from the host. Each load delivers what its match found, once, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import rule

from hicache.testing.adapter import PendingTransfer
from hicache.testing.driving.prompts import cut
from hicache.testing.model import ExpectedMatch
from hicache.testing.snapshot import Snapshot, TransferView
from hicache.types import (
    NO_SLOTS,
    Handle,
    Key,
    LoadBack,
    Slots,
    Tier,
    TransferKind,
    TransferPhase,
)

from .load_tickets import ExpectedLoad, LoadTickets
from .prompt_machine import FULL, PromptMachine
from .situation import Situation
from .tier_machine import PLACE, SOON, DrawnAction, pick


class LoadMachine(PromptMachine):
    """Keeps the tickets of loads. `outdated`: calls that the cache must refuse. `readers`: receipts of device locks."""

    def __init__(self) -> None:
        super().__init__()
        self.tickets = LoadTickets()
        self.outdated: list[Callable[[], object]] = []
        self.readers: list[Handle] = []

    @rule(
        place=PLACE,
        pages=st.integers(1, 6),
        quota=st.sampled_from([None, None, None, 1, 0]),
        pressure=st.booleans(),
        soon=SOON,
    )
    def load_back(self, place: int, pages: int, quota: int | None, pressure: bool, soon: list[DrawnAction]) -> None:
        """A caller requests a load of a prompt. `pressure`: the device evicts first."""
        if pressure:
            self.evict(Tier.DEVICE, FULL, 8, 0)
        if not self._loadable(pages):
            self.drop_device_copy()
        key = pick(self._loadable(pages), place) or self.earlier(place, pages)
        found, expected = self.find(key)
        tokens = None if quota is None else quota * self.config.page_size
        before = self.driver.snapshot()
        load = self.driver.load_back(key, found, quota=tokens)
        self.sync()
        self._require_answer(expected, tokens, before, load)
        if load is None:
            self.record(Situation.LOAD_REFUSED)
            return
        self.tickets.granted(load.ticket, found.best_match, cut(key, expected.best, self.config), load.indices)
        self._require_share(before, expected)
        self.pass_time(soon)

    # Hooks for subclasses.

    def sync(self) -> None:
        super().sync()
        self.tickets.observe(bool(loads_of(self.driver.snapshot())))

    def moved(self, one: PendingTransfer) -> None:
        for ticket in self.tickets.waiting if one.kind is TransferKind.LOAD else ():
            ready = self.driver.read_ready_layers(ticket.ticket)
            if any(0 < count < self.adapter.layers(pool) for pool, count in ready.items()):
                self.record(Situation.LAYERS_READ)

    def check_waiting(self, place: int) -> None:
        ticket = pick(self.tickets.waiting, place)
        if ticket is None:
            return
        if self.driver.load_phase(ticket.ticket).has_ended:
            self.claim(ticket)
        else:
            self.refuses(partial(self.adapter.claim, ticket.ticket))

    def abandon_waiting(self, place: int) -> None:
        ticket = pick(self.tickets.waiting, place)
        if ticket is not None:
            self.abandon(ticket)

    def load_failed(self) -> None:
        self.tickets.failed()

    def claim(self, ticket: ExpectedLoad) -> None:
        """Claim a load that has ended. A load fails only if a transfer was made to fail."""
        if self.driver.load_phase(ticket.ticket) is TransferPhase.DONE:
            self._take_over(ticket)
            self.record(Situation.LOAD_DELIVERED)
        else:
            assert ticket.may_fail, (
                f"FLOW-10: no transfer failed: expected the load of {ticket.key} to be done, but it failed"
            )
            self.driver.claim(ticket.ticket)
            self.record(Situation.LOAD_FAILED)
        self.sync()
        self.forget(ticket)

    def abandon(self, ticket: ExpectedLoad) -> None:
        """Abandon a load."""
        if not self.driver.load_phase(ticket.ticket).has_ended:
            self.record(Situation.LOAD_ABANDONED)
        self.driver.abandon(ticket.ticket)
        self.sync()
        self.forget(ticket)

    def forget(self, ticket: ExpectedLoad) -> None:
        """The ticket was claimed or abandoned, or a reset came: from now on it is refused (FLOW-4)."""
        self.tickets.waiting.remove(ticket)
        verbs = (self.adapter.claim, self.adapter.abandon, self.adapter.load_phase)
        self.outdated += [partial(verb, ticket.ticket) for verb in verbs]

    # Inside.

    def _loadable(self, pages: int) -> list[Key]:
        """The earlier prompts that have data on the host alone."""
        keys = [self.earlier(other, pages) for other in range(len(self.prompts))]
        return [key for key in keys if any(self.model.expected_match(key).host_hits.values())]

    def _require_answer(
        self, expected: ExpectedMatch, quota: int | None, before: Snapshot, load: LoadBack | None
    ) -> None:
        """FLOW-10: a load covers all that was found. HOST-5: whether it is granted, where the oracle knows."""
        if load is not None:
            promised = expected.anchor + len(load.indices)
            assert promised == expected.best, (
                f"FLOW-10: {expected} was found: expected a load up to {expected.best} elements, got {promised}"
            )
        if loads_of(before):
            return
        full = expected.host_hits[FULL]
        is_too_little, is_too_much = 0 < full < self.host.load_back_threshold_tokens, quota is not None and full > quota
        is_wanted = any(expected.host_hits.values()) and not is_too_little and not is_too_much
        has_room = all(len(before.pools[c].free) >= tokens for c, tokens in expected.host_hits.items())
        asked = f"a load of {expected} with a quota of {quota} and {self.host}"
        assert is_wanted or load is None, f"HOST-5: expected {asked} to be refused, but it was granted"
        assert load is not None or not is_wanted or not has_room, (
            f"HOST-5: there is room: expected {asked} to be granted, but it was refused"
        )

    def _require_share(self, before: Snapshot, expected: ExpectedMatch) -> None:
        """FLOW-6: nothing is loaded twice at a time. The target slots are corrupted: only a copy makes them valid."""
        self.record(Situation.LOAD if expected.host_hits[FULL] else Situation.LOAD_OF_OTHERS)
        earlier, loads = loads_of(before), loads_of(self.driver.snapshot())
        for component in self.components:
            sources = _joined([load.host for load in loads], component)
            assert len(np.unique(sources)) == len(sources), (
                f"FLOW-6: expected each host slot of {component} to be loaded once at a time, got {sources}"
            )
            known, targets = (_joined([load.device for load in several], component) for several in (earlier, loads))
            begun = np.setdiff1d(targets, known)
            self.driver.contents.overwrite(component, begun)
            if len(begun) < expected.host_hits[component]:
                self.record(Situation.LOAD_SHARED)

    def _take_over(self, ticket: ExpectedLoad) -> None:
        """FLOW-10: the promised data is protected until it is locked, and is at the slots that the claim returns."""
        self.readers.append(self.driver.lock(ticket.node))
        found, _ = self.find(ticket.key)
        promised = self.driver.aligned(ticket.key)
        matched = len(found.device_indices)
        assert matched == promised, f"FLOW-10: expected the {promised} promised elements on the device, got {matched}"
        claimed = self.driver.claim(ticket.ticket)
        expected = found.device_indices[promised - len(ticket.indices) :]
        assert claimed is not None, "FLOW-4: the load is done: expected slots from its claim, got None"
        assert claimed.tolist() == expected.tolist(), (
            f"FLOW-10: expected the claim to return the tree's slots {expected}, got {claimed}"
        )


def loads_of(snapshot: Snapshot) -> list[TransferView]:
    """The loads under way."""
    transfers = () if snapshot.host is None else snapshot.host.transfers
    return [one for one in transfers if one.kind is TransferKind.LOAD]


def _joined(ends: Sequence[Mapping[str, Slots]], component: str) -> Slots:
    slots = [end[component] for end in ends if component in end]
    return np.concatenate(slots) if slots else NO_SLOTS
