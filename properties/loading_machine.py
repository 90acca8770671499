"""LoadingMachine: requests on two tiers. They wait for loads, resume with or without the loaded data, or abort."""

from __future__ import annotations

from functools import partial

from hypothesis import strategies as st
from hypothesis.stateful import multiple, rule

from hicache.testing.adapter import Admission, Capability
from hicache.testing.models.tree import ExpectedMatch
from hicache.testing.snapshot import Snapshot
from hicache.types import Component, Key, Namespace, Tier

from .loads import loads_of
from .request_machine import REQUEST_TAIL, RequestVerbs
from .situation import Situation
from .small_caches import USED
from .tier_machine import (
    ACTIONS,
    COMPONENT,
    EVICTED_PAGES,
    FAILING,
    PLACE,
    SOON,
    TIER,
    DrawnAction,
    TierMachine,
    pick,
)

FULL = Component.FULL.value


class LoadingMachine(TierMachine, RequestVerbs):
    """The verbs of requests and of transfers. `anchors`: the device hit of each waiting request.

    `maybe_failed`: the requests whose load may fail.
    """

    requests = RequestVerbs.requests

    def __init__(self) -> None:
        super().__init__()
        self.anchors: dict[int, int] = {}
        self.maybe_failed: set[int] = set()
        self.has_failure = False

    def opened(self, data: st.DataObject) -> None:
        super().opened(data)
        prompts: list[tuple[list[int], Namespace]] = data.draw(USED, label="prompts that came before")
        for pages, namespace in prompts * (1 + self.host.selective_hits):
            number = self.start(self.key(pages, 0, namespace))
            if number is not None and self.is_ready(number):
                self.end(number, is_finished=True)
        self.drain()
        self.evict(Tier.DEVICE, FULL, data.draw(st.sampled_from([8, 1, 2, 0]), label="pages evicted since"), 0)

    # Rules, beside those of all requests.

    pass_time = rule(actions=ACTIONS)(TierMachine.pass_time)
    evict = rule(tier=TIER, component=COMPONENT, pages=EVICTED_PAGES, failing=FAILING)(TierMachine.evict)

    @rule(target=requests, place=PLACE, tail=REQUEST_TAIL, pressure=st.booleans(), soon=SOON)
    def admit_again(self, place: int, tail: int, pressure: bool, soon: list[DrawnAction]) -> object:
        """A request repeats an earlier prompt and extends it. `pressure`: the device evicts first."""
        if pressure:
            self.evict(Tier.DEVICE, FULL, 8, 0)
        if not self._loadable():
            self.drop_device_copy()
        earlier = pick(self._loadable() or list(self.keys.values()), place)
        if earlier is None:
            return multiple()
        number = self.start(self.driver.key([*earlier.tokens.tolist(), *range(tail)], earlier.namespace))
        self.pass_time(soon)
        return multiple() if number is None else number

    # Overridden hooks.

    def observe(self, snapshot: Snapshot) -> None:
        super().observe(snapshot)
        self.has_failure &= bool(loads_of(snapshot))

    def check_waiting(self, place: int) -> None:
        number = pick(list(self.anchors), place)
        if number is None:
            return
        if place % 2 and Capability.REQUEST_LAYERS in self.adapter_type.capabilities:
            self._compute_early(number)
        admission = self.driver.resume(self.handles[number])
        self.sync()
        if admission is not None:
            self._went_on(number, admission)
        elif not self._is_loading():
            assert number in self.maybe_failed, "FLOW-10: no transfer failed: expected the request to resume"
            # It may fit only with its hit: of the SWA and MAMBA data of a hit, one window and one state are loaded.
            has_room = len(self.handles) == 1 and self._fits_empty(self.keys[number])
            assert not has_room, "REQ-5: nothing else runs: expected slots for the pages that were not loaded"

    def abandon_waiting(self, place: int) -> None:
        number = pick(list(self.anchors), place)
        if number is not None:
            self.end(number, is_finished=False)

    def load_failed(self) -> None:
        self.has_failure = True
        self.maybe_failed.update(self.anchors)

    def ask(self, key: Key) -> tuple[ExpectedMatch, Admission | None]:
        known, admission = super().ask(key)
        if admission is not None or self.handles:
            return known, admission
        # When nothing else runs, only transfers under way can hold the slots that it needs.
        self.drain()
        return super().ask(key)

    def require_cached(self, number: int, known: ExpectedMatch, admission: Admission) -> None:
        given = admission.cached_tokens
        if admission.loading:
            assert given == known.best > known.anchor, (
                f"FLOW-10: {known} was found: expected a load up to {known.best}, got {given}"
            )
            self.anchors[number] = known.anchor
            if self.has_failure:
                self.maybe_failed.add(number)
            return
        # With no other request that could free slots, a request may be admitted without its hit.
        allowed = {known.anchor} if self.handles else {known.anchor, 0}
        assert given in allowed, f"HOST-5: {known} was found: expected cached tokens in {allowed}, got {given}"

    def is_ready(self, number: int) -> bool:
        """Whether a request runs and waits for no load. A waiting request can only be aborted."""
        if number in self.anchors:
            self.refuses(partial(self.adapter.finish, self.handles[number]))
            self.refuses(partial(self.adapter.checkpoint, self.handles[number], len(self.keys[number].tokens)))
            return False
        return super().is_ready(number)

    def end(self, number: int, is_finished: bool) -> None:
        if self.anchors.pop(number, None) is not None:
            self.record(Situation.REQUEST_ABORTED)
        super().end(number, is_finished)

    def give_back(self) -> None:
        """Abort every second request, and finish the others after their loads have ended."""
        for number in list(self.handles)[1::2]:
            self.end(number, is_finished=False)
        self.drain()
        for _ in list(self.anchors):
            self.check_waiting(0)
        for number in list(self.handles):
            self.end(number, is_finished=number not in self.anchors)
        self.drain()
        super().give_back()
        self.require_nothing_held()

    # Internal.

    def _compute_early(self, number: int) -> None:
        """Compute a request while it loads, from all layers of its prefix, if it can already read them."""
        request, pools = self.handles[number], [*self.driver.contents.prefix_pools]
        pools += self.driver.contents.state_pools
        last = {pool: self.adapter.layers(pool) - 1 for pool in pools if self.adapter.layers(pool)}
        # Failures that were asked for an eviction are left if it waited for no transfer. They are for no reader's wait.
        self.fail_waits(0)
        if all(self.driver.wait_request_layer(request, pool, layer) for pool, layer in last.items()):
            self.driver.compute_early(request)

    def _went_on(self, number: int, admission: Admission) -> None:
        expected, least = self.computed[number], self.anchors.pop(number)
        given = admission.cached_tokens
        if given < expected:
            assert number in self.maybe_failed, (
                f"FLOW-10: nothing failed: expected {expected} cached tokens, got {given}"
            )
            assert given >= least, (
                f"FLOW-3: expected at least the {least} tokens that were locked on the device, got {given}"
            )
            self.record(Situation.REQUEST_FELL_BACK)
        else:
            self.record(Situation.REQUEST_RESUMED)
        self.computed[number] = given

    def _loadable(self) -> list[Key]:
        """The prompts that came before of which the host has more than the device."""
        return [key for key in self.keys.values() if any(self.model.expected_match(key).host_hits.values())]

    def _is_loading(self) -> bool:
        return bool(loads_of(self.driver.snapshot()))
