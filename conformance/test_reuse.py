"""REUSE: what was computed and not evicted is found again, by the prompts that a scheduler sees most."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from hicache.errors import ConfigurationError
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.types import Key

from .reuse import (
    DOORS,
    HYBRID_PAGES,
    HYBRIDS,
    OTHERS,
    PAGES,
    Door,
    Later,
    chunk_ends,
    continued,
    doors_of,
    found_by,
    hybrids,
    look,
    parting,
    prompt,
    require_branching,
    require_door,
    reused,
    reused_by_a_hybrid,
    serve,
    unit,
    usable,
    whole,
)
from .scenario import FULL, MAMBA, Scenario

SHORT = 5
"""The pages of a prompt whose continuation is within the limit of a prefetch."""

ROUNDS = 4
"""Evictions after which a device must be empty."""

TAILS = (0, 1, 2, -1)
"""The tokens of a prompt past its last whole page; -1: all of a page but one."""


CLAUSE_OF = {Later.SAME: "REUSE-1", Later.CONTINUED: "REUSE-2", Later.PARTING: "REUSE-3"}


def require_found(clause_id: str, key: Key, found: int, expected: int) -> None:
    """Of a prompt at least so many elements must have been cached."""
    assert found >= expected, (
        f"{clause_id}: {len(key.tokens)} tokens, nothing was evicted: expected {expected} of them cached, got {found}"
    )


def require_hit(clause_id: str, driver: Scenario, key: Key, expected: int) -> None:
    """Serve a prompt, of which at least so many elements must be cached."""
    require_found(clause_id, key, serve(driver, key), expected)


def served(driver: Scenario, tail: int) -> Key:
    """A prompt of eight pages and so many more tokens, which a request has computed."""
    require_door(driver, Door.REQUESTS)
    key = prompt(driver, range(1, PAGES + 1), tail)
    serve(driver, key)
    return key


@clause("REUSE-1", needs=(Capability.REQUESTS,), page_sizes=[1, 16, 64], bigram=True, verbs=False)
@pytest.mark.parametrize("tail", TAILS)
def test_the_same_prompt_hits(driver: Scenario, tail: int) -> None:
    key = served(driver, tail)
    for _ in range(3):
        require_hit("REUSE-1", driver, key, usable(driver, key))


@clause("REUSE-2", needs=(Capability.REQUESTS,), page_sizes=[1, 16, 64], bigram=True, verbs=False)
@pytest.mark.parametrize("tail", TAILS)
def test_a_continuation_hits(driver: Scenario, tail: int) -> None:
    key = served(driver, tail)
    require_hit("REUSE-2", driver, continued(driver, key), whole(driver, len(key.tokens)))


@clause("REUSE-3", needs=(Capability.REQUESTS,), page_sizes=[1, 16, 64], bigram=True, verbs=False)
@pytest.mark.parametrize("shared", [1, 4, 7])
def test_prompts_that_part_hit_what_they_share(driver: Scenario, shared: int) -> None:
    require_shared(driver, shared)


@clause("REUSE-3", needs=(Capability.REQUESTS, Capability.HOST), page_sizes=[16], verbs=False)
def test_prompts_that_part_hit_what_they_share_beside_a_host(driver: Scenario) -> None:
    require_shared(driver, 4)


def require_shared(driver: Scenario, shared: int) -> None:
    """Serve six prompts that share so many pages: they hit them, from the second or the third on."""
    require_door(driver, Door.REQUESTS)
    require_branching(driver)
    first = prompt(driver, range(1, shared + 1))
    prompts = [parting(driver, first, driver.aligned(first), number) for number in range(6)]
    expected = whole(driver, len(first.tokens))
    # With MAMBA the second one computes the state where they part.
    first_hit = 2 if driver.has(MAMBA) else 1
    for number, key in enumerate(prompts):
        require_hit("REUSE-3", driver, key, expected if number >= first_hit else 0)


@clause("REUSE-1", "REUSE-2", "REUSE-3", page_sizes=[1, 16, 64], bigram=True)
@pytest.mark.parametrize("later", Later, ids=lambda later: later.value)
def test_what_verbs_inserted_is_found(driver: Scenario, later: Later) -> None:
    if later is Later.PARTING:
        require_branching(driver)
    found, promised = reused(driver, later, Door.VERBS)
    require_found(CLAUSE_OF[later], prompt(driver, range(PAGES), 1), found, promised)


@clause("REUSE-1", "REUSE-2", "REUSE-3", needs=(Capability.MAMBA, Capability.BRANCHING), verbs=False)
@pytest.mark.parametrize("bigram", [False, True], ids=["tokens", "bigram"])
@pytest.mark.parametrize("page_size", HYBRID_PAGES)
@pytest.mark.parametrize("components", HYBRIDS, ids="+".join)
def test_every_hybrid_model_hits(
    adapter_type: type[CacheAdapter], components: tuple[str, ...], page_size: int, bigram: bool
) -> None:
    shape = components, page_size, bigram
    configs = [one for one in hybrids(adapter_type) if (one.components, one.page_size, one.bigram) == shape]
    if not configs:
        pytest.skip(f"{adapter_type.__name__} has no configuration of {'+'.join(components)} in pages of {page_size}")
    try:
        found = {door: reused_by_a_hybrid(adapter_type, configs[0], door) for door in doors_of(adapter_type)}
    except ConfigurationError as error:
        pytest.skip(f"{configs[0].name}: {error}")
    lost = {(door.value, later): two for door, rows in found.items() for later, two in rows.items() if two[0] < two[1]}
    assert not lost, f"{_clauses_of(lost)}: expected what is promised, got (found, promised) {lost}"


def _clauses_of(lost: Iterable[tuple[str, str]]) -> str:
    """The clauses of the later prompts that did not hit."""
    return ", ".join(sorted({CLAUSE_OF[Later(later.partition(" in")[0])] for _, later in lost}))


@clause("REUSE-4", page_sizes=[1, 16, 64], bigram=True, verbs=False)
@DOORS
def test_prompts_that_part_at_a_chunk_hit_it(driver: Scenario, door: Door) -> None:
    require_door(driver, door)
    key = prompt(driver, range(1, PAGES + 1), 1)
    serve(driver, key, door, in_chunks=True)
    for end in chunk_ends(driver, key):
        other = parting(driver, key, end)
        require_found("REUSE-4", other, look(driver, other, door), end)


@clause("REUSE-7", page_sizes=[16, 64], bigram=True, verbs=False)
@DOORS
def test_a_prompt_that_parts_takes_nothing_away(driver: Scenario, door: Door) -> None:
    require_door(driver, door)
    key = prompt(driver, range(1, PAGES + 1), 1)
    serve(driver, key, door, in_chunks=True)
    serve(driver, parting(driver, key, unit(driver)), door)
    require_all_found("REUSE-7", driver, key, lambda other: look(driver, other, door))


def require_all_found(clause_id: str, driver: Scenario, key: Key, find: Callable[[Key], int]) -> None:
    """The same prompt, its continuation and prompts that part from it at chunks have what each can use."""
    expected = {len(key.tokens): (key, usable(driver, key))}
    longer = continued(driver, key)
    expected[len(longer.tokens)] = longer, whole(driver, len(key.tokens))
    for end in chunk_ends(driver, key):
        other = parting(driver, key, end)
        expected[len(other.tokens)] = other, end
    for other, elements in expected.values():
        require_found(clause_id, other, find(other), elements)


@clause("REUSE-5", bigram=True, verbs=False)
@DOORS
def test_what_was_demoted_is_loaded_back(driver: Scenario, door: Door) -> None:
    require_door(driver, door)
    key = prompt(driver, range(1, PAGES + 1), 1)
    serve(driver, key, door, in_chunks=True)

    def demoted(other: Key) -> int:
        leave_device(driver, door)
        return look(driver, other, door)

    require_all_found("REUSE-5", driver, key, demoted)


def leave_device(driver: Scenario, door: Door) -> None:
    """Evict everything from the device: by the verb, or by a request that needs all of it and is aborted."""
    driver.drain()
    if door is Door.VERBS:
        driver.evict_all()
        return
    size = driver.config.page_size
    strange = driver.key_of(range(OTHERS * 2, OTHERS * 2 + driver.config.capacity_tokens[FULL] // size))
    for _ in range(ROUNDS):
        admission = driver.admit(strange)
        if admission is not None:
            driver.abort(admission.request)
            return
        # With write_back an eviction copies first.
        driver.drain()


@clause("REUSE-6", bigram=True, needs=(Capability.VERBS,))
def test_a_restarted_cache_finds_what_was_stored(driver: Scenario) -> None:
    key = prompt(driver, range(1, SHORT + 1), 1)
    serve(driver, key, Door.VERBS, in_chunks=True)
    driver.drain()
    driver.evict_all()
    driver.drain()

    def restarted(other: Key) -> int:
        driver.restart()
        ticket = driver.prefetch(found_by(driver, other))
        assert ticket is not None, f"FETCH-1: {len(other.tokens)} tokens: expected a prefetch, got None"
        driver.drain()
        driver.check_prefetch(ticket)
        return look(driver, other, Door.VERBS)

    require_all_found("REUSE-6", driver, key, restarted)
