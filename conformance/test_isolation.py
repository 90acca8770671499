"""SEC-1, SEC-3: no namespace finds the prompts of another one, however similar their names are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import SHARED, Namespace

from .scenario import FULL, open_standard, put
from .tree_view import snapshot_values

LENGTH_OF_ONE = (1).to_bytes(8, "little").decode("ascii")

SIMILAR = tuple(
    Namespace(lora=lora, salt=salt, tenant=tenant)
    for lora, salt, tenant in (
        (None, None, None),
        ("", None, None),
        (None, "", None),
        (None, None, ""),
        ("", "", ""),
        ("a", "b", None),
        ("ab", None, None),
        (None, "ab", None),
        ("a", None, "b"),
        (None, "a", "b"),
        ("b", "a", None),
        ("a", "b", ""),
        ("a|b", None, None),
        ("a/b", None, None),
        ("a,b", None, None),
        ('a","salt":"b', None, None),
        ("aSb", None, None),
        ("aTb", None, None),
        (f"aS{LENGTH_OF_ONE}b", None, None),
        ("a\0b", None, None),
        ("None", None, None),
        ("A", "B", None),
        ("a ", "b", None),
        ("\u00e9", None, None),
        ("e\u0301", None, None),
    )
)
"""Namespaces that collide if fields are joined without lengths or tags, or with None as a text."""


@clause("SEC-1", needs=[Capability.HASHES], bigram=True)
def test_no_two_namespaces_have_a_page_hash_in_common(driver: Driver) -> None:
    tokens = driver.prompt([1, 2])
    owner: dict[str, Namespace] = {}
    for namespace in SIMILAR:
        for digest in driver.adapter.page_hashes(driver.key(tokens, namespace)):
            assert digest not in owner, f"SEC-1: {namespace} and {owner[digest]} have hash {digest}"
            owner[digest] = namespace
    assert len(owner) == 2 * len(SIMILAR), f"SEC-1: two pages in {len(SIMILAR)} namespaces have {len(owner)} hashes"


@clause("SEC-1", needs=[Capability.EVENTS])
def test_no_two_namespaces_share_slots_or_blocks(adapter_type: type[CacheAdapter]) -> None:
    driver = open_standard(adapter_type, "full/page1/lru", capacity_tokens={FULL: 2 * len(SIMILAR)})
    tokens = driver.prompt([1, 2])
    taken: set[int] = set()
    blocks: set[str] = set()
    for namespace in SIMILAR:
        seen = len(driver.adapter.events())
        result = driver.put(driver.key(tokens, namespace))
        assert result.prefix_length == 0, f"SEC-1: {namespace} found {result.prefix_length} tokens of others"
        slots = set(driver.match(driver.key(tokens, namespace)).device_indices.tolist())
        assert len(slots - taken) == 2, f"SEC-1: {namespace} has slots {slots}, of which {slots & taken} are others'"
        named = {block for event in driver.adapter.events()[seen:] for block in event.blocks}
        assert len(named - blocks) == 2, f"SEC-1: {namespace}: events name {named & blocks}, which are others'"
        taken |= slots
        blocks |= named


@clause("SEC-3", bigram=True)
@pytest.mark.parametrize("field", ["lora", "salt", "tenant"])
def test_only_the_same_namespace_finds_a_prompt(driver: Driver, field: str) -> None:
    same, other = (replace(SHARED, **{field: value}) for value in ("a", "b"))
    tokens = driver.prompt([1, 2])
    driver.put(driver.key(tokens, same))
    for namespace, expected in ((same, 2 * driver.config.page_size), (other, 0), (SHARED, 0)):
        found = driver.match(driver.key(tokens, namespace))
        hits = [len(found.device_indices), found.host_hit_length, *found.component_host_hit_lengths.values()]
        assert hits == [expected] + [0] * (len(hits) - 1), f"SEC-3: cached for {same}, {namespace} finds {hits}"


@clause("SEC-3", needs=[Capability.SNAPSHOT, Capability.EVENTS], bigram=True)
def test_a_match_with_another_salt_finds_nothing_and_changes_nothing(driver: Driver) -> None:
    put(driver, [1, 2, 3])
    before, events = snapshot_values(driver.snapshot()), tuple(driver.adapter.events())
    other = Namespace(lora=None, salt="other", tenant=None)
    for pages in ([1, 2, 3], [1, 2, 9], [1]):
        found = driver.match(driver.key(driver.prompt(pages), other))
        assert found.branching_seqlen is None, f"SEC-3: a branch at {found.branching_seqlen} reveals what others cached"
    assert snapshot_values(driver.snapshot()) == before, "SEC-3: expected a match with another salt to change nothing"
    assert tuple(driver.adapter.events()) == events, "SEC-3: expected no events of a match with another salt"


@clause("SEC-3", needs=[Capability.REQUESTS], bigram=True)
def test_a_request_with_another_salt_gets_no_cached_tokens(driver: Driver) -> None:
    put(driver, [1, 2])
    for namespace, expected in ((SHARED, 2 * driver.config.page_size), (Namespace(None, "other", None), 0)):
        admission = driver.admit(driver.key([*driver.prompt([1, 2]), 7], namespace))
        assert admission is not None, "REQ-5: a short request fits"
        assert admission.cached_tokens == expected, f"SEC-3: {namespace}: {admission.cached_tokens}, not {expected}"
        driver.finish(admission.request)
