"""The prompts of REUSE: how a request is served by each door, and how much of a later prompt must be found again.

`python -m conformance.reuse ADAPTER...` prints what caches of hybrid models find of what the contract promises.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from enum import Enum
from itertools import product

import pytest

from hicache.config import CacheConfig
from hicache.errors import ConfigurationError
from hicache.testing.adapter import Admission, CacheAdapter, Capability
from hicache.testing.configurations import standard_configurations
from hicache.testing.driving.prompts import cut
from hicache.testing.geometry import Publish
from hicache.testing.load import load_adapter
from hicache.types import Key

from .scenario import FULL, MAMBA, SWA, Scenario, capacity_for

OTHERS = 1000
"""The pages by which the prompts of a test part begin here."""

PAGES = 8
"""The whole pages of a prompt."""

CHUNK_UNITS = 2
"""So many units of hits are a chunk of a prompt that is computed in chunks."""


class Door(str, Enum):
    """The verbs by which a prompt is served."""

    REQUESTS = "requests"
    VERBS = "verbs"


class Later(str, Enum):
    """A later prompt, by what it has in common with an earlier one."""

    SAME = "same prompt"
    CONTINUED = "continuation"
    PARTING = "fork"


DOORS = pytest.mark.parametrize("door", Door, ids=lambda door: door.value)


def require_door(driver: Scenario, door: Door) -> None:
    """Skip the test of a cache that lacks the door, or that keeps no state at it."""
    capability = Capability[door.name]
    if capability not in driver.adapter.capabilities:
        pytest.skip(f"{type(driver.adapter).__name__} does not declare {capability.name}: {capability.value}")
    if driver.has(MAMBA) and driver.geometry.publish is Publish.REQUEST:
        pytest.skip("the cache keeps a state at the end of a request alone, so that the same prompt has none")


def require_branching(driver: Scenario) -> None:
    """Skip the test of a cache with MAMBA that does not say where prompts part."""
    if driver.has(MAMBA) and Capability.BRANCHING not in driver.adapter.capabilities:
        pytest.skip("the cache does not say where prompts part: BRANCHING is not declared")


# Lengths, in elements of a key.


def unit(driver: Scenario) -> int:
    """Where hits can end: at whole pages, and with MAMBA at whole chunks."""
    return math.lcm(driver.geometry.alignment, driver.config.mamba_chunk_size or 1)


def whole(driver: Scenario, tokens: int) -> int:
    """How much of so many tokens a hit can have."""
    return max(0, tokens - driver.config.bigram) // unit(driver) * unit(driver)


def usable(driver: Scenario, key: Key) -> int:
    """How much of a prompt a request can take from the cache."""
    return whole(driver, len(key.tokens) - driver.geometry.recomputed_tokens)


def prompt(driver: Scenario, pages: Iterable[int], tail: int = 0) -> Key:
    """A prompt of these pages and so many more tokens."""
    return driver.key([*driver.prompt(list(pages)), *range(tail % driver.config.page_size)])


def parting(driver: Scenario, key: Key, elements: int, number: int = 0) -> Key:
    """A prompt that has so many elements in common with another one, and three other pages after them."""
    others = driver.prompt(range(OTHERS + 9 * number, OTHERS + 9 * number + 3))[driver.config.bigram :]
    return driver.key([*key.tokens[: elements + driver.config.bigram], *others])


def continued(driver: Scenario, key: Key) -> Key:
    """A prompt that continues another one."""
    return driver.key([*key.tokens, *(OTHERS + number for number in range(2 * driver.config.page_size))])


# Serving.


def serve(driver: Scenario, key: Key, door: Door = Door.REQUESTS, *, in_chunks: bool = False) -> int:
    """Run a request from its admission to its end, as its scheduler should; how much of it was cached."""
    if door is Door.VERBS:
        return _serve_by_verbs(driver, key, in_chunks=in_chunks)
    admission = admitted(driver, key)
    chunks = [end + driver.config.bigram for end in chunk_ends(driver, key) if in_chunks]
    found = admission.cached_tokens + admission.copied_tokens
    for tokens in sorted({stop for stop in (*chunks, *_stops(driver, key, admission)) if stop > found}):
        driver.checkpoint(admission.request, tokens)
    driver.finish(admission.request)
    return found


def look(driver: Scenario, key: Key, door: Door) -> int:
    """How much of a prompt a request has cached once it has loaded it; nothing of the prompt is computed."""
    if door is Door.VERBS:
        return _matched(driver, key)[0]
    if driver.geometry.publish is Publish.SCHEDULED:
        # An admission would cache the whole prompt, and evict for it.
        return min(driver.lookup(key), usable(driver, key))
    admission = admitted(driver, key)
    driver.abort(admission.request)
    return admission.cached_tokens + admission.copied_tokens


def admitted(driver: Scenario, key: Key) -> Admission:
    """A request that has loaded what is cached of its prompt."""
    admission = driver.admit(key)
    assert admission is not None, f"REQ-5: expected a prompt of {len(key.tokens)} tokens to be admitted, got None"
    if not admission.loading:
        return admission
    driver.drain()
    resumed = driver.resume(admission.request)
    assert resumed is not None, "FLOW-4: every transfer has ended: expected the request to go on, got None"
    return resumed


def chunk_ends(driver: Scenario, key: Key) -> Sequence[int]:
    """Where the chunks of a prompt end, except the last one."""
    step = CHUNK_UNITS * unit(driver)
    return range(step, driver.aligned(key), step)


def _stops(driver: Scenario, key: Key, admission: Admission) -> Sequence[int]:
    """Where the request is checkpointed: where the cache says, or where the scheduler keeps a state."""
    if admission.keep_at is not None or not driver.has(MAMBA):
        return admission.keep_at or ()
    ends = {usable(driver, key)}
    if {Capability.VERBS, Capability.BRANCHING} <= driver.adapter.capabilities:
        ends.add(driver.match(found_by(driver, key), chunked=True).branching_seqlen or 0)
    return [end + driver.config.bigram for end in ends if end]


def found_by(driver: Scenario, key: Key) -> Key:
    """The part of a prompt that a request matches and prefetches: it computes the last token in any case."""
    return cut(key, driver.elements(key) - driver.geometry.recomputed_tokens, driver.config)


def _matched(driver: Scenario, key: Key) -> tuple[int, int | None]:
    """How much of a prompt a request has once it is loaded, and where its prompt parts from what is cached."""
    key = found_by(driver, key)
    found = driver.match(key)
    if driver.config.host is None:
        return len(found.device_indices), found.branching_seqlen
    return len(driver.load(key).device_indices), found.branching_seqlen


def _serve_by_verbs(driver: Scenario, key: Key, *, in_chunks: bool) -> int:
    """Insert a prompt where a scheduler keeps a state: at forks, after chunks, and where the same one hits."""
    cached, branching = _matched(driver, key)
    ends = {driver.aligned(key), *(chunk_ends(driver, key) if in_chunks else ())}
    ends |= {usable(driver, key), branching or 0} if driver.has(MAMBA) else set()
    for end in sorted(ends):
        if end > cached:
            driver.put(cut(key, end, driver.config))
    return cached


def reused(driver: Scenario, later: Later, door: Door, *, in_chunks: bool = False) -> tuple[int, int]:
    """Serve prompts, and a later one: how much of it was cached, and how much of it the contract promises."""
    first = prompt(driver, range(1, PAGES + 1), tail=1)
    if later is Later.PARTING:
        shared = whole(driver, len(first.tokens) // 2)
        # With MAMBA the second one computes the state where they part.
        for number in range(2):
            serve(driver, parting(driver, first, shared, number), door, in_chunks=in_chunks)
        return serve(driver, parting(driver, first, shared, 2), door, in_chunks=in_chunks), shared
    serve(driver, first, door, in_chunks=in_chunks)
    if later is Later.SAME:
        return look(driver, first, door), usable(driver, first)
    return look(driver, continued(driver, first), door), whole(driver, len(first.tokens))


# The table of hybrid models.


HYBRIDS = ((FULL, MAMBA), (FULL, SWA, MAMBA))
HYBRID_PAGES = (1, 16, 64)


def doors_of(adapter: type[CacheAdapter]) -> list[Door]:
    """The doors that an adapter declares."""
    return [door for door in Door if Capability[door.name] in adapter.capabilities]


def hybrids(adapter: type[CacheAdapter]) -> Iterator[CacheConfig]:
    """Configurations with MAMBA: those that the adapter lists, or both kinds of models, each page size and each key."""
    listed = adapter.configurations()
    if listed is not None:
        yield from (config for config in listed if MAMBA in config.components and config.host is None)
        return
    standard = {config.name: config for config in standard_configurations(adapter.capabilities)}
    for components, page, bigram in product(HYBRIDS, HYBRID_PAGES, (False, True)):
        config = standard.get(f"{'+'.join(components)}/page16/lru")
        if config is not None and (Capability.BIGRAM in adapter.capabilities or not bigram):
            yield replace(
                config,
                page_size=page,
                bigram=bigram,
                mamba_chunk_size=2 * page,
                sliding_window_size=page * 3 // 2 if SWA in config.components else None,
                capacity_tokens=capacity_for(replace(config, page_size=page), pages=24, states=12),
            )


def reused_by_a_hybrid(adapter: type[CacheAdapter], config: CacheConfig, door: Door) -> dict[str, tuple[int, int]]:
    """What a new cache finds of each later prompt, with and without chunks, and what the contract promises."""
    found: dict[str, tuple[int, int]] = {}
    for in_chunks, later in product((False, True), Later):
        with closing(adapter(config)) as opened:
            driver = Scenario(opened, config)
            driver.check_every = 0
            way = f"{later.value} in chunks" if in_chunks else later.value
            found[way] = reused(driver, later, door, in_chunks=in_chunks)
            driver.check()
    return found


def table(adapter: type[CacheAdapter]) -> Iterator[str]:
    """The rows of Markdown for an adapter: by configuration and door, tokens found of tokens promised."""
    ways = [f"{later.value}{chunks}" for chunks in ("", " in chunks") for later in Later]
    yield f"| {adapter.__name__} | door | {' | '.join(ways)} |"
    yield "|---" * (len(ways) + 2) + "|"
    for config, door in product(hybrids(adapter), doors_of(adapter)):
        try:
            counts = reused_by_a_hybrid(adapter, config, door)
            cells = [f"{found} of {promised}" for found, promised in counts.values()]
        except ConfigurationError as error:
            cells = [f"refused: {error}"]
        yield f"| {config.name} | {door.value} | {' | '.join(cells)} |"


if __name__ == "__main__":
    for path in sys.argv[1:]:
        sys.stdout.writelines(f"{line}\n" for line in table(load_adapter(path)))
