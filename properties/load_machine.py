"""LoadMachine: what the host has comes back: who waits for it gets what was found, once, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import rule

from hicache.testing.driving.prompts import cut
from hicache.testing.host_verbs import PendingTransfer
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

from .prompt_machine import FULL, PromptMachine
from .situation import Situation
from .ticket_book import Ticket, TicketBook
from .tier_machine import PLACE, SOON, Instant, pick


class LoadMachine(PromptMachine):
    """Keeps a book of tickets. `outdated`: calls that the cache must refuse. `readers`: receipts of who reads now."""

    def __init__(self) -> None:
        super().__init__()
        self.tickets = TicketBook()
        self.outdated: list[Callable[[], object]] = []
        self.readers: list[Handle] = []

    @rule(
        place=PLACE,
        pages=st.integers(1, 6),
        quota=st.sampled_from([None, None, None, 1, 0]),
        pressed=st.booleans(),
        soon=SOON,
    )
    def load_back(self, place: int, pages: int, quota: int | None, pressed: bool, soon: list[Instant]) -> None:
        """Somebody asks for what the host has of a prompt, which may have left the device just now."""
        if pressed:
            self.evict(Tier.DEVICE, FULL, 8, 0)
        if not self._loadable(pages):
            self.strand()
        key = pick(self._loadable(pages), place) or self.earlier(place, pages)
        found, expected = self.find(key)
        tokens = None if quota is None else quota * self.config.page_size
        before = self.driver.snapshot()
        load = self.driver.load_back(key, found, quota=tokens)
        self.sync()
        self._require_answer(expected, tokens, before, load)
        if load is None:
            self.reached(Situation.LOAD_REFUSED)
            return
        self.tickets.granted(load.ticket, found.best_match, cut(key, expected.best, self.config), load.indices)
        self._require_share(before, expected)
        self.pass_time(soon)

    # For those who inherit.

    def sync(self) -> None:
        super().sync()
        self.tickets.looked(bool(loads_of(self.driver.snapshot())))

    def moved(self, one: PendingTransfer) -> None:
        for ticket in self.tickets.waiting if one.kind is TransferKind.LOAD else ():
            ready = self.driver.read_ready_layers(ticket.ticket)
            if any(0 < count < self.adapter.layers(pool) for pool, count in ready.items()):
                self.reached(Situation.LAYERS_READ)

    def look_after(self, place: int) -> None:
        ticket = pick(self.tickets.waiting, place)
        if ticket is None:
            return
        if self.driver.load_phase(ticket.ticket).has_ended:
            self.claim(ticket)
        else:
            self.refuses(partial(self.adapter.claim, ticket.ticket))

    def give_up(self, place: int) -> None:
        ticket = pick(self.tickets.waiting, place)
        if ticket is not None:
            self.abandon(ticket)

    def load_failed(self) -> None:
        self.tickets.failed()

    def claim(self, ticket: Ticket) -> None:
        """Take over a load that has ended. Where it failed, there was a reason."""
        if self.driver.load_phase(ticket.ticket) is TransferPhase.DONE:
            self._take_over(ticket)
            self.reached(Situation.LOAD_DELIVERED)
        else:
            assert ticket.may_fail, f"FLOW-10: the load of {ticket.key} failed, though no transfer of it did"
            self.driver.claim(ticket.ticket)
            self.reached(Situation.LOAD_FAILED)
        self.sync()
        self.forget(ticket)

    def abandon(self, ticket: Ticket) -> None:
        """Nobody waits for a load any more."""
        if not self.driver.load_phase(ticket.ticket).has_ended:
            self.reached(Situation.LOAD_ABANDONED)
        self.driver.abandon(ticket.ticket)
        self.sync()
        self.forget(ticket)

    def forget(self, ticket: Ticket) -> None:
        """It was claimed or abandoned, or is of an old life: from now on it is refused (FLOW-4)."""
        self.tickets.waiting.remove(ticket)
        verbs = (self.adapter.claim, self.adapter.abandon, self.adapter.load_phase)
        self.outdated += [partial(verb, ticket.ticket) for verb in verbs]

    # Inside.

    def _loadable(self, pages: int) -> list[Key]:
        """The prompts that came before of which the host has more than the device."""
        keys = [self.earlier(other, pages) for other in range(len(self.prompts))]
        return [key for key in keys if any(self.model.expected_match(key).host_hits.values())]

    def _require_answer(
        self, expected: ExpectedMatch, quota: int | None, before: Snapshot, load: LoadBack | None
    ) -> None:
        """FLOW-10: a load is of all that was found. HOST-5: whether it is granted, where that can be told."""
        if load is not None:
            promised = expected.anchor + len(load.indices)
            assert promised == expected.best, f"FLOW-10: {expected} was found, {promised} elements are promised"
        if loads_of(before):
            return
        full = expected.host_hits[FULL]
        is_too_little, is_too_much = 0 < full < self.host.load_back_threshold_tokens, quota is not None and full > quota
        is_wanted = any(expected.host_hits.values()) and not is_too_little and not is_too_much
        has_room = all(len(before.pools[c].free) >= tokens for c, tokens in expected.host_hits.items())
        asked = f"a load of {expected} with a quota of {quota} and {self.host}"
        assert is_wanted or load is None, f"HOST-5: {asked} was granted"
        assert load is not None or not is_wanted or not has_room, f"HOST-5: {asked} was refused, and there is room"

    def _require_share(self, before: Snapshot, expected: ExpectedMatch) -> None:
        """FLOW-6: nothing is loaded twice at a time. What a load just began to fill is spoilt: only a copy mends it."""
        self.reached(Situation.LOAD if expected.host_hits[FULL] else Situation.LOAD_OF_OTHERS)
        earlier, loads = loads_of(before), loads_of(self.driver.snapshot())
        for component in self.components:
            sources = _joined([load.host for load in loads], component)
            assert len(np.unique(sources)) == len(sources), f"FLOW-6: {component} is loaded twice at a time: {sources}"
            known, targets = (_joined([load.device for load in several], component) for several in (earlier, loads))
            begun = np.setdiff1d(targets, known)
            self.driver.contents.overwrite(component, begun)
            if len(begun) < expected.host_hits[component]:
                self.reached(Situation.LOAD_SHARED)

    def _take_over(self, ticket: Ticket) -> None:
        """FLOW-10: what was promised is there, protected until it is locked anew, at the slots that the claim says."""
        self.readers.append(self.driver.lock(ticket.node))
        found, _ = self.find(ticket.key)
        promised = self.driver.aligned(ticket.key)
        matched = len(found.device_indices)
        assert matched == promised, f"FLOW-10: {promised} elements were promised, {matched} are on the device"
        claimed = self.driver.claim(ticket.ticket)
        expected = found.device_indices[promised - len(ticket.indices) :]
        assert claimed is not None, "FLOW-4: a load that is done can be claimed"
        assert claimed.tolist() == expected.tolist(), f"FLOW-10: the tree has {expected}, claimed were {claimed}"


def loads_of(snapshot: Snapshot) -> list[TransferView]:
    """The loads under way."""
    transfers = () if snapshot.host is None else snapshot.host.transfers
    return [one for one in transfers if one.kind is TransferKind.LOAD]


def _joined(ends: Sequence[Mapping[str, Slots]], component: str) -> Slots:
    slots = [end[component] for end in ends if component in end]
    return np.concatenate(slots) if slots else NO_SLOTS
