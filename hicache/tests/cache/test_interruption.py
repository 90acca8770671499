"""A verb that is interrupted at some line is undone, or the cache says that it must be reset; no slot is ever lost.

A second thread that calls a verb meanwhile is refused.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import isfunction
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import hicache
from hicache import CacheConfig, ExecutorKind, HostConfig, RequestManager, StorageConfig, UnifiedRadixCache
from hicache.clock import VirtualClock
from hicache.errors import InterruptedVerbError, OverlapError, RequestError, SlotError
from hicache.events import residency
from hicache.runtime import Runtime
from hicache.testing.hybrid_model import TINY_MODEL
from hicache.types import NO_SLOTS, Slots, Tier, Tokens

PAGE = 4
SIZES = {"full": 16 * PAGE, "swa": 16 * PAGE, "mamba": 6}
SOURCE = str(Path(hicache.__file__).parent)
NOT_INTERRUPTED = tuple(str(Path(SOURCE) / name) for name in ("tests", "testing", "storage"))
"""Besides tests: backends are called on threads of their own. Here steppers call them."""


def prompt(first: int, pages: int) -> Tokens:
    """Tokens that no other prompt here has."""
    return np.arange(first, first + pages * PAGE, dtype=np.int32)


FIRST, SECOND, THIRD = prompt(0, 4), prompt(100, 4), np.concatenate((prompt(0, 2), prompt(200, 2)))
ONE_PAGE_EACH = [prompt(1000 * number, 1) for number in range(SIZES["mamba"])]


class CountingClock(VirtualClock):
    """Advances by a second at each call of `now`, so that a verb executes the same lines in each run."""

    def now(self) -> float:
        self.advance(1.0)
        return super().now()


def opened() -> UnifiedRadixCache:
    """Three components on three tiers, with steppers in the place of threads."""
    config = CacheConfig(
        components=("full", "swa", "mamba"),
        page_size=PAGE,
        capacity_tokens=SIZES,
        sliding_window_size=PAGE,
        mamba_chunk_size=PAGE,
        model=TINY_MODEL,
        events=True,
        host=HostConfig(SIZES, executor=ExecutorKind.STEPPED, load_back_threshold_tokens=0),
        storage=StorageConfig("memory", model="tiny", prefetch_threshold=0, executor=ExecutorKind.STEPPED),
    )
    return UnifiedRadixCache.open(config, replace(Runtime.of(config), clock=CountingClock()))


def own_slots(cache: UnifiedRadixCache) -> Slots:
    """Allocate slots for a prompt of four pages."""
    slots = cache.allocate(4 * PAGE)
    assert slots is not None, "there is room for a prompt"
    return slots


def holding(cache: UnifiedRadixCache, *prompts: Tokens) -> UnifiedRadixCache:
    """The cache, after prompts were inserted, each with its state."""
    for tokens in prompts:
        slots, state = cache.allocate(len(tokens)), cache.allocate_state()
        assert slots is not None, "there is room for each prompt"
        cache.insert(cache.key(tokens), slots, state)
    return cache


def backed_up(cache: UnifiedRadixCache, *prompts: Tokens) -> UnifiedRadixCache:
    """The cache, after prompts were inserted and backed up."""
    holding(cache, *prompts).drain()
    return cache


def demoted(cache: UnifiedRadixCache, *prompts: Tokens) -> UnifiedRadixCache:
    """The cache, with prompts on the host alone."""
    backed_up(cache, *prompts)
    for component in cache.config.components:
        cache.evict(component, SIZES[component])
    return cache


def stored(cache: UnifiedRadixCache) -> UnifiedRadixCache:
    """The cache, with a prompt in storage alone."""
    backed_up(cache, FIRST).reset()
    return cache


def node_of(cache: UnifiedRadixCache) -> Any:
    """The node of the first prompt."""
    return cache.match(cache.key(FIRST)).best_match


def ticket_of(cache: UnifiedRadixCache) -> Any:
    """The ticket of a load-back of the first prompt that has not moved."""
    load = cache.load_back(node_of(demoted(cache, FIRST)))
    assert load is not None, "the prompt is on the host alone"
    return load.ticket


def fetched_by(cache: UnifiedRadixCache) -> Any:
    """A prefetch of the first prompt that has not moved."""
    operation = stored(cache).prefetch(cache.key(FIRST))
    assert operation is not None, "the prefetch is above the threshold"
    return operation


LINES_BEFORE_A_TURN = 4
"""At most. A verb that is interrupted there has not begun, and can be called again."""

Step = Callable[[], object]
Prepare = Callable[[UnifiedRadixCache], Step]


def inserting(cache: UnifiedRadixCache) -> Step:
    return partial(holding(cache, FIRST).insert, cache.key(THIRD), own_slots(cache), cache.allocate_state())


def claiming(cache: UnifiedRadixCache) -> Step:
    ticket = ticket_of(cache)
    cache.drain()
    return partial(cache.claim, ticket)


def draining(cache: UnifiedRadixCache) -> Step:
    ticket_of(cache)
    return holding(cache, SECOND).drain


def prefetched(cache: UnifiedRadixCache) -> Step:
    fetched_by(cache)
    return cache.drain


def checking_a_prefetch(cache: UnifiedRadixCache) -> Step:
    operation = fetched_by(cache)
    cache.step()
    return partial(cache.check_prefetch, operation)


def resetting(cache: UnifiedRadixCache) -> Step:
    ticket_of(cache)
    return cache.reset


def of_a_request(verb: str, *arguments: object) -> Prepare:
    """A verb of a request that is running."""

    def prepare(cache: UnifiedRadixCache) -> Step:
        requests = RequestManager(cache)
        request = requests.admit(FIRST)
        assert request is not None, "an empty cache has room"
        return partial(getattr(requests, verb), request, *arguments)

    return prepare


VERBS: Mapping[str, Prepare] = {
    "allocating": lambda cache: partial(backed_up(cache, FIRST, SECOND).allocate, 12 * PAGE),
    "freeing": lambda cache: partial(cache.free, own_slots(cache)),
    "releasing_a_window": lambda cache: partial(cache.release_window, own_slots(cache)),
    "matching": lambda cache: partial(holding(cache, FIRST).match, cache.key(THIRD)),
    "inserting": inserting,
    "locking": lambda cache: partial(cache.lock, node_of(backed_up(cache, FIRST))),
    "unlocking": lambda cache: partial(cache.unlock, cache.lock(node_of(holding(cache, FIRST)))),
    "locking_on_the_host": lambda cache: partial(cache.lock_host, node_of(demoted(cache, FIRST))),
    "evicting": lambda cache: partial(backed_up(cache, FIRST, THIRD).evict, "full", 6 * PAGE),
    "evicting_from_the_host": lambda cache: partial(demoted(cache, FIRST, THIRD).evict_host, "full", 6 * PAGE),
    "taking_a_state": lambda cache: backed_up(cache, *ONE_PAGE_EACH).allocate_state,
    "freeing_a_state": lambda cache: partial(cache.free_state, cache.allocate_state() or 0),
    "forking": lambda cache: partial(cache.fork_state, node_of(holding(cache, FIRST))),
    "loading": lambda cache: partial(cache.load_back, node_of(demoted(cache, FIRST))),
    "claiming": claiming,
    "abandoning": lambda cache: partial(cache.abandon, ticket_of(cache)),
    "stepping": lambda cache: holding(cache, FIRST).step,
    "draining": draining,
    "prefetching": lambda cache: partial(stored(cache).prefetch, cache.key(FIRST)),
    "prefetched": prefetched,
    "checking_a_prefetch": checking_a_prefetch,
    "resetting": resetting,
    "admitting": lambda cache: partial(RequestManager(holding(cache, FIRST)).admit, THIRD),
    "checkpointing": of_a_request("checkpoint", 2 * PAGE),
    "extending": of_a_request("extend", SECOND),
    "finishing": of_a_request("finish"),
}
"""By what is interrupted: prepares a cache, and gives the call."""


@dataclass(slots=True)
class Interruption:
    """KeyboardInterrupt at one line of the cache: the `at`-th that is reached. `reached`: the lines so far."""

    at: int
    reached: list[tuple[str, int]] = field(default_factory=list)

    def __enter__(self) -> Interruption:  # noqa: PYI034 - 3.10 has no Self
        # A finalizer that the garbage collector runs, such as that of a generator, would be traced too.
        gc.disable()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        gc.enable()

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(SOURCE) or name.startswith(NOT_INTERRUPTED):
            return None
        if event == "line":
            self.reached.append((name, frame.f_lineno))
            if len(self.reached) == self.at:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._trace


LINES = 40
"""At so many lines of each verb it is interrupted."""


def first_and_last(reached: list[tuple[str, int]]) -> list[int]:
    """The first or the last time that a line of code is reached, counted from 1: so many, evenly over the verb."""
    last = {line: at for at, line in enumerate(reached, start=1)}
    first = {line: at for at, line in reversed(list(enumerate(reached, start=1)))}
    found = sorted({*first.values(), *last.values()})
    return found[:: -(-len(found) // LINES)]


def require_all_free(cache: UnifiedRadixCache, what: str) -> None:
    """After a reset all slots of both tiers are free, and can be used."""
    for tier, sizes in ((Tier.DEVICE, cache.sizes()), (Tier.HOST, cache.host_sizes())):
        found = {name: (one.evictable, one.protected, one.free) for name, one in sizes.items()}
        expected = {name: (0, 0, SIZES[name]) for name in found}
        assert found == expected, f"{what}: (evictable, protected, free) on the {tier.value}: {expected}, got {found}"
    slots = cache.allocate(SIZES["full"])
    assert slots is not None, f"{what}: all slots can be allocated"
    assert len(np.unique(slots)) == SIZES["full"], f"{what}: each slot once, got {sorted(slots)}"
    cache.free(slots)
    demoted(cache, SECOND)
    assert cache.match(cache.key(SECOND)).host_hit_length == len(SECOND), f"{what}: a prompt is cached on the host"


@pytest.mark.parametrize("prepare", VERBS.values(), ids=VERBS)
def test_a_verb_that_is_interrupted_at_some_line_loses_no_slot(prepare: Prepare) -> None:
    with opened() as cache:
        call = prepare(cache)
        with Interruption(at=0) as whole:
            call()
    not_begun = 0
    for at in first_and_last(whole.reached):
        with opened() as cache:
            call = prepare(cache)
            with pytest.raises(KeyboardInterrupt), Interruption(at):
                call()
            if not cache.turn.is_interrupted:
                not_begun += 1
                call()
                continue
            with pytest.raises(InterruptedVerbError, match="was interrupted before its end: reset the cache"):
                cache.match(cache.key(FIRST))
            cache.reset()
            require_all_free(cache, f"interrupted at {whole.reached[at - 1]}, line {at} of {len(whole.reached)}")
    assert not_begun <= LINES_BEFORE_A_TURN, f"{not_begun} interruptions are not reported"


# Two threads.


def paused_in(call: Callable[[], object], function: str, inside: Callable[[], object]) -> None:
    """Call on a thread of its own, and do something here while that thread is in a function of the cache."""
    entered, go_on = threading.Event(), threading.Event()

    def trace(frame: FrameType, _: str, __: object) -> None:
        if frame.f_code.co_name == function and not entered.is_set():
            entered.set()
            go_on.wait()

    def work() -> None:
        sys.settrace(trace)
        call()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert entered.wait(timeout=60), f"the thread comes by {function}"
        inside()
    finally:
        go_on.set()
        thread.join()


def test_a_verb_that_overlaps_with_another_threads_is_refused() -> None:
    with opened() as cache:
        slots: list[Any] = []
        verbs: list[Callable[[], object]] = [
            lambda: cache.allocate(PAGE),
            lambda: cache.match(key),
            cache.step,
            cache.reset,
            cache.close,
            lambda: RequestManager(cache).admit(FIRST),
        ]
        key = cache.key(FIRST)

        def overlap() -> None:
            for verb in verbs:
                with pytest.raises(
                    OverlapError, match=r"thread \d+ is in allocate, and thread \d+ calls at the same time"
                ):
                    verb()

        paused_in(lambda: slots.append(cache.allocate(2 * PAGE)), "ensure_available", overlap)
        cache.free(slots[0])
        cache.reset()
        require_all_free(cache, "after refusals")


def test_threads_may_take_turns() -> None:
    with opened() as cache:
        slots: list[Any] = []
        for _ in range(3):
            thread = threading.Thread(target=lambda: slots.append(cache.allocate(PAGE)))
            thread.start()
            thread.join()
        cache.free(np.concatenate(slots))
        require_all_free(cache, "after turns")


def test_a_refused_argument_interrupts_nothing() -> None:
    with opened() as cache:
        for _ in range(2):
            with pytest.raises(SlotError):
                cache.free(np.array([0, 1, 2, 3]))
        cache.free(NO_SLOTS)


def test_an_unknown_argument_interrupts_nothing() -> None:
    with opened() as cache:
        for owner in (cache, RequestManager(cache)):
            methods = [name for name, one in vars(type(owner)).items() if isfunction(one) and not name.startswith("_")]
            assert methods, f"{type(owner).__name__} has verbs"
            for name in methods:
                with pytest.raises(TypeError, match="unexpected keyword argument 'tokns'"):
                    getattr(owner, name)(tokns=PAGE)
                assert not cache.turn.is_interrupted, f"{type(owner).__name__}.{name} with an unknown argument"
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            cache.match()  # type: ignore[call-arg]
        require_all_free(cache, "after unknown arguments")


def test_a_type_error_in_the_middle_of_a_verb_is_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise TypeError("in the middle")

    with opened() as cache:
        holding(cache, FIRST)
        monkeypatch.setattr(cache.turn, "release", broken)
        with pytest.raises(TypeError, match="in the middle"):
            cache.match(cache.key(FIRST))
        assert cache.turn.is_interrupted, "a TypeError that was raised below the call is an interruption"
        monkeypatch.undo()
        cache.reset()
        require_all_free(cache, "after a TypeError")


def test_a_cache_that_was_interrupted_can_be_closed() -> None:
    with opened() as cache:
        call = inserting(cache)
        with pytest.raises(KeyboardInterrupt), Interruption(at=30):
            call()
    cache.close()


def test_a_request_from_before_an_interruption_has_ended() -> None:
    with opened() as cache:
        requests = RequestManager(cache)
        request = requests.admit(FIRST)
        assert request is not None, "an empty cache has room"
        with pytest.raises(KeyboardInterrupt), Interruption(at=30):
            requests.admit(SECOND)
        with pytest.raises(InterruptedVerbError):
            requests.abort(request)
        cache.reset()
        others = cache.allocate(SIZES["full"])
        with pytest.raises(RequestError, match="has ended"):
            requests.abort(request)
        assert others is not None, "all slots are free after the reset"
        cache.free(others)
        require_all_free(cache, "after the request of an interrupted cache was refused")


def test_what_an_interrupted_cache_had_is_removed_by_events() -> None:
    with opened() as cache:
        backed_up(cache, FIRST)
        with pytest.raises(KeyboardInterrupt), Interruption(at=10):
            cache.step()
        cache.reset()
        left = {found for found in residency(cache.events.peek()) if found[0] is not Tier.STORAGE}
        assert not left, f"expected events that all was removed, left is {left}"
