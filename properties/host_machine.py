"""HostMachine: calls the verbs of a scheduler in any order on two tiers, and compares the answers with the oracle."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial

from hypothesis import strategies as st
from hypothesis.stateful import rule

from hicache.types import Component, Handle, Key, Tier

from .load_machine import LoadMachine
from .load_tickets import LoadTickets
from .prompt_machine import FULL, Prompt
from .situation import Situation
from .small_caches import USED
from .tier_machine import PLACE, pick


class Hold(str, Enum):
    """What a caller may hold."""

    READER = "a prefix on the device, locked"
    HOST_READER = "a prefix on the host, locked"
    SLOTS = "slots"
    STATE = "a slot for a state"


class HostMachine(LoadMachine):
    """Adds locks on both tiers, allocations that callers hold, and resets."""

    def __init__(self) -> None:
        super().__init__()
        self.host_receipts: list[Handle] = []
        self.held: list[Callable[[], None]] = []

    @rule(hold=st.sampled_from(Hold), place=PLACE, pages=st.integers(1, 6))
    def hold(self, hold: Hold, place: int, pages: int) -> None:
        """A caller locks what it found on a tier, or allocates slots or a state."""
        if hold is Hold.READER:
            self._read(self.earlier(place, pages))
        elif hold is Hold.HOST_READER:
            found, _ = self.find(self.earlier(place, pages))
            self.host_receipts.append(self.driver.lock_host(found.best_match))
        elif hold is Hold.SLOTS and (slots := self.take_slots(pages * self.config.page_size)) is not None:
            self.held.append(partial(self.driver.free, slots))
        elif hold is Hold.STATE and Component.MAMBA in self.components and (state := self.take_state()) is not None:
            self.held.append(partial(self.driver.free_state, state))
        self.sync()

    @rule(hold=st.sampled_from(Hold), place=PLACE)
    def let_go(self, hold: Hold, place: int) -> None:
        """A caller releases a lock, or frees what it allocated."""
        if hold is Hold.READER and self.readers:
            self._unlock(self.readers.pop(place % len(self.readers)), Tier.DEVICE)
        elif hold is Hold.HOST_READER and self.host_receipts:
            self._unlock(self.host_receipts.pop(place % len(self.host_receipts)), Tier.HOST)
        elif hold in (Hold.SLOTS, Hold.STATE) and self.held:
            self.held.pop(place % len(self.held))()

    @rule(prompts=USED)
    def reset(self, prompts: list[Prompt]) -> None:
        """Both tiers are emptied, and the cache is used anew. Receipts, tickets and handles from before are refused."""
        snapshot = self.driver.snapshot()
        if snapshot.host is not None and snapshot.host.transfers:
            self.record(Situation.RESET)
        self.fail_waits(0)
        self.driver.reset()
        self.outdated += [partial(self.adapter.unlock, receipt) for receipt in self.readers]
        self.outdated += [partial(self.adapter.unlock_host, receipt) for receipt in self.host_receipts]
        for ticket in list(self.tickets.waiting):
            self.forget(ticket)
            self.outdated.append(partial(self.adapter.load_back, ticket.node, quota=None))
        self.readers, self.host_receipts, self.tickets = [], [], LoadTickets()
        self.begin_epoch()
        self.sync()
        assert not self.driver.snapshot().nodes, "EVICT-9: nothing is left after a reset"
        self.use(prompts)

    @rule(place=PLACE)
    def repeat(self, place: int) -> None:
        """A caller uses a receipt, ticket or handle that is no longer valid."""
        call = pick(self.outdated, place)
        if call is not None:
            self.refuses(call)

    def give_back(self) -> None:
        """Abandon every second load, claim the others after a drain, and release everything that is held."""
        for ticket in self.tickets.waiting[1::2]:
            self.abandon(ticket)
        self.drain()
        for ticket in list(self.tickets.waiting):
            self.claim(ticket)
        for receipt in self.readers:
            self._unlock(receipt, Tier.DEVICE)
        for receipt in self.host_receipts:
            self._unlock(receipt, Tier.HOST)
        for give_back in self.held:
            give_back()
        self.require_nothing_held()

    def _read(self, key: Key) -> None:
        """Lock a key on the device. A node on the host alone cannot be locked there."""
        found, expected = self.find(key)
        self.readers.append(self.driver.lock(found.device_anchor))
        if expected.host_hits[FULL]:
            self.refuses(partial(self.adapter.lock, found.best_match))

    def _unlock(self, receipt: Handle, tier: Tier) -> None:
        if tier is Tier.DEVICE:
            self.driver.unlock(receipt)
        else:
            self.driver.unlock_host(receipt)
        self.sync()
        self.outdated += [partial(verb, receipt) for verb in (self.adapter.unlock, self.adapter.unlock_host)]
