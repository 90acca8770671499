"""Geometry: what contradicts itself is refused, and what the suites compute from it is right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hicache.config import CacheConfig
from hicache.errors import ConfigurationError
from hicache.testing.caches.blocks import CONFIGURATIONS
from hicache.testing.configurations import standard_configurations
from hicache.testing.geometry import GeometricConfig, Geometry, Publish, geometry_of
from hicache.types import Component

FULL, SWA, MAMBA = (component.value for component in Component)

HYBRID = Geometry({FULL: 4, SWA: 8, MAMBA: 16}, shared_pool=True, lookahead=2, context_parallel=2)


def config(geometry: Geometry, capacity: dict[str, int], page: int, window: int | None = None) -> GeometricConfig:
    return GeometricConfig(
        capacity_tokens=capacity,
        page_size=page,
        components=tuple(capacity),
        sliding_window_size=window,
        mamba_chunk_size=page if MAMBA in capacity else None,
        geometry=geometry,
    )


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"block_tokens": {FULL: 0}}, r"block_tokens\['full'\] must be positive, got 0"),
        ({"block_tokens": {SWA: 4}}, "lacks 'full'"),
        ({"recomputed_tokens": 2}, "recomputed_tokens must be 0 or 1, got 2"),
        ({"lookahead": -1}, "lookahead must not be negative, got -1"),
        ({"context_parallel": 0}, "context_parallel must be positive, got 0"),
    ],
    ids=str,
)
def test_a_geometry_that_contradicts_itself_is_refused(fields: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        replace(HYBRID, **fields)  # type: ignore[arg-type] # by name


@pytest.mark.parametrize(
    ("capacity", "page", "named"),
    [
        ({FULL: 32}, 4, "given for"),
        ({FULL: 32, MAMBA: 8}, 4, "page_size must be 8, the unit of hits, got 4"),
        ({FULL: 32, MAMBA: 9}, 8, "expected one number"),
    ],
    ids=str,
)
def test_a_configuration_that_contradicts_its_geometry_is_refused(
    capacity: dict[str, int], page: int, named: str
) -> None:
    with pytest.raises(ConfigurationError, match=named):
        config(Geometry({FULL: 4, MAMBA: 8}, shared_pool=True), capacity, page)


def test_ranks_multiply_blocks_of_attention_and_no_state() -> None:
    found = {component: (HYBRID.tokens(component), HYBRID.slots(component)) for component in HYBRID.block_tokens}
    assert found == {FULL: (8, 8), SWA: (16, 16), MAMBA: (16, 1)}, f"tokens and slots of a block: got {found}"
    assert (HYBRID.alignment, HYBRID.finest) == (16, 8), f"got {HYBRID.alignment} and {HYBRID.finest}"


@pytest.mark.parametrize(
    ("tokens", "hit", "expected"),
    [
        (14, 0, {FULL: 2, SWA: 1, MAMBA: 1}),
        (15, 0, {FULL: 3, SWA: 2, MAMBA: 1}),
        (40, 32, {FULL: 6, SWA: 2, MAMBA: 2}),
    ],
    ids=str,
)
def test_a_request_needs_blocks_for_tokens_lookahead_and_states(
    tokens: int, hit: int, expected: dict[str, int]
) -> None:
    found = HYBRID.blocks_of(tokens, hit=hit, window=12)
    assert found == expected, f"{tokens} tokens, {hit} of them found: expected {expected} blocks, got {found}"


def test_blocks_of_a_shared_pool_are_counted_together() -> None:
    needed, room = {FULL: 3, SWA: 2, MAMBA: 1}, {FULL: 5, SWA: 5, MAMBA: 5}
    assert not HYBRID.fits(needed, room), "six blocks of a pool that has five: expected them not to fit"
    assert replace(HYBRID, shared_pool=False).fits(needed, room), "pools of five blocks each: expected them to fit"


@pytest.mark.parametrize("plain", standard_configurations(frozenset()), ids=lambda one: one.name)
def test_a_plain_configuration_has_a_pool_for_each_component(plain: CacheConfig) -> None:
    geometry = geometry_of(plain)
    assert geometry == Geometry(dict.fromkeys(plain.components, plain.page_size)), f"{plain.name}: got {geometry}"
    assert geometry.publish is Publish.CHUNK, f"{plain.name}: got {geometry.publish}"


def test_a_pool_is_resized_to_whole_pages_of_every_component() -> None:
    found = config(Geometry({FULL: 4, MAMBA: 8}, shared_pool=True), {FULL: 32, MAMBA: 8}, 8).with_blocks(9)
    assert found.capacity_tokens == {FULL: 40, MAMBA: 10}, f"9 blocks, in pairs: got {found.capacity_tokens}"


def test_configurations_of_the_block_cache_have_names_of_their_own() -> None:
    names = [one.name for one in CONFIGURATIONS]
    assert len(set(names)) == len(names), f"expected distinct names, got {names}"
    assert "full+mamba/page8/lru/shared-full4-mamba4-ranks2" in names, f"got {names}"
