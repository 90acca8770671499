"""STATE: which states of MAMBA a path keeps, and where a request leaves one."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause

from .scenario import FULL, MAMBA, Scenario

Pages = tuple[int, ...]


@clause("STATE-1", components=[MAMBA], bigram=True)
@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_path_keeps_so_many_states(driver: Scenario, most: int) -> None:
    short = _with_most_states(driver, most)
    short.put_prefixes(range(1, 6))
    # The request that brings the last state reads the one before it, which is locked.
    _require_states(short, "the last states", _prefixes(range(1, 6))[-max(2, most) :])
    lost = set(_prefixes(range(1, 6))) - short.device_slots(FULL).keys()
    assert not lost, f"STATE-1: a path loses states alone: expected FULL of each prefix, lacking {lost}"


@clause("STATE-1", components=[MAMBA])
def test_a_state_where_prompts_part_stays(driver: Scenario) -> None:
    short = _with_most_states(driver, 1)
    for pages in ([1], [1, 2], [1, 3], [1, 3, 4], [1, 3, 4, 5]):
        short.put_pages(pages)
    _require_states(short, "where prompts part, and at their ends", [(1,), (1, 2), (1, 3, 4), (1, 3, 4, 5)])


@clause("STATE-1", components=[MAMBA])
def test_a_locked_state_stays_until_the_next_insert(driver: Scenario) -> None:
    short = _with_most_states(driver, 1)
    short.put_pages([1])
    receipt = short.lock_pages([1])
    short.put_pages([1, 2])
    short.put_pages([1, 2, 3])
    _require_states(short, "that are locked", [(1,), (1, 2), (1, 2, 3)])
    short.unlock(receipt)
    short.put_pages([1, 2, 3, 4])
    _require_states(short, "the last states", [(1, 2, 3), (1, 2, 3, 4)])


@clause("STATE-1", components=[MAMBA])
def test_a_state_of_a_shorter_prompt_leaves_those_behind_it(driver: Scenario) -> None:
    short = _with_most_states(driver, 1)
    short.put_pages([1, 2, 3])
    short.put_pages([1, 2])
    short.put_pages([1])
    _require_states(short, "of one path, from its end on", [(1,), (1, 2), (1, 2, 3)])


@clause("STATE-2", needs=(Capability.REQUESTS,), components=[MAMBA], page_sizes=[1, 16], bigram=True, verbs=False)
def test_a_prompt_leaves_states_at_intervals(driver: Scenario) -> None:
    spaced, unit = _with_interval(driver)
    partner = int(spaced.config.bigram)
    admission = spaced.admit_pages(range(1, 9), tail=1)
    multiples = {tokens + partner for tokens in range(2 * unit, spaced.tokens_in_pages(8), 2 * unit)}
    lacking = multiples - set(admission.keep_at or ())
    assert not lacking, f"STATE-2: expected states after multiples of {2 * unit}, {admission.keep_at} lacks {lacking}"
    for tokens in admission.keep_at or ():
        spaced.checkpoint(admission.request, tokens)
    spaced.finish(admission.request)
    _require_fork(spaced, unit, 2 * unit)


@clause("STATE-2", needs=(Capability.REQUESTS,), components=[MAMBA], page_sizes=[1, 16], verbs=False)
def test_an_interval_counts_from_the_start_of_a_prompt(driver: Scenario) -> None:
    spaced, unit = _with_interval(driver)
    pages = unit // spaced.config.page_size
    admission = spaced.admit_pages(range(1, pages + 1), tail=1)
    for tokens in admission.keep_at or ():
        spaced.checkpoint(admission.request, tokens)
    spaced.finish(admission.request)
    again = spaced.admit_pages(range(1, 4 * pages + 1), tail=1)
    assert again.cached_tokens == unit, f"REUSE-2: expected a hit of {unit} tokens, got {again.cached_tokens}"
    assert 2 * unit in (again.keep_at or ()), f"STATE-2: expected a state after {2 * unit} tokens, got {again.keep_at}"


@clause("STATE-2", needs=(Capability.REQUESTS,), components=[MAMBA], page_sizes=[1, 16], bigram=True, verbs=False)
def test_a_decoded_prompt_leaves_states_at_intervals(driver: Scenario) -> None:
    spaced, unit = _with_interval(driver)
    size, partner = spaced.config.page_size, int(spaced.config.bigram)
    tokens = spaced.prompt(range(1, 9))
    admission = spaced.admit(spaced.key(tokens[: size + partner]))
    assert admission is not None, "REQ-5: expected a prompt of one page to be admitted, got None"
    for end in range(size + partner + 1, len(tokens) + 1):
        table = spaced.extend(admission.request, tokens[end - 1 : end])
        assert table is not None, f"REQ-5: there is room for {end} tokens: expected a longer table, got None"
        if (end - partner) % (2 * unit) == 0:
            spaced.checkpoint(admission.request, end)
    spaced.finish(admission.request)
    _require_fork(spaced, unit, 2 * unit)


def _with_most_states(driver: Scenario, most: int) -> Scenario:
    return _with_option(driver, "mamba_max_states_per_path", most)


def _with_interval(driver: Scenario) -> tuple[Scenario, int]:
    """A cache whose interval is twice the least distance of two states, and this distance in tokens."""
    unit = driver.config.mamba_state_unit
    return _with_option(driver, "mamba_checkpoint_interval", 2 * unit), unit


def _with_option(driver: Scenario, name: str, value: int) -> Scenario:
    if name not in driver.adapter.state_options:
        pytest.skip(f"the adapter does not obey {name}: its `state_options`")
    return driver.open_variant(**{name: value})


def _prefixes(pages: Iterable[int]) -> list[Pages]:
    whole = tuple(pages)
    return [whole[:count] for count in range(1, len(whole) + 1)]


def _require_states(driver: Scenario, which: str, expected: Iterable[Pages]) -> None:
    states = sorted(driver.device_slots(MAMBA))
    assert states == sorted(expected), f"STATE-1: expected the states {which}, {sorted(expected)}, got {states}"


def _require_fork(driver: Scenario, unit: int, interval: int) -> None:
    """A prompt that parts one state's distance behind a multiple of the interval finds all up to the multiple."""
    size = driver.config.page_size
    shared = (interval + unit) // size
    found = driver.cached_pages([*range(1, shared + 1), 99]) * size
    assert found == interval, f"STATE-2: {shared * size} tokens shared: expected a hit of {interval}, got {found}"
