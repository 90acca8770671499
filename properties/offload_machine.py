"""OffloadMachine: requests over a cache of chunks beside the device, whose transfers move, end and fail at any time."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import multiple, rule

from hicache.config import CacheConfig
from hicache.testing.adapter import Admission
from hicache.testing.models.tree import ExpectedMatch
from hicache.types import Component, Key, Namespace, Tier

from .request_machine import FEW_PAGES, REQUEST_TAIL, RequestVerbs
from .small_caches import NAMESPACE, USED, geometric, small_geometries, steps_transfers

PLACE = st.integers(0, 9)
"""Which of several, counted from the first and around."""


class OffloadMachine(RequestVerbs):
    """The verbs of requests, and the transfers between them.

    `waiting`: the numbers of requests that wait for a retrieval.
    """

    requests = RequestVerbs.requests

    def __init__(self) -> None:
        super().__init__()
        self.waiting: set[int] = set()

    def caches(self) -> st.SearchStrategy[CacheConfig]:
        listed = geometric(self.adapter_type.configurations() or (), self.components, self.sidecars)
        return small_geometries([config for config in listed if steps_transfers(config)])

    def opened(self, data: st.DataObject) -> None:
        prompts: list[tuple[list[int], Namespace]] = data.draw(USED, label="prompts that came before")
        for pages, namespace in prompts:
            self.serve(pages, 1, namespace)

    @rule(target=requests, pages=FEW_PAGES, tail=REQUEST_TAIL, namespace=NAMESPACE)
    def serve(self, pages: list[int], tail: int, namespace: Namespace) -> object:
        """Admit a prompt, compute it in full and end it, and complete all transfers."""
        number = self.start(self.key(pages, tail, namespace))
        self.driver.drain()
        if number is not None and self.is_ready(number):
            self.end(number, is_finished=True)
        self.driver.drain()
        self.sync()
        return multiple() if number is None else number

    admit_equal = rule(target=requests, number=requests)(RequestVerbs.admit_equal)

    @rule(target=requests, pages=FEW_PAGES, tail=REQUEST_TAIL, namespace=NAMESPACE)
    def admit(self, pages: list[int], tail: int, namespace: Namespace) -> object:
        return super().admit(pages, tail, namespace)

    @rule(number=requests)
    def finish(self, number: int) -> None:
        super().finish(number)

    @rule(place=PLACE, units=st.integers(1, 3))
    def move(self, place: int, units: int) -> None:
        """Copy layers of a transfer, as many as it has left at most."""
        pending = self.driver.pending()
        if pending:
            one = pending[place % len(pending)]
            for _ in range(min(units, one.units - one.units_done)):
                self.driver.advance(one.ticket)

    @rule(place=PLACE, parts=st.integers(0, 2))
    def fail(self, place: int, parts: int) -> None:
        """End a transfer of which only the first parts arrive."""
        pending = self.driver.pending()
        if pending:
            one = pending[place % len(pending)]
            self.driver.fail(one.ticket, min(parts, one.parts - 1))

    @rule()
    def apply(self) -> None:
        """Apply what has ended, and let requests go on."""
        self.driver.step()
        self.sync()
        for number in sorted(self.waiting):
            self.is_ready(number)

    # Overridden hooks.

    def is_ready(self, number: int) -> bool:
        if number not in self.handles:
            return False
        if number in self.waiting:
            admission = self.driver.resume(self.handles[number])
            if admission is None:
                return False
            self.computed[number] = admission.cached_tokens
            self.waiting.discard(number)
        return True

    def ask(self, key: Key) -> tuple[ExpectedMatch, Admission | None]:
        known, admission = super().ask(key)
        if admission is None and not self.handles:
            # When nothing else runs, only transfers under way can hold the slots that it needs.
            self.driver.drain()
            known, admission = super().ask(key)
        if admission is not None and admission.loading:
            self.waiting.add(len(self.keys))
        return known, admission

    def end(self, number: int, is_finished: bool) -> None:
        self.waiting.discard(number)
        super().end(number, is_finished)

    def give_back(self) -> None:
        """Also end all transfers: every slot is free, or free to evict on the host (FLOW-7)."""
        super().give_back()
        self.driver.drain()
        assert self.config.host is not None, "a cache of chunks has a host"
        for tier, capacity in (
            (Tier.DEVICE, self.config.capacity_tokens),
            (Tier.HOST, self.config.host.capacity_tokens),
        ):
            sizes = self.driver.sizes(tier)[Component.FULL]
            assert sizes.free + sizes.evictable == capacity[Component.FULL], (
                f"FLOW-7: nothing runs: expected {capacity[Component.FULL]} slots of the {tier.value} free or "
                f"evictable, got {sizes}"
            )
