"""SEC-1 to SEC-3: no namespace finds the prompts of another one, on any tier, even if hashes collide."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.types import SHARED, MatchResult, Namespace, TransferKind

from .near_prompts import EMPTY_NAMES, SIMILAR_NAMESPACES
from .scenario import FULL, PLACEMENTS, Scenario, open_standard
from .snapshot_values import residency, snapshot_values
from .transfer_phases import PHASES, Phase

# SEC-1, SEC-3: no namespace finds the prompts of another one, however similar their names are.


SIMILAR = tuple(dict.fromkeys(name for group in (EMPTY_NAMES, *SIMILAR_NAMESPACES) for name in group))
"""Namespaces that collide if fields are joined without lengths or tags, or with None as a text."""


@clause("SEC-1", needs=[Capability.HASHES], bigram=True)
def test_no_two_namespaces_have_a_page_hash_in_common(driver: Scenario) -> None:
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


MANY = tuple(replace(SHARED, **{("lora", "salt", "tenant")[n % 3]: str(n)}) for n in range(2000))
"""So many namespaces that some two of them have the same number of 16 bits."""


@clause("SEC-1", "KEY-4", needs=[Capability.HASHES])
def test_thousands_of_namespaces_have_no_page_hash_in_common(adapter_type: type[CacheAdapter]) -> None:
    driver = open_standard(adapter_type, "full/page1/lru")
    owner: dict[str, Namespace] = {}
    for namespace in MANY:
        (digest,) = driver.adapter.page_hashes(driver.key([1], namespace))
        assert digest not in owner, f"SEC-1: {namespace} and {owner[digest]} have hash {digest}"
        owner[digest] = namespace


@clause("SEC-1", "KEY-2")
def test_thousands_of_namespaces_find_nothing_of_each_other(adapter_type: type[CacheAdapter]) -> None:
    driver = open_standard(adapter_type, "full/page1/lru", capacity_tokens={FULL: len(MANY)})
    # The laws look at the whole cache, and would do so 6,000 times.
    driver.check_every = 0
    for namespace in MANY:
        key = driver.key([1], namespace)
        found = len(driver.adapter.match(key, chunked=False).device_indices)
        assert found == 0, f"SEC-1: {namespace} was never used, and found a token of {len(MANY)} others"
        driver.put(key)
    driver.check()


@clause("SEC-3", bigram=True)
@pytest.mark.parametrize("field", ["lora", "salt", "tenant"])
def test_only_the_same_namespace_finds_a_prompt(driver: Scenario, field: str) -> None:
    same, other = (replace(SHARED, **{field: value}) for value in ("a", "b"))
    tokens = driver.prompt([1, 2])
    driver.put(driver.key(tokens, same))
    for namespace, expected in ((same, 2 * driver.config.page_size), (other, 0), (SHARED, 0)):
        found = driver.match(driver.key(tokens, namespace))
        hits = [len(found.device_indices), found.host_hit_length, *found.component_host_hit_lengths.values()]
        assert hits == [expected] + [0] * (len(hits) - 1), f"SEC-3: cached for {same}, {namespace} finds {hits}"


@clause("SEC-3", needs=[Capability.SNAPSHOT, Capability.EVENTS], bigram=True)
def test_a_match_with_another_salt_finds_nothing_and_changes_nothing(driver: Scenario) -> None:
    driver.put_pages([1, 2, 3])
    before, events = snapshot_values(driver.snapshot()), tuple(driver.adapter.events())
    other = Namespace(lora=None, salt="other", tenant=None)
    for pages in ([1, 2, 3], [1, 2, 9], [1]):
        found = driver.match(driver.key(driver.prompt(pages), other))
        assert found.branching_seqlen is None, f"SEC-3: a branch at {found.branching_seqlen} reveals what others cached"
    assert snapshot_values(driver.snapshot()) == before, "SEC-3: expected a match with another salt to change nothing"
    assert tuple(driver.adapter.events()) == events, "SEC-3: expected no events of a match with another salt"


@clause("SEC-3", needs=[Capability.REQUESTS], bigram=True)
def test_a_request_with_another_salt_gets_no_cached_tokens(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    for namespace, expected in ((SHARED, 2 * driver.config.page_size), (Namespace(None, "other", None), 0)):
        admission = driver.admit(driver.key([*driver.prompt([1, 2]), 7], namespace))
        assert admission is not None, "REQ-5: a short request fits"
        assert admission.cached_tokens == expected, f"SEC-3: {namespace}: {admission.cached_tokens}, not {expected}"
        driver.finish(admission.request)


# SEC-3, KEY-2: another salt finds nothing of a prompt, on either tier or in a transfer between them.


WHOLE = (1, 2, 3)
OTHERS = (
    Namespace(lora=None, salt="other", tenant=None),
    Namespace(lora="other", salt=None, tenant=None),
    Namespace(lora=None, salt=None, tenant="other"),
    Namespace(lora=None, salt="", tenant=None),
)
HOST = [Capability.HOST, Capability.NAMESPACES]


def require_nothing(found: MatchResult, namespace: Namespace) -> None:
    """A match found nothing on either tier."""
    hits = len(found.device_indices), found.host_hit_length, *found.component_host_hit_lengths.values()
    assert not any(hits), f"SEC-3: another salt, {namespace}, sees hits on the device and the host: {hits}"


@clause("SEC-3", "KEY-2", needs=HOST, page_sizes=[16])
@PLACEMENTS
def test_another_salt_finds_nothing_on_either_tier(driver: Scenario, place: Callable[..., None]) -> None:
    place(driver, WHOLE)
    for namespace in OTHERS:
        key = driver.key(driver.prompt(WHOLE), namespace)
        found = driver.match(key)
        require_nothing(found, namespace)
        assert driver.load_back(key, found) is None, f"SEC-3: something was loaded for {namespace}"
    assert sum(driver.tier_hits(WHOLE)) == 3, (
        f"SEC-3: with the same salt all of it is there: expected 3, got {driver.tier_hits(WHOLE)}"
    )


@clause("SEC-3", "FLOW-6", needs=[Capability.NAMESPACES], page_sizes=[16])
@PHASES
def test_another_salt_finds_nothing_of_a_load_under_way(driver: Scenario, phase: Phase) -> None:
    driver.put_on_host(WHOLE)
    load = driver.queue_load(WHOLE)
    phase(driver, TransferKind.LOAD)
    for namespace in OTHERS:
        key = driver.key(driver.prompt(WHOLE), namespace)
        require_nothing(driver.match(key), namespace)
        driver.put(key)
        under_way = len(driver.transfer_views(TransferKind.LOAD))
        driver.match(key)
        assert len(driver.transfer_views(TransferKind.LOAD)) == under_way, f"SEC-3: {namespace} changed what is loaded"
    driver.drain()
    assert driver.claim(load.ticket) is not None, "FLOW-10: nothing failed: expected the slots of the load, got None"


@clause("KEY-2", "SEC-3", needs=HOST, page_sizes=[16])
def test_each_namespace_has_its_own_host_copies(driver: Scenario) -> None:
    other = driver.key(driver.prompt(WHOLE), OTHERS[0])
    driver.put_on_host(WHOLE)
    for _ in range(2):
        driver.put(other)
    driver.drain()
    driver.evict_all()
    for namespace in (SHARED, OTHERS[0]):
        there = driver.tier_hits(WHOLE, namespace)
        assert there == (0, 3), f"KEY-2: three pages of {namespace} are on the host: expected (0, 3), got {there}"
    driver.load(other)
    found = driver.tier_hits(WHOLE, OTHERS[0]), driver.tier_hits(WHOLE)
    assert found == ((3, 0), (0, 3)), f"KEY-2: only {OTHERS[0]} was loaded, got {found}"
    receipt = driver.lock_host(driver.match(driver.key_of(WHOLE), chunked=True).best_match)
    driver.evict_all()
    driver.evict_all_host()
    assert not residency(driver.snapshot(), driver.config), "EVICT-1: nothing is locked on the device"
    found = driver.tier_hits(WHOLE), driver.tier_hits(WHOLE, OTHERS[0])
    assert found == ((0, 3), (0, 0)), f"KEY-2: a host lock of one namespace holds no other, got {found}"
    driver.unlock_host(receipt)


# SEC-2: the cache does not rely on hashes to compare prompts, and its hashes resist constructed collisions.


MULTIPLIERS = (1, 31, 33, 131, 256, 257, 65_536, 65_599, 1_000_003)
"""Multipliers of polynomial hashes, and of hashes that join tokens without a fixed width."""


@pytest.fixture
def one_digest_for_all(driver: Scenario) -> Iterator[None]:
    """Make every page hash of the cache equal."""
    with driver.adapter.colliding():
        yield


@clause("SEC-2", needs=[Capability.COLLISIONS], bigram=True)
@pytest.mark.usefixtures("one_digest_for_all")
def test_prompts_whose_hashes_collide_do_not_find_each_other(driver: Scenario) -> None:
    driver.put_pages([1, 2, 3])
    for prompt in ([4, 5, 6], [4, 2, 3], [2, 1, 3]):
        found = driver.hit_pages(prompt)
        assert found == 0, f"SEC-2: {prompt} found {found} pages of another prompt"
    driver.put_pages([4, 2, 3])
    slots = [set(driver.match(driver.key_of(prompt)).device_indices.tolist()) for prompt in ([1, 2, 3], [4, 2, 3])]
    assert all(len(own) == 3 * driver.config.page_size for own in slots), f"SEC-2: each finds its own: {slots}"
    assert not slots[0] & slots[1], f"SEC-2: slots {slots[0] & slots[1]} are served to two prompts"


@clause("SEC-2", needs=[Capability.COLLISIONS, Capability.HOST], page_sizes=[16])
@pytest.mark.usefixtures("one_digest_for_all")
def test_prompts_whose_hashes_collide_do_not_find_each_other_on_the_host(driver: Scenario) -> None:
    driver.put_on_host(WHOLE)
    for prompt in ([4, 5, 6], [4, 2, 3], [2, 1, 3]):
        assert driver.tier_hits(prompt) == (0, 0), f"SEC-2: {prompt} found {driver.tier_hits(prompt)} of another prompt"
    driver.put_on_host([4, 2, 3])
    found = driver.tier_hits(WHOLE), driver.tier_hits([4, 2, 3])
    assert found == ((0, 3), (0, 3)), f"SEC-2: each finds its own three pages, got {found}"


@clause("SEC-2", needs=[Capability.COLLISIONS, Capability.NAMESPACES], bigram=True)
@pytest.mark.usefixtures("one_digest_for_all")
def test_namespaces_whose_hashes_collide_do_not_find_each_other(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    for namespace in (Namespace("a", None, None), Namespace(None, "a", None)):
        found = driver.hit_pages([1, 2], namespace)
        assert found == 0, f"SEC-2: {namespace} found {found} pages of {SHARED}"
    assert driver.hit_pages([1, 2]) == 2, "SEC-2: the owner finds its own"


@clause("SEC-2", needs=[Capability.HASHES], bigram=True)
def test_changes_that_cancel_out_in_a_weak_hash_are_detected(driver: Scenario) -> None:
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
def test_page_hashes_are_as_long_as_a_cryptographic_hash(driver: Scenario) -> None:
    hashes = list(driver.adapter.page_hashes(driver.key_of([1, 2, 3])))
    lengths = {len(bytes.fromhex(digest)) for digest in hashes}
    assert lengths == {32}, f"SEC-2: 32 bytes in hex expected, got {hashes}"
