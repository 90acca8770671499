"""STORE-12, STORE-16, FLOW-13: what is believed of a backend that lies, and what becomes of one that hangs or dies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hicache.config import ExecutorKind, WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.storage.misbehaving import BACKEND, GUARD_S, CallGate, Lie, Script, script
from hicache.types import Handle, Pool

from .scenario import Scenario
from .stored_prompts import OTHER, PAIR, PROMPT

LISTS: Mapping[str, Lie] = {
    "none": lambda _: None,
    "true": lambda _: True,
    "a-number": lambda keys: keys,
    "a-text": lambda keys: "x" * keys,
    "a-table": lambda keys: dict.fromkeys(range(keys), True),
    "an-array": lambda keys: np.ones(keys, dtype=np.bool_),
    "nones": lambda keys: [None] * keys,
    "ones": lambda keys: [1] * keys,
    "negative": lambda keys: [-1] * keys,
    "zeros": lambda keys: [0] * keys,
    "texts": lambda keys: ["err"] * keys,
    "bytes": lambda keys: [b""] * keys,
    "numpy-bools": lambda keys: [np.True_] * keys,
    "one-less": lambda keys: [True] * (keys - 1),
    "one-more": lambda keys: [True] * (keys + 1),
}
"""What `get` and `set` may give in the place of an answer, for so many keys."""

NUMBERS: Mapping[str, Lie] = {
    "none": lambda _: None,
    "true": lambda _: True,
    "a-text": str,
    "a-list": lambda keys: [keys],
    "a-float": float,
    "not-a-number": lambda _: float("nan"),
    "a-numpy-float": np.float64,
    "a-numpy-int": np.int64,
    "negative": lambda _: -1,
    "one-more": lambda keys: keys + 1,
    "huge": lambda _: 10**30,
}
"""What `exists` may give."""

FLAGS: Mapping[str, Lie] = {
    "none": lambda _: None,
    "one": lambda _: 1,
    "a-text": lambda _: "yes",
    "a-numpy-bool": lambda _: np.True_,
}
"""What `clear` may give."""


@contextmanager
def over_a_script(driver: Scenario, *, is_closed: bool = False, **changes: Any) -> Iterator[tuple[Scenario, Script]]:
    """A driver of an empty cache over the same store, whose backend follows a script. `changes`: of StorageConfig.

    `is_closed`: the test closes the cache.
    """
    with (
        script() as (name, told),
        driver.storage_variant(storage={**scripted(driver, name), **changes}, is_closed=is_closed) as other,
    ):
        try:
            yield other, told
        finally:
            # Before the cache is checked and closed: a cache that waits forever would do so here.
            told.behave()


def scripted(driver: Scenario, name: str) -> dict[str, Any]:
    """The fields of StorageConfig for the backend of a driver behind a script."""
    tier = driver.storage_config()
    options = {"inner": tier.backend, "inner_options": tier.extra.options, "script": name}
    return {"backend": BACKEND, "options": options}


@clause("STORE-12", "STORE-3", page_sizes=[16])
def test_pages_come_only_if_the_answer_is_true_itself(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    with over_a_script(driver) as (other, told):
        for name, lie in LISTS.items():
            told.lies["get"] = lie
            came, found = other.prefetch_pages(PROMPT), other.tier_hits(PROMPT)
            assert (came, found) == (0, (0, 0)), (
                f"STORE-12: get gave {name}: expected no page to come, {came} came, and {found} are found"
            )
        require_all_come(other, told)


@clause("STORE-12", "STORE-2", page_sizes=[16])
def test_a_prefix_is_in_storage_only_if_the_answer_is_a_number_of_its_pages(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    with over_a_script(driver) as (other, told):
        for name, lie in NUMBERS.items():
            told.lies["exists"] = lie
            came = other.prefetch_pages(PROMPT)
            assert came == 0, f"STORE-12: exists gave {name}: expected no page to come, {came} came"
        require_all_come(other, told)


@clause("STORE-12", "FETCH-9", "FLOW-12", page_sizes=[16])
def test_pages_are_stored_only_if_the_answer_is_true_itself(driver: Scenario) -> None:
    with over_a_script(driver) as (other, told):
        for name, lie in LISTS.items():
            told.lies["set"] = lie
            other.put_and_back_up(PAIR)
            other.evict_all()
            other.drain()
            told.lies.clear()
            other.put_pages(PAIR)
            other.evict_all()
            other.drain()
            there = driver.in_storage(PAIR)[Pool.KV]
            assert all(there), f"STORE-12: set gave {name}: expected {PAIR} to be stored again, got {there}"
            # Through the cache: it may remember what it has stored.
            assert other.clear_storage(), "FLOW-12: nothing is in flight: expected storage to be cleared"
            other.reset()


@clause("STORE-12", "FLOW-12", page_sizes=[16])
def test_storage_is_cleared_only_if_the_answer_is_true_itself(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    with over_a_script(driver) as (other, told):
        for name, lie in FLAGS.items():
            told.lies["clear"] = lie
            is_clear = other.clear_storage()
            assert is_clear is False, f"STORE-12: clear gave {name}: expected False, got {is_clear!r}"
        require_all_come(other, told)


def require_all_come(driver: Scenario, told: Script) -> None:
    """Nothing is lost by the lies before: the backend answers again, and all of the prompt comes."""
    told.lies.clear()
    came = driver.prefetch_pages(PROMPT)
    assert came == len(PROMPT), f"STORE-12: the backend answers again: expected {len(PROMPT)} pages, {came} came"


# STORE-16: a backend that has not accepted host memory cannot write to it after a call.

THROUGH = [WritePolicy.WRITE_THROUGH]


@contextmanager
def over_a_late_backend(driver: Scenario) -> Iterator[tuple[Scenario, Script]]:
    """A cache whose backend keeps the memory of each get, and has therefore not accepted that of the cache."""
    with script() as (name, told):
        told.kept = []
        with driver.storage_variant(storage=scripted(driver, name)) as other:
            yield other, told


@clause("STORE-16", "FLOW-1", needs=[Capability.DEADLINES], page_sizes=[16], write_policies=THROUGH)
def test_what_a_backend_writes_late_reaches_no_page_of_the_prompt(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    with over_a_late_backend(driver) as (other, told):
        came = other.prefetch_pages(PROMPT)
        assert came == len(PROMPT), f"STORE-16: the backend is right in time: expected {len(PROMPT)} pages, got {came}"
        assert told.write_late() >= len(PROMPT), "the backend was asked for all pages"
        # The bytes of all pages are compared after each verb.
        other.load(other.key_of(PROMPT))
        assert other.tier_hits(PROMPT) == (len(PROMPT), 0), "STORE-16: the prompt is loaded"


@clause("STORE-16", "FLOW-1", needs=[Capability.DEADLINES], page_sizes=[16], write_policies=THROUGH)
def test_what_a_backend_writes_late_reaches_nobody_elses_page(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    with over_a_late_backend(driver) as (other, told):
        other.prefetch_pages(PROMPT)
        other.reset()
        for first in range(10, 90, 3):
            other.put_and_back_up(range(first, first + 3))
            other.evict_all()
        assert told.write_late() >= len(PROMPT), "the backend was asked for all pages"
        last = range(88, 91)
        other.load(other.key_of(last))
        assert other.tier_hits(last) == (len(last), 0), "STORE-16: what came last is on the host, and is loaded"


# FLOW-13: a backend that does not answer is abandoned, and one that ends its thread has failed one call.


LIMIT_S = 3600.0
"""How long a call may take where the test moves the clock."""

SHORT_S = 0.5
"""The same where real time passes, and nothing but hanging calls takes any."""

VERBS = ("exists", "get", "set")

CLOCKED = [Capability.STEPPED_STORAGE, Capability.SNAPSHOT]


@contextmanager
def over_a_hanging_backend(
    driver: Scenario, verb: str, *, is_closed: bool = False
) -> Iterator[tuple[Scenario, CallGate, Handle | None]]:
    """A cache whose backend is in a call that does not end, for longer than it may; and the ticket of its prefetch."""
    driver.put_in_storage_alone(PROMPT)
    threaded = {"executor": ExecutorKind.THREADED, "answer_timeout_s": LIMIT_S}
    with over_a_script(driver, is_closed=is_closed, **threaded) as (other, told):
        gate = told.hang(verb)
        ticket = begin_call(other, verb)
        reach(other, gate.entered.is_set)
        other.advance_clock(2 * LIMIT_S)
        yield other, gate, ticket
        assert not gate.was_late, f"FLOW-13: {verb} hangs: expected no verb to wait for it"


def begin_call(driver: Scenario, verb: str) -> Handle | None:
    """Begin what makes the backend be called: a prefetch, which has a ticket, or the backup of a prompt."""
    if verb != "set":
        return driver.begin_prefetch(PROMPT)
    driver.put_pages(OTHER)
    driver.evict_all()
    return None


def reach(driver: Scenario, is_reached: Callable[[], bool]) -> None:
    """Step until something is so; the threads of the cache get time to do it."""
    deadline_s = time.monotonic() + GUARD_S
    while not is_reached():
        assert time.monotonic() < deadline_s, f"FLOW-13: expected it within {GUARD_S:g} s"
        driver.complete_all()
        driver.step()
        time.sleep(0.001)


def require_going_on(driver: Scenario, verb: str) -> None:
    """The cache works without storage, and memory that the backend may still use has no other owner."""
    shown = driver.storage_view()
    assert shown.abandoned is not None, f"FLOW-13: {verb} hangs: expected the backend to be shown as abandoned"
    assert not shown.fetches, f"FLOW-13: {verb} hangs: expected no prefetch to hold slots, got {shown.fetches}"
    assert driver.prefetch(driver.key_of(PROMPT)) is None, f"FLOW-13: {verb} hangs: expected no more prefetch"
    assert not driver.attach_storage(), f"FLOW-13: {verb} hangs: expected no other backend beside it"
    driver.put_on_host(PAIR)
    driver.load(driver.key_of(PAIR))
    assert driver.tier_hits(PAIR) == (len(PAIR), 0), f"FLOW-13: {verb} hangs: the host tier works without storage"


def require_given_back(driver: Scenario, gate: CallGate) -> None:
    """The backend answers at last: all that it used is free, and it can be attached again."""
    gate.open()
    reach(driver, lambda: driver.storage_view().abandoned is None)
    driver.reset()
    free, capacity = driver.free_host_slots(), driver.host_config.capacity_tokens
    assert free == capacity, f"FLOW-13: the backend has answered: of {capacity} host slots only {free} are free"
    assert driver.attach_storage(), "FLOW-13: the backend has answered: expected it to be attached again"
    came = driver.prefetch_pages(PROMPT)
    assert came == len(PROMPT), f"FLOW-13: the backend answers again: expected {len(PROMPT)} pages, {came} came"


@clause("FLOW-13", needs=CLOCKED, page_sizes=[16])
def test_a_drain_does_not_wait_for_a_backend_that_hangs(driver: Scenario) -> None:
    for verb in VERBS:
        with over_a_hanging_backend(driver, verb) as (other, gate, ticket):
            other.drain()
            came = 0 if ticket is None else other.prefetched_pages(ticket)
            assert came == 0, f"FLOW-13: {verb} hangs: expected no page to come, {came} came"
            require_going_on(other, verb)
            require_given_back(other, gate)


@clause("FLOW-13", "EVICT-9", needs=CLOCKED, page_sizes=[16])
def test_a_reset_does_not_wait_for_a_backend_that_hangs(driver: Scenario) -> None:
    for verb in VERBS:
        with over_a_hanging_backend(driver, verb) as (other, gate, _):
            other.reset()
            require_going_on(other, verb)
            other.reset()
            require_given_back(other, gate)


@clause("FLOW-13", needs=CLOCKED, page_sizes=[16])
def test_a_close_does_not_wait_for_a_backend_that_hangs(driver: Scenario) -> None:
    for verb in VERBS:
        with over_a_hanging_backend(driver, verb, is_closed=True) as (other, gate, _):
            other.adapter.close()
            assert not gate.was_late, f"FLOW-13: {verb} hangs: expected the cache to be closed without it"


@clause("FLOW-13", "FETCH-3", needs=CLOCKED, page_sizes=[16])
def test_a_prefetch_that_hangs_ends_with_nothing_by_each_policy(driver: Scenario) -> None:
    for verb in ("exists", "get"):
        with over_a_hanging_backend(driver, verb) as (other, gate, ticket):
            other.step()
            came = other.prefetched_pages(ticket)
            assert came == 0, f"FLOW-13: {verb} hangs: expected no page to come, {came} came"
            require_going_on(other, verb)
            require_given_back(other, gate)


@clause("FLOW-13", "FLOW-1", needs=CLOCKED, page_sizes=[16])
def test_slots_that_a_backend_may_write_are_not_given_to_others(driver: Scenario) -> None:
    with over_a_hanging_backend(driver, "get") as (other, gate, _):
        other.reset()
        held = {name: len(slots) for name, slots in (other.storage_view().abandoned or {}).items()}
        assert held["full"] == len(PROMPT) * other.config.page_size, (
            f"FLOW-13: get may write to the prompt's slots: {held}"
        )
        for first in range(10, 90, 3):
            other.put_and_back_up(range(first, first + 3))
            other.evict_all()
        gate.open()
        reach(other, lambda: other.storage_view().abandoned is None)


@clause("FLOW-13", "STORE-3", needs=CLOCKED, page_sizes=[16])
def test_slots_that_a_backend_may_read_are_not_overwritten(driver: Scenario) -> None:
    with over_a_hanging_backend(driver, "set") as (other, gate, _):
        other.reset()
        for first in range(10, 90, 3):
            other.put_and_back_up(range(first, first + 3))
            other.evict_all()
        gate.open()
        reach(other, lambda: other.storage_view().abandoned is None)
        other.reset()
        assert other.attach_storage(), "FLOW-13: the backend has answered: expected it to be attached again"
        other.prefetch_pages(OTHER)


@pytest.mark.waits
@clause("FLOW-13", page_sizes=[16])
def test_a_call_that_takes_too_long_in_real_time_is_not_waited_for(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    threaded = {"executor": ExecutorKind.THREADED, "answer_timeout_s": SHORT_S}
    with over_a_script(driver, is_closed=True, **threaded) as (other, told):
        gate = told.hang("exists")
        ticket = other.begin_prefetch(PROMPT)
        other.drain()
        came = other.prefetched_pages(ticket)
        assert came == 0, f"FLOW-13: exists hangs: expected no page to come, {came} came"
        other.adapter.close()
        assert not gate.was_late, "FLOW-13: exists hangs: expected neither a drain nor a close to wait for it"


@clause("FLOW-13", "STORE-12", page_sizes=[16])
def test_a_backend_that_ends_its_thread_has_failed_one_call(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    with over_a_script(driver, executor=ExecutorKind.THREADED) as (other, told):
        for verb in VERBS:
            told.deadly = {verb}
            ticket = begin_call(other, verb)
            other.drain()
            came = 0 if ticket is None else other.prefetched_pages(ticket)
            assert came == 0, f"FLOW-13: {verb} ends its thread: expected no page to come, {came} came"
            told.behave()
            ticket = other.prefetch(other.key_of(PROMPT))
            assert ticket is not None, "FLOW-13: one call failed: expected the backend to be asked again"
            other.drain()
            came = other.prefetched_pages(ticket)
            assert came == len(PROMPT), f"FLOW-13: one call failed: expected {len(PROMPT)} pages next, {came} came"
            other.reset()


@pytest.mark.waits
@clause("FLOW-13", page_sizes=[16])
def test_an_opening_does_not_wait_for_a_backend_that_hangs(driver: Scenario) -> None:
    with script() as (name, told):
        gate = told.hang("open")
        tier = replace(driver.storage_config(), **scripted(driver, name), answer_timeout_s=SHORT_S)
        # A cache refuses to open with an error of its own, or opens without storage.
        with suppress(Exception):
            type(driver.adapter)(replace(driver.config, storage=tier)).close()
        assert gate.entered.is_set(), "FLOW-13: expected the backend to be opened with the cache"
        assert not gate.was_late, "FLOW-13: expected no opening to wait for a backend that hangs"


@pytest.mark.waits
@clause("FLOW-13", "FLOW-12", page_sizes=[16])
def test_an_operator_does_not_wait_for_a_backend_that_hangs(driver: Scenario) -> None:
    for verb in ("clear", "close"):
        with over_a_script(driver, answer_timeout_s=SHORT_S) as (other, told):
            gate = told.hang(verb)
            is_done = other.clear_storage() if verb == "clear" else other.detach_storage()
            assert is_done is (verb == "close"), f"FLOW-13: {verb} hangs: a backend is detached all the same: {is_done}"
            other.step()
            assert other.prefetch(other.key_of(PROMPT)) is None, f"FLOW-13: {verb} hangs: expected no backend any more"
            other.put_on_host(PAIR)
            assert not gate.was_late, f"FLOW-13: {verb} hangs: expected no verb to wait for it"
            gate.open()
            assert other.attach_storage(), f"FLOW-13: {verb} hung: expected another backend to be attached"
            other.step()
            ticket = other.prefetch(other.key_of(PROMPT))
            assert ticket is not None, f"FLOW-13: {verb} hung: expected the new backend to be asked"
