"""FLOW-1 to FLOW-4: the slots of a transfer, its acknowledgement, its failure and its retries."""

from __future__ import annotations

from collections import Counter

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.snapshot import TransferView
from hicache.types import TransferKind, TransferPhase

from .scenario import FULL, MAMBA, SWA, TOMBSTONE, Scenario, capacity_for
from .snapshot_values import Pages, prefixes
from .transfer_phases import PHASES, Phase

WHOLE = (1, 2, 3)


# FLOW-1: source and target slots of a transfer are not reused until it is acknowledged.


def ends(driver: Scenario, kind: TransferKind) -> list[dict[str, list[int]]]:
    """The source and target slots of all transfers of a kind."""
    found = [view for one in driver.transfer_views(kind) for view in (one.device, one.host)]
    return [{component: slots.tolist() for component, slots in view.items()} for view in found]


@clause("FLOW-1", write_policies=[WritePolicy.WRITE_THROUGH], needs=[Capability.SIZES])
@PHASES
def test_data_that_is_being_backed_up_is_not_evicted_or_overwritten(driver: Scenario, phase: Phase) -> None:
    driver.put_pages(WHOLE)
    phase(driver, TransferKind.BACKUP)
    before, there = ends(driver, TransferKind.BACKUP), driver.device_slots(FULL)
    driver.evict_all()
    driver.evict_all_host()
    mine = driver.fill_device(100)
    assert ends(driver, TransferKind.BACKUP) == before, "FLOW-1: slots of a backup under way changed"
    assert driver.device_slots(FULL) == there, (
        f"FLOW-1: a backup reads {there}, the device has {driver.device_slots(FULL)}"
    )
    driver.free(mine)
    driver.drain()
    assert driver.host_slots(FULL).keys() == prefixes(*WHOLE), "FLOW-1: the copy is on the host"


@clause("FLOW-1", needs=[Capability.SIZES])
@PHASES
def test_data_that_is_being_loaded_is_not_evicted_or_overwritten(driver: Scenario, phase: Phase) -> None:
    driver.put_on_host(WHOLE, [8, 9])
    load = driver.queue_load(WHOLE)
    phase(driver, TransferKind.LOAD)
    before = ends(driver, TransferKind.LOAD)
    mine = driver.fill_device(100)
    driver.evict_all_host()
    assert ends(driver, TransferKind.LOAD) == before, "FLOW-1: slots of a load under way changed"
    assert not set(mine.tolist()) & set(load.indices.tolist()), (
        f"FLOW-1: expected an allocation without the slots of a load, got {mine}"
    )
    left = driver.host_slots(FULL).keys()
    assert left == prefixes(*WHOLE), f"FLOW-1: {WHOLE} is being read on the host, and all else may go: {left}"
    driver.drain()
    driver.free(mine)
    delivered = driver.claim(load.ticket)
    assert delivered is not None, "FLOW-10: nothing failed: expected the slots of the load, got None"
    assert delivered.tolist() == load.indices.tolist(), f"FLOW-1: asked {load.indices}, delivered {delivered}"


# FLOW-1, HOST-5: a load that must evict on the device, back up, and evict on the host within one call.


WANTED, OTHER = (1, 2), (8, 9)
NEWER = ((3, 4), (5, 6))
BACK = [WritePolicy.WRITE_BACK]


@clause("FLOW-1", "EVICT-7", write_policies=BACK)
def test_a_load_that_evicts_and_backs_up_keeps_its_own_source(driver: Scenario) -> None:
    config = driver.config
    with driver.host_variant(
        capacity_tokens=capacity_for(config, 4, 2), host={"capacity_tokens": capacity_for(config, 4, 2)}
    ) as tiny:
        tiny.put_on_host(WANTED, OTHER)
        for pages in NEWER:
            tiny.put_pages(pages)
        load = tiny.start_load(WANTED)
        tiny.drain()
        assert tiny.claim(load.ticket) is not None, "FLOW-10: nothing failed: expected the slots of the load, got None"
        found = {pages: tiny.tier_hits(pages) for pages in (WANTED, OTHER, *NEWER)}
        expected = {WANTED: (2, 0), OTHER: (0, 0), NEWER[0]: (0, 2), NEWER[1]: (2, 0)}
        assert found == expected, f"FLOW-1: the older prompt makes room, what is read stays: {expected}, got {found}"


@clause("FLOW-1", "EVICT-7", "HOST-5", write_policies=BACK)
def test_a_load_is_refused_when_only_its_own_source_could_make_room(driver: Scenario) -> None:
    config = driver.config
    with driver.host_variant(
        capacity_tokens=capacity_for(config, 4, 2), host={"capacity_tokens": capacity_for(config, 2, 1)}
    ) as tiny:
        tiny.put_on_host(WANTED)
        for pages in NEWER:
            tiny.put_pages(pages)
        key = tiny.key_of(WANTED)
        assert tiny.load_back(key, tiny.match(key)) is None, "HOST-5: there is no room for the load on either tier"
        found = {pages: tiny.tier_hits(pages) for pages in (WANTED, *NEWER)}
        expected = {WANTED: (0, 2), NEWER[0]: (2, 0), NEWER[1]: (2, 0)}
        assert found == expected, f"EVICT-7: what cannot be backed up stays where it is: {expected}, got {found}"


@clause("FLOW-1", "EVICT-7", write_policies=BACK)
def test_an_eviction_of_two_nodes_does_not_back_both_up_to_the_same_slots(driver: Scenario) -> None:
    config = driver.config
    with driver.host_variant(host={"capacity_tokens": capacity_for(config, 2, 1)}) as tiny:
        for pages in NEWER:
            tiny.put_pages(pages)
        result = tiny.evict(FULL, config.capacity_tokens[FULL])
        on_device = [pages for pages in NEWER if tiny.tier_hits(pages) == (2, 0)]
        on_host = [pages for pages in NEWER if tiny.tier_hits(pages) == (0, 2)]
        assert len(on_host) == 1, f"EVICT-7: the host has room for one of {NEWER}, it has {on_host}"
        assert result.refused == len(on_device), f"EVICT-7: {on_device} stayed on the device, the result is {result}"
        tiny.verify_state(tiny.key_of(on_host[0]), tiny.load(tiny.key_of(on_host[0])))


@clause("FLOW-1", "HOST-2", write_policies=[WritePolicy.WRITE_THROUGH])
def test_a_backup_does_not_evict_the_source_of_a_load(driver: Scenario) -> None:
    config = driver.config
    with driver.host_variant(host={"capacity_tokens": capacity_for(config, 2, 1)}) as tiny:
        tiny.put_on_host(WANTED)
        source = tiny.host_slots(FULL)
        load = tiny.start_load(WANTED)
        tiny.put_pages(OTHER)
        tiny.step()
        assert tiny.host_slots(FULL) == source, f"FLOW-1: a load reads {source}, got {tiny.host_slots(FULL)}"
        tiny.drain()
        assert tiny.claim(load.ticket) is not None, "FLOW-10: nothing failed: expected the slots of the load, got None"
        found = tiny.tier_hits(WANTED), tiny.tier_hits(OTHER)
        assert found == ((2, 0), (2, 0)), f"HOST-2: a backup that is refused costs nothing on the device: {found}"


@clause("FLOW-1", "FLOW-5", page_sizes=[16])
def test_the_device_anchor_stays_while_the_rest_is_loaded(driver: Scenario) -> None:
    driver.put_on_host(WANTED[:1], WANTED)
    driver.load(driver.key_of(WANTED[:1]))
    anchor = driver.device_slots(FULL)
    load = driver.start_load(WANTED)
    driver.evict_all()
    assert driver.device_slots(FULL) == anchor, (
        f"FLOW-5: {anchor} anchors a load, the device has {driver.device_slots(FULL)}"
    )
    driver.drain()
    receipt = driver.lock(driver.best_match(WANTED))
    driver.claim(load.ticket)
    driver.unlock(receipt)
    driver.evict_all()
    assert driver.tier_hits(WANTED) == (0, 2), (
        f"FLOW-7: nothing holds it on the device any more: {driver.tier_hits(WANTED)}"
    )


@clause("FLOW-5", "EVICT-7", write_policies=BACK)
def test_an_anchor_without_a_host_copy_stays_during_a_load(driver: Scenario) -> None:
    for pages in (WANTED[:1], WANTED):
        driver.put_pages(pages)
    receipt = driver.lock_pages(WANTED[:1])
    driver.evict_all()
    driver.unlock(receipt)
    assert driver.tier_hits(WANTED) == (1, 1), (
        f"EVICT-7: page 2 alone could go to the host: expected (1, 1), got {driver.tier_hits(WANTED)}"
    )
    load = driver.start_load(WANTED)
    driver.evict_all()
    assert driver.tier_hits(WANTED) == (1, 1), (
        f"FLOW-5: page 1 anchors a load: expected (1, 1), got {driver.tier_hits(WANTED)}"
    )
    driver.drain()
    driver.claim(load.ticket)
    assert driver.tier_hits(WANTED) == (2, 0), (
        f"FLOW-10: page 2 was loaded below page 1: expected (2, 0), got {driver.tier_hits(WANTED)}"
    )
    driver.evict_all()
    assert driver.tier_hits(WANTED) == (0, 2), (
        f"FLOW-8: each page is on the host now: expected (0, 2), got {driver.tier_hits(WANTED)}"
    )


# FLOW-2, FLOW-4: a transfer counts once, when all its layers have moved and a step takes it over.


@clause("FLOW-2", write_policies=[WritePolicy.WRITE_THROUGH])
def test_a_backup_is_on_the_host_when_all_layers_moved_and_a_step_took_it_over(driver: Scenario) -> None:
    driver.put_pages(WHOLE)
    driver.step()
    backup = driver.pending_transfer(TransferKind.BACKUP)
    for layer in range(backup.units):
        driver.advance(backup.ticket)
        if layer + 1 < backup.units:
            driver.step()
        copied = {name for name in driver.config.components if driver.host_slots(name)}
        assert not copied, f"FLOW-2: {layer + 1} of {backup.units} layers moved, and {copied} is on the host"
    driver.step()
    for component in driver.config.components:
        on_device, on_host = driver.device_slots(component).keys(), driver.host_slots(component).keys()
        assert on_host == on_device, f"FLOW-2: all of {component} arrived: {on_device}, the host has {on_host}"


@clause("FLOW-2")
def test_a_load_is_on_the_device_when_all_layers_moved_and_a_step_took_it_over(driver: Scenario) -> None:
    driver.put_on_host(WHOLE)
    load = driver.start_load(WHOLE)
    transfer = driver.pending_transfer(TransferKind.LOAD)
    for layer in range(transfer.units):
        driver.advance(transfer.ticket)
        driver.read_ready_layers(load.ticket)
        if layer + 1 < transfer.units:
            driver.step()
        found = driver.tier_hits(WHOLE), driver.load_phase(load.ticket)
        assert found == ((0, 3), TransferPhase.RUNNING), f"FLOW-2: {layer + 1} layers of {transfer.units}: {found}"
    driver.step()
    found = driver.tier_hits(WHOLE), driver.load_phase(load.ticket)
    assert found == ((3, 0), TransferPhase.DONE), f"FLOW-2: all layers arrived and were taken over, got {found}"
    driver.claim(load.ticket)


@clause("FLOW-4")
def test_a_transfer_that_has_ended_does_not_end_again(driver: Scenario) -> None:
    driver.put_on_host(WHOLE)
    load = driver.start_load(WHOLE)
    ticket = driver.pending_transfer(TransferKind.LOAD).ticket
    driver.complete(ticket)
    for when in ("it had ended", "it was taken over"):
        with driver.refused("FLOW-4", f"a second completion after {when}"):
            driver.adapter.complete(ticket)
        with driver.refused("FLOW-4", f"one more layer after {when}"):
            driver.adapter.advance(ticket)
        with driver.refused("FLOW-4", f"a failure after {when}"):
            driver.adapter.fail(ticket, 0)
        driver.step()
    driver.claim(load.ticket)


@clause("FLOW-4")
def test_a_load_is_claimed_or_abandoned_once(driver: Scenario) -> None:
    driver.put_on_host(WHOLE)
    for end in (driver.claim, driver.abandon):
        load = driver.start_load(WHOLE)
        with driver.refused("FLOW-4", "a claim of a load that has not ended"):
            driver.adapter.claim(load.ticket)
        driver.drain()
        end(load.ticket)
        for verb in (driver.adapter.claim, driver.adapter.abandon, driver.adapter.load_phase):
            with driver.refused("FLOW-4", f"{verb.__name__} of a ticket after {end.__name__}"):
                verb(load.ticket)
        driver.evict(FULL, driver.config.capacity_tokens[FULL])


@clause("FLOW-4")
def test_a_load_becomes_done_once_and_stays_done(driver: Scenario) -> None:
    driver.put_on_host(WHOLE)
    load = driver.queue_load(WHOLE)
    assert driver.load_phase(load.ticket) is TransferPhase.QUEUED, "FLOW-4: a load begins with the next step"
    ended = []
    for call in (driver.step, driver.step, driver.complete_all, driver.step, driver.drain):
        call()
        ended.append(driver.load_phase(load.ticket) is TransferPhase.DONE)
    assert ended == [False, False, True, True, True], f"FLOW-4: done when it was completed and taken over, got {ended}"
    driver.claim(load.ticket)


@clause("FLOW-2", "EVENT-2", needs=[Capability.COUNTERS], write_policies=[WritePolicy.WRITE_THROUGH])
def test_bytes_of_a_backup_are_counted_once_when_it_is_taken_over(driver: Scenario) -> None:
    driver.put_pages(WHOLE)
    counts = [driver.bytes_moved(TransferKind.BACKUP)]
    driver.step()
    driver.complete(driver.pending_transfer(TransferKind.BACKUP).ticket)
    counts.append(driver.bytes_moved(TransferKind.BACKUP))
    for _ in range(3):
        driver.step()
        counts.append(driver.bytes_moved(TransferKind.BACKUP))
    expected = [0, 0] + 3 * [driver.bytes_on_host()]
    assert counts == expected, f"EVENT-2: bytes backed up over time: expected {expected}, got {counts}"


@clause("FLOW-2", "EVENT-2", needs=[Capability.COUNTERS])
def test_bytes_of_a_load_are_counted_once_when_it_is_taken_over(driver: Scenario) -> None:
    driver.put_on_host(WHOLE)
    before = driver.bytes_moved(TransferKind.LOAD)
    load = driver.start_load(WHOLE)
    driver.complete(driver.pending_transfer(TransferKind.LOAD).ticket)
    counts = [driver.bytes_moved(TransferKind.LOAD) - before]
    for _ in range(3):
        driver.step()
        counts.append(driver.bytes_moved(TransferKind.LOAD) - before)
    driver.claim(load.ticket)
    expected = [0] + 3 * [driver.bytes_on_device()]
    assert counts == expected, f"EVENT-2: bytes loaded over time: expected {expected}, got {counts}"


# EVENT-3: what the cache reports of matches and transfers is what the verbs answered.


@clause("EVENT-3", components=(SWA, MAMBA), page_sizes=[16], write_policies=[WritePolicy.WRITE_THROUGH])
def test_metrics_equal_what_the_verbs_answered(driver: Scenario) -> None:
    driver.put_on_host(WHOLE)
    before = driver.adapter.reported_metrics()
    key = driver.key_of([*WHOLE, WHOLE[-1] + 1])
    matches = [driver.match(key)]
    load = driver.start_load(WHOLE)
    driver.drain()
    driver.claim(load.ticket)
    loaded = driver.bytes_on_device()
    matches.append(driver.match(key))
    driver.match(key, chunked=True)
    found = [(len(one.device_indices), one.host_hit_length) for one in matches]
    assert all((found[0][1], found[1][0])), f"FLOW-10: expected a hit on the host, then on the device, got {found}"
    device, host = map(sum, zip(*found, strict=True))
    expected = {
        "match_device": device,
        "match_host": host,
        "match_none": 2 * len(key.tokens) - device - host,
        "load_bytes": loaded,
        "backup_bytes": 0,
    }
    after = driver.adapter.reported_metrics()
    moved = {name: after[name] - before[name] for name in expected}
    assert moved == expected, f"EVENT-3: after the matches {found} and one load: expected {expected}, got {moved}"


@clause("EVENT-3", needs=[Capability.REQUESTS], page_sizes=[16], write_policies=[WritePolicy.WRITE_THROUGH])
def test_an_admission_that_is_refused_is_no_hit(driver: Scenario) -> None:
    driver.put_pages(WHOLE)
    # It reads the prompt, so that the others cannot evict it.
    held, page = [driver.admit_pages(WHOLE, tail=1)], 100
    while (admission := driver.admit(driver.key_of([page, page + 1]))) is not None:
        held.append(admission)
        page += 2
    before = driver.adapter.reported_metrics()
    key = driver.key_of([*WHOLE, page, page + 1])
    for _ in range(20):
        assert driver.admit(key) is None, "REQ-5: there is no room: expected no admission"
    refused = driver.adapter.reported_metrics()
    assert refused == before, f"EVENT-3: 20 admissions were refused: expected {before}, got {refused}"
    for admission in held[1:]:
        driver.abort(admission.request)
    admitted = driver.admit(key)
    assert admitted is not None, "REQ-5: there is room now: expected an admission"
    after = driver.adapter.reported_metrics()
    hit = after["match_device"] - before["match_device"]
    assert hit == admitted.cached_tokens, f"EVENT-3: expected {admitted.cached_tokens} tokens counted once, got {hit}"


@clause("EVENT-3", each=(SWA, MAMBA), needs=[Capability.REQUESTS, Capability.SNAPSHOT], page_sizes=[16])
def test_what_a_request_took_is_what_is_counted(driver: Scenario, component: str) -> None:
    # FULL is on the device, and the request has to load a window or a state alone.
    driver.drop_on_device(component)
    before = driver.adapter.reported_metrics()
    admitted = driver.admit_pages(TOMBSTONE, tail=1)
    assert admitted.cached_tokens, f"REQ-1: {component} is on the host: expected a hit"
    after = driver.adapter.reported_metrics()
    hit = sum(after[name] - before[name] for name in ("match_device", "match_host"))
    assert hit == admitted.cached_tokens, f"EVENT-3: expected {admitted.cached_tokens} tokens counted, got {hit}"


@clause("EVENT-3", "MATCH-20", each=(SWA, MAMBA), page_sizes=[16], write_policies=[WritePolicy.WRITE_THROUGH])
def test_what_a_match_refused_is_counted_once(driver: Scenario, component: str) -> None:
    driver.put_pages(range(1, 9), passed=2 if driver.has(SWA) else 0)
    before = driver.adapter.reported_metrics()
    refused: Counter[str] = Counter()
    for pages in ([1, 99], [*range(1, 8), 99]):
        refused.update(driver.match(driver.key_of(pages)).tokens_refused)
        driver.match(driver.key_of(pages), chunked=True)
    after = driver.adapter.reported_metrics()
    counted = {name: after[f"refused_{name}"] - before[f"refused_{name}"] for name in refused}
    assert counted == refused, f"EVENT-3: the matches refused {refused}, counted were {counted}"
    assert refused[component], f"MATCH-20: {component} is not at each page: expected it to refuse some, got {refused}"


# FLOW-3: the parts of a failed transfer before the failure count, and nothing else of it is left.


CHAIN = (1, 2, 3, 4)
LINKS = [CHAIN[:count] for count in range(1, 5)]
BEGINNINGS = [prefixes(*CHAIN[:count]) for count in range(5)]


def put_links(driver: Scenario) -> None:
    """Cache each prefix of the chain, and start one backup of all of them."""
    for pages in LINKS:
        driver.put_pages(pages)
    driver.step()


@clause("FLOW-3", write_policies=[WritePolicy.WRITE_THROUGH], page_sizes=[16])
def test_a_failed_backup_leaves_the_parts_before_the_failure_on_the_host(driver: Scenario) -> None:
    done, parts = 0, 1
    while done < parts:
        driver.reset()
        put_links(driver)
        transfer, under_way = driver.pending_transfer(TransferKind.BACKUP), driver.transfer_views(TransferKind.BACKUP)
        driver.fail(transfer.ticket, parts_done=done)
        driver.step()
        came = sum(is_whole(driver, one) for one in under_way)
        assert came == done, f"FLOW-3: {done} of {transfer.parts} parts were done, {came} are on the host"
        below = driver.host_slots(FULL).keys()
        assert below in BEGINNINGS, f"FLOW-3: only the beginning of a prompt counts, got {below}"
        assert driver.tier_hits(CHAIN) == (4, 0), (
            f"FLOW-3: a backup that fails costs nothing: {driver.tier_hits(CHAIN)}"
        )
        done, parts = done + 1, transfer.parts
    assert parts > 1, f"HOST-2: {LINKS} are several nodes, and were backed up in {parts} part"


@clause("FLOW-3", page_sizes=[16])
def test_a_failed_load_leaves_the_parts_before_the_failure_on_the_device(driver: Scenario) -> None:
    done, parts = 0, 1
    while done < parts:
        driver.reset()
        driver.put_on_host(*LINKS)
        load = driver.start_load(CHAIN)
        transfer, under_way = driver.pending_transfer(TransferKind.LOAD), driver.transfer_views(TransferKind.LOAD)
        driver.fail(transfer.ticket, parts_done=done)
        driver.step()
        assert driver.claim(load.ticket) is None, f"FLOW-3: {done} of {transfer.parts} parts were done, all delivered"
        came = sum(is_whole(driver, one) for one in under_way)
        assert came == done, f"FLOW-3: {done} of {transfer.parts} parts were done, {came} are on the device"
        there = driver.device_slots(FULL).keys()
        assert there in BEGINNINGS, f"FLOW-3: only the beginning of a prompt counts, got {there}"
        assert driver.host_slots(FULL).keys() == prefixes(*CHAIN), "FLOW-3: a load that fails costs nothing"
        found = driver.load(driver.key_of(CHAIN))
        size = driver.config.page_size
        assert len(found.device_indices) == 4 * size, f"FLOW-4: another load brings the rest, got {found}"
        done, parts = done + 1, transfer.parts
    assert parts > 1, f"HOST-4: {LINKS} are several nodes, and were loaded in {parts} part"


@clause("FLOW-3", "HOST-2", write_policies=[WritePolicy.WRITE_THROUGH], page_sizes=[16])
def test_a_backup_below_a_failed_one_does_not_count(driver: Scenario) -> None:
    for pages in LINKS[:2]:
        driver.put_pages(pages)
        driver.step()
    parents, children = driver.pending(TransferKind.BACKUP)
    driver.complete(children.ticket)
    driver.fail(parents.ticket, parts_done=0)
    driver.step()
    below = driver.host_slots(FULL)
    assert not below, f"FLOW-3: the copy of 1 failed, and what arrived below it could not be reached: {below}"
    assert driver.tier_hits(LINKS[1]) == (2, 0), (
        f"FLOW-3: a backup that fails costs nothing: {driver.tier_hits(LINKS[1])}"
    )
    driver.put_pages(LINKS[1])
    driver.drain()
    below = driver.host_slots(FULL)
    assert below.keys() == prefixes(*LINKS[1]), f"FLOW-4: both are copied with their next use, the host has {below}"


@clause("FLOW-3", "FLOW-4", page_sizes=[16])
def test_one_transfer_can_complete_one_load_and_fail_another(driver: Scenario) -> None:
    driver.put_on_host([1, 2], [8, 9])
    first, second = driver.queue_load([1, 2]), driver.queue_load([8, 9])
    of_first = len(driver.transfer_views(TransferKind.LOAD)) // 2
    driver.step()
    driver.fail(driver.pending_transfer(TransferKind.LOAD).ticket, parts_done=of_first)
    driver.step()
    phases = [driver.load_phase(load.ticket) for load in (first, second)]
    assert phases == [TransferPhase.DONE, TransferPhase.FAILED], f"FLOW-3: the first came whole, got {phases}"
    delivered = [driver.claim(load.ticket) for load in (first, second)]
    assert delivered[1] is None, f"FLOW-3: the second failed, and {delivered[1]} was delivered"
    found = driver.tier_hits([1, 2]), driver.tier_hits([8, 9])
    assert found == ((2, 0), (0, 2)), f"FLOW-3: 1, 2 is on the device and 8, 9 on the host alone, got {found}"


@clause("FLOW-3", each=(SWA, MAMBA))
def test_a_failed_load_of_one_component_leaves_nothing(driver: Scenario, component: str) -> None:
    """A failed load of one component alone leaves the cache as before, and another load succeeds."""
    driver.drop_on_device(component)
    before = driver.free_device_slots(), driver.device_slots(FULL), driver.host_slots(component)
    load = driver.start_load(TOMBSTONE)
    driver.fail(driver.pending_transfer(TransferKind.LOAD).ticket, parts_done=0)
    driver.step()
    assert driver.claim(load.ticket) is None, f"FLOW-3: the {component} data did not come"
    assert TOMBSTONE not in driver.device_slots(component), f"FLOW-3: {component} did not come, and is on the device"
    after = driver.free_device_slots(), driver.device_slots(FULL), driver.host_slots(component)
    assert after == before, f"FLOW-3: a load of {component} that fails leaves nothing: {before}, got {after}"
    driver.load(driver.key_of(TOMBSTONE))
    assert driver.tier_hits(TOMBSTONE) == (2, 0), (
        f"FLOW-4: another load goes well: expected (2, 0), got {driver.tier_hits(TOMBSTONE)}"
    )


def is_whole(driver: Scenario, one: TransferView) -> bool:
    """Whether a transfer brought all its data, or none; it must not bring a part."""
    is_backup = one.kind is TransferKind.BACKUP
    there = set()
    for component, slots in (one.host if is_backup else one.device).items():
        cached: dict[Pages, tuple[int, ...]] = (
            driver.host_slots(component) if is_backup else driver.device_slots(component)
        )
        own = set(slots.tolist())
        there.add(len(own & {slot for page in cached.values() for slot in page}) / len(own))
    assert there in ({0.0}, {1.0}), f"FLOW-3: expected a transfer to bring all its data or none, got the shares {there}"
    return there == {1.0}


# FLOW-4: retries are bounded, and without free slots the verbs return None and change nothing.

USES = 10
"""Uses of a prompt: more than the retries that a backup may have."""


@clause("FLOW-4", write_policies=[WritePolicy.WRITE_THROUGH], page_sizes=[16])
def test_a_backup_that_always_fails_is_tried_three_times(driver: Scenario) -> None:
    tries = 0
    for _ in range(USES):
        driver.put_pages(WHOLE)
        driver.step()
        for one in driver.pending(*TransferKind):
            driver.fail(one.ticket, parts_done=0)
            tries += 1
        driver.step()
    assert 1 < tries < USES, (
        f"FLOW-4: {USES} uses, each backup failed: expected more than 1 and less than {USES} tries, got {tries}"
    )
    assert driver.tier_hits(WHOLE) == (3, 0), (
        f"FLOW-3: it is on the device still: expected (3, 0), got {driver.tier_hits(WHOLE)}"
    )
    driver.evict_all()
    assert not driver.device_slots(FULL), (
        f"FLOW-4: it has no copy and can go, {driver.device_slots(FULL).keys()} is left"
    )


@clause("FLOW-4", write_policies=[WritePolicy.WRITE_THROUGH], page_sizes=[16])
def test_a_backup_that_failed_once_is_retried_with_the_next_use(driver: Scenario) -> None:
    driver.put_pages(WHOLE)
    driver.step()
    driver.fail(driver.pending_transfer(TransferKind.BACKUP).ticket, parts_done=0)
    driver.step()
    driver.put_pages(WHOLE)
    driver.drain()
    assert driver.host_slots(FULL).keys() == prefixes(*WHOLE), "FLOW-4: the next use backs it up"


@clause("FLOW-4", needs=[Capability.SIZES], page_sizes=[16])
def test_nothing_is_loaded_while_callers_hold_the_whole_device(driver: Scenario) -> None:
    driver.put_on_host(WHOLE)
    key = driver.key_of(WHOLE)
    mine = driver.allocate_all()
    for _ in range(3):
        answers = driver.load_back(key, driver.match(key)), driver.allocate(driver.config.page_size)
        assert answers == (None, None), (
            f"FLOW-4: the device is full: neither a load nor an allocation: expected {(None, None)}, got {answers}"
        )
        driver.step()
    assert driver.tier_hits(WHOLE) == (0, 3), (
        f"FLOW-4: it waits on the host: expected (0, 3), got {driver.tier_hits(WHOLE)}"
    )
    driver.free(mine)
    driver.load(key)
    assert driver.tier_hits(WHOLE) == (3, 0), (
        f"FLOW-4: there is room again: expected (3, 0), got {driver.tier_hits(WHOLE)}"
    )


@clause("FLOW-4", components=(MAMBA,), page_sizes=[16])
def test_nothing_is_loaded_while_callers_hold_all_states(driver: Scenario) -> None:
    driver.put_on_host(WHOLE)
    key = driver.key_of(WHOLE)
    states = list(iter(driver.allocate_state, None))
    assert driver.load_back(key, driver.match(key)) is None, (
        f"FLOW-4: callers hold all {len(states)} states: expected None"
    )
    assert driver.tier_hits(WHOLE) == (0, 3), (
        f"FLOW-4: it waits on the host: expected (0, 3), got {driver.tier_hits(WHOLE)}"
    )
    for state in states:
        driver.free_state(state)
    driver.verify_state(key, driver.load(key))
    assert driver.tier_hits(WHOLE) == (3, 0), (
        f"FLOW-4: there is room again: expected (3, 0), got {driver.tier_hits(WHOLE)}"
    )


@clause("FLOW-4", "LOCK-5")
def test_when_everything_is_locked_on_both_tiers_no_verb_raises(driver: Scenario) -> None:
    driver.put_on_both(WHOLE)
    on_device, on_host = driver.lock_pages(WHOLE), driver.lock_host(driver.best_match(WHOLE))
    for component in driver.config.components:
        for evict in (driver.evict, driver.evict_host):
            result = evict(component, 1)
            if component == FULL:
                assert result.victims == 0, f"LOCK-5: all is locked, yet {evict.__name__} took {result}"
    assert driver.allocate(driver.config.capacity_tokens[FULL]) is None, "POOL-3: a part of the device is locked"
    driver.drain()
    driver.unlock(on_device)
    driver.unlock_host(on_host)
    driver.evict_all()
    assert driver.tier_hits(WHOLE) == (0, 3), (
        f"FLOW-4: released, it can leave the device: expected (0, 3), got {driver.tier_hits(WHOLE)}"
    )


@clause("FLOW-4", needs=[Capability.REQUESTS], write_policies=[WritePolicy.WRITE_THROUGH])
def test_backups_are_acknowledged_while_requests_only_decode(driver: Scenario) -> None:
    driver.finish(driver.admit_pages(WHOLE).request)
    decoding = driver.admit_pages([8])
    driver.step()
    for page in (9, 10, 11):
        driver.decode(decoding, [page])
        driver.complete_all()
    missing = prefixes(*WHOLE) - driver.host_slots(FULL).keys()
    assert not missing, f"FLOW-4: a request decodes and each step is taken, yet {missing} is not on the host"
    driver.abort(decoding.request)
