"""Patterns: pages with another namespace, prefix, position, layer or pool have other bytes."""

from __future__ import annotations

import itertools
from hashlib import sha256

import numpy as np
import pytest

from hicache.errors import InvariantError
from hicache.testing.driving import patterns
from hicache.testing.driving.patterns import (
    check_fill,
    elements_of,
    fill,
    of_shard,
    prefix_digests,
    seed,
    shard_of,
    state_digest,
    token_digests,
)
from hicache.testing.ranks.world import Mesh
from hicache.types import SHARED, Key, Namespace, Pool

NAMESPACES = [
    Namespace(lora, salt, tenant) for lora, salt, tenant in itertools.product((None, "", "a", "null"), repeat=3)
]


def key(*tokens: int, namespace: Namespace = SHARED) -> Key:
    return Key(np.array(tokens, dtype=np.int32), namespace)


def test_no_two_namespaces_share_a_digest() -> None:
    digests = [int(prefix_digests(key(1, 2, namespace=space), 2, bigram=False)[0]) for space in NAMESPACES]
    assert len(set(digests)) == len(NAMESPACES), f"SEC-1: {len(NAMESPACES)} namespaces gave {len(set(digests))} digests"


@pytest.mark.parametrize(
    ("tokens", "page_size", "bigram", "pages"),
    [
        ((), 2, False, 0),
        ((1,), 2, False, 0),
        ((1, 2, 3), 2, False, 1),
        ((1, 2, 3, 4), 2, False, 2),
        ((), 1, True, 0),
        ((1,), 1, True, 0),
        ((1, 2, 3, 4), 2, True, 1),
        ((1, 2, 3, 4, 5), 2, True, 2),
    ],
)
def test_whole_pages_have_digests(tokens: tuple[int, ...], page_size: int, bigram: bool, pages: int) -> None:
    digests = prefix_digests(key(*tokens), page_size, bigram)
    assert digests.dtype == np.uint64, f"expected uint64, got {digests.dtype}"
    assert len(digests) == pages, f"KEY-1: {len(tokens)} tokens hold {pages} pages of {page_size}, got {len(digests)}"


def test_a_digest_depends_on_the_whole_prefix_and_on_nothing_after() -> None:
    first = prefix_digests(key(1, 2, 3, 4, 5, 6), 2, bigram=False)
    second = prefix_digests(key(1, 2, 9, 4, 5, 6, 7), 2, bigram=False)
    same = (first == second).tolist()
    assert same == [True, False, False], f"the prompts part in page 1; pages that agree: {same}"


def of_tokens(*tokens: int, namespace: Namespace = SHARED) -> list[int]:
    return [int(one) for one in token_digests(namespace, elements_of(key(*tokens), bigram=False))]


def test_the_digest_of_a_token_depends_on_its_place_and_on_all_before_and_on_nothing_after() -> None:
    prompts = [
        of_tokens(*tokens) for length in range(1, 5) for tokens in itertools.product((0, 1, 2**31 - 1), repeat=length)
    ]
    assert len({prompt[-1] for prompt in prompts}) == len(prompts), "two prompts have one digest after their last token"
    assert of_tokens(1, 2, 3, 4)[:3] == of_tokens(1, 2, 3, 5)[:3], "a token after the first three changes their digests"
    assert of_tokens() == [], "a prompt without tokens has no digest"


def test_no_two_namespaces_share_the_digest_of_a_token() -> None:
    digests = {of_tokens(1, namespace=space)[0] for space in NAMESPACES}
    assert len(digests) == len(NAMESPACES), f"SEC-1: {len(NAMESPACES)} namespaces gave {len(digests)} digests"


def test_tokens_are_hashed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []

    def counted(data: bytes) -> object:
        hashed.append(data)
        return sha256(data)

    monkeypatch.setattr(patterns, "sha256", counted)
    seed.cache_clear()
    assert len(of_tokens(*range(1000))) == 1000, "a digest for each token"
    assert len(hashed) == 1, f"expected one hash, of the namespace, got {len(hashed)}"


def test_a_state_has_the_digest_of_its_last_page_or_of_the_part_of_one() -> None:
    whole, part = state_digest(key(1, 2, 3, 4), 2, bigram=False), state_digest(key(1, 2, 3), 2, bigram=False)
    digests = prefix_digests(key(1, 2, 3, 4), 2, bigram=False)
    assert whole.tolist() == digests[1:].tolist(), f"expected {digests[1:]}, got {whole}"
    assert part[0] not in digests, "the state after 3 tokens is neither that after 2 nor that after 4"


def test_bytes_differ_by_digest_offset_layer_and_pool() -> None:
    digests = np.array([7, 8], dtype=np.uint64)
    rows = [row.tobytes() for pool in Pool for layer in (0, 1) for row in fill(digests, 4, layer, pool, item_bytes=12)]
    expected = len(Pool) * 2 * len(digests) * 4
    assert len(set(rows)) == expected, f"expected {expected} different slots, got {len(set(rows))}"


@pytest.mark.parametrize("item_bytes", [1, 8, 13])
def test_fill_is_as_wide_as_asked_and_repeats(item_bytes: int) -> None:
    digests = np.arange(3, dtype=np.uint64)
    first, second = (fill(digests, 2, 0, Pool.KV, item_bytes) for _ in range(2))
    assert first.shape == (6, item_bytes), f"expected (6, {item_bytes}), got {first.shape}"
    assert np.array_equal(first, second), "the same pages have the same bytes on every call"


def test_the_checker_names_the_first_slot_that_differs() -> None:
    digests = np.arange(3, dtype=np.uint64)
    data = fill(digests, 2, 1, Pool.SWA, item_bytes=4)
    check_fill(data, digests, 2, 1, Pool.SWA, lambda row: f"slot {row}")
    expected = data[3].tobytes().hex()
    data[3, 2] ^= 1
    data[5] = 0
    with pytest.raises(InvariantError, match=rf"REQ-3: slot 3, pool swa, layer 1: expected bytes {expected}, got "):
        check_fill(data, digests, 2, 1, Pool.SWA, lambda row: f"slot {row}")


@pytest.mark.parametrize(("is_shared", "parts"), [(False, 8), (True, 4)])
def test_ranks_hold_other_bytes_of_a_page_where_they_hold_another_part(is_shared: bool, parts: int) -> None:
    digests, mesh = prefix_digests(key(1, 2), 2, bigram=False), Mesh(2, 2, 2)
    shards = [shard_of(mesh.topology(rank), is_shared=is_shared) for rank in range(mesh.ranks)]
    found = {int(of_shard(digests, shard)[0]) for shard in shards}
    assert len(found) == parts, f"RANK-6: expected {parts} parts of a page on {mesh.name}, got {len(found)} of {shards}"


def test_one_rank_holds_whole_pages() -> None:
    digests = prefix_digests(key(1, 2), 2, bigram=False)
    shard = shard_of(Mesh(1, 1, 1).topology(0), is_shared=False)
    assert (of_shard(digests, shard) == digests).all(), f"one rank holds whole pages, got the part {shard!r}"
