"""SEC-2: the cache does not rely on hashes to compare prompts, and its hashes resist constructed collisions."""

from __future__ import annotations

import hashlib

import pytest

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import SHARED, Namespace

from .scenario import hit_pages, key_of, put

MULTIPLIERS = (1, 31, 33, 131, 256, 257, 65_536, 65_599, 1_000_003)
"""Multipliers of polynomial hashes, and of hashes that join tokens without a fixed width."""


@pytest.fixture
def one_digest_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every SHA-256 digest equal."""
    real = hashlib.sha256
    monkeypatch.setattr(hashlib, "sha256", lambda _=b"", **__: real(b"the same for all"))


@clause("SEC-2", bigram=True)
@pytest.mark.usefixtures("one_digest_for_all")
def test_prompts_whose_hashes_collide_do_not_find_each_other(driver: Driver) -> None:
    put(driver, [1, 2, 3])
    for prompt in ([4, 5, 6], [4, 2, 3], [2, 1, 3]):
        found = hit_pages(driver, prompt)
        assert found == 0, f"SEC-2: {prompt} found {found} pages of another prompt"
    put(driver, [4, 2, 3])
    slots = [set(driver.match(key_of(driver, prompt)).device_indices.tolist()) for prompt in ([1, 2, 3], [4, 2, 3])]
    assert all(len(own) == 3 * driver.config.page_size for own in slots), f"SEC-2: each finds its own: {slots}"
    assert not slots[0] & slots[1], f"SEC-2: slots {slots[0] & slots[1]} are served to two prompts"


@clause("SEC-2", needs=[Capability.NAMESPACES], bigram=True)
@pytest.mark.usefixtures("one_digest_for_all")
def test_namespaces_whose_hashes_collide_do_not_find_each_other(driver: Driver) -> None:
    put(driver, [1, 2])
    for namespace in (Namespace("a", None, None), Namespace(None, "a", None)):
        found = hit_pages(driver, [1, 2], namespace)
        assert found == 0, f"SEC-2: {namespace} found {found} pages of {SHARED}"
    assert hit_pages(driver, [1, 2]) == 2, "SEC-2: the owner finds its own"


@clause("SEC-2", needs=[Capability.HASHES], bigram=True)
def test_changes_that_cancel_out_in_a_weak_hash_are_detected(driver: Driver) -> None:
    tokens = [5_000_000 + offset for offset in range(2 * driver.config.page_size + 1)]
    driver.put(driver.key(tokens))
    hashes = set(driver.adapter.page_hashes(driver.key(tokens)))
    for multiplier in MULTIPLIERS:
        changed = driver.key([tokens[0] + 1, tokens[1] - multiplier, *tokens[2:]])
        found = len(driver.match(changed).device_indices)
        assert found == 0, f"SEC-2: token 0 + 1, token 1 - {multiplier}: {found} tokens of another prompt were found"
        equal = hashes & set(driver.adapter.page_hashes(changed))
        assert not equal, f"SEC-2: token 0 + 1, token 1 - {multiplier}: equal hashes {equal}"


@clause("SEC-2", needs=[Capability.HASHES], bigram=True)
def test_page_hashes_are_as_long_as_a_cryptographic_hash(driver: Driver) -> None:
    hashes = list(driver.adapter.page_hashes(key_of(driver, [1, 2, 3])))
    lengths = {len(bytes.fromhex(digest)) for digest in hashes}
    assert lengths == {32}, f"SEC-2: 32 bytes in hex expected, got {hashes}"
