"""The driver over small caches with one tier and with two, its ledger of slots, and its book of locks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hicache.config import WritePolicy
from hicache.errors import InvariantError, ReceiptError
from hicache.request import Request
from hicache.testing.adapter import Admission, CacheAdapter, Capability
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.driving.block_view import BlockView
from hicache.testing.driving.driver import Driver
from hicache.testing.driving.ledger import Ledger, LockBook
from hicache.testing.driving.tree_view import TreeView
from hicache.testing.driving.view import View
from hicache.testing.snapshot import Snapshot
from hicache.tests.kit.hosted_cache import FlatCache, HostedCache
from hicache.tests.kit.snapshots import FULL, MAMBA, SWA, below, host_tier, node, slots, snapshot, tiny_config
from hicache.types import Handle, Key, MatchResult, Pool, Tier, TransferKind, TransferPhase

STACKS = [(FULL,), (FULL, SWA), (FULL, MAMBA), (FULL, SWA, MAMBA)]


def drive(
    adapter: type[CacheAdapter],
    *components: str,
    page_size: int = 2,
    bigram: bool = False,
    write_policy: WritePolicy | None = None,
) -> Driver:
    config = tiny_config(*components, page_size=page_size, pages=8, window=3, bigram=bigram, write_policy=write_policy)
    return Driver(adapter(config), config)


@pytest.mark.parametrize("bigram", [False, True], ids=["tokens", "pairs"])
@pytest.mark.parametrize("page_size", [1, 3])
def test_prompts_are_whole_pages_that_diverge_where_their_numbers_differ(page_size: int, bigram: bool) -> None:
    driver = drive(ReferenceAdapter, FULL, page_size=page_size, bigram=bigram)
    driver.put(driver.key(driver.prompt([1, 2, 3])))
    other = driver.key(driver.prompt([1, 2, 4, 3]))
    sizes = (driver.elements(other), driver.aligned(other), len(driver.match(other).device_indices))
    expected = (4 * page_size, 4 * page_size, 2 * page_size)
    assert sizes == expected, f"elements, whole pages, shared with [1, 2, 3]: expected {expected}, got {sizes}"


def test_lengths_of_short_keys() -> None:
    driver = drive(ReferenceAdapter, FULL, bigram=True)
    lengths = [driver.elements(driver.key(range(count))) for count in range(4)]
    assert lengths == [0, 0, 1, 2], f"KEY-3: expected [0, 0, 1, 2] pairs, got {lengths}"


@pytest.mark.parametrize("components", STACKS)
def test_the_reference_breaks_no_law(components: tuple[str, ...]) -> None:
    driver = drive(ReferenceAdapter, *components)
    key = driver.key(driver.prompt([1, 2, 3]))
    driver.put(key)
    found = driver.match(key)
    driver.verify_state(key, found)
    receipt = driver.lock(found.device_anchor)
    driver.put(driver.key(driver.prompt([1, 2, 4])), window_start=2, with_state=False)
    driver.put(driver.key(driver.prompt([5, 6, 7])), priority=3)
    for component in components:
        driver.evict(component, 2)
    driver.unlock(receipt)
    driver.reset()
    free = {component: sizes.free for component, sizes in driver.adapter.sizes().items()}
    expected = driver.config.capacity_tokens
    assert free == expected, f"EVICT-9: after a reset all is free: expected {expected}, got {free}"


VIEWS = {
    "a tree": (ReferenceAdapter.capabilities, TreeView),
    "a tree whose requests have tables": (ReferenceAdapter.capabilities | {Capability.TABLES}, TreeView),
    "tables alone": (frozenset({Capability.REQUESTS, Capability.TABLES}), BlockView),
}


@pytest.mark.parametrize(("capabilities", "expected"), VIEWS.values(), ids=VIEWS)
def test_the_view_is_that_of_the_design(capabilities: frozenset[Capability], expected: type[View]) -> None:
    adapter = type("Shown", (ReferenceAdapter,), {"capabilities": capabilities})
    found = type(drive(adapter, FULL).view)
    assert found is expected, f"expected {expected.__name__}, got {found.__name__}"


def test_a_reset_is_refused_while_requests_run() -> None:
    driver = drive(ReferenceAdapter, FULL)
    assert driver.admit(driver.key(driver.prompt([1]))), "REQ-5: a small request fits an empty cache"
    with pytest.raises(ValueError, match="finish or abort the 1 running requests"):
        driver.reset()


def test_a_cache_without_a_snapshot_can_be_driven() -> None:
    driver = drive(FlatCache, FULL)
    key = driver.key(driver.prompt([1, 2]))
    driver.put(key)
    result = driver.put(driver.key(driver.prompt([1, 3])))
    assert (result.prefix_length, result.accepted_length) == (2, 4), f"got {result}"
    receipt = driver.lock(driver.match(key).device_anchor)
    driver.evict(FULL, 100)
    driver.unlock(receipt)
    assert len(driver.match(key).device_indices) == 4, "LOCK-5: the locked prefix is still there"
    driver.check()


class CountsForks(ReferenceAdapter):
    """Counts the states that it returned as copies."""

    forks = 0

    def fork_state(self, handle: Handle) -> int | None:
        slot = super().fork_state(handle)
        self.forks += slot is not None
        return slot


def test_a_state_is_verified_where_there_is_room_for_a_fork() -> None:
    config = tiny_config(FULL, MAMBA, pages=2)
    adapter = CountsForks(config)
    driver = Driver(adapter, config)
    key = driver.key(driver.prompt([1]))
    driver.put(key)
    found = driver.match(key)
    held = driver.allocate_state()
    assert held, "1 of 2 states is free"
    driver.verify_state(key, found)
    driver.free_state(held)
    driver.verify_state(key, found)
    assert adapter.forks == 1, f"MATCH-11: one of the two times a slot was free, {adapter.forks} forks were made"


def test_check_every_counts_verbs(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, checks = drive(FlatCache, FULL), []
    monkeypatch.setattr(driver, "check", lambda: checks.append(driver.operations))
    for driver.check_every in (0, 3, 1):
        for _ in range(4):
            driver.match(driver.key([]))
    assert checks == [6, 9, 10, 11, 12], f"expected checks after verbs 6, 9, 10, 11, 12, got {checks}"


CONFIG = tiny_config(FULL, page_size=2, pages=6, write_policy=WritePolicy.WRITE_THROUGH)


@pytest.fixture
def driver() -> Driver:
    return Driver(HostedCache(CONFIG), CONFIG)


def prompt(driver: Driver, *pages: int) -> Key:
    return driver.key(driver.prompt(pages))


def backed_up(driver: Driver, *pages: int) -> Key:
    """A prompt that is on both tiers."""
    key = prompt(driver, *pages)
    driver.put(key)
    driver.drain()
    return key


def on_the_host(driver: Driver, *pages: int) -> Key:
    """A prompt that is only on the host."""
    key = backed_up(driver, *pages)
    driver.evict(FULL, 2 * len(pages))
    return key


def started(driver: Driver, key: Key) -> tuple[MatchResult, Handle]:
    """The match of a prompt, and the ticket of its started load."""
    found = driver.match(key)
    load = driver.load_back(key, found)
    assert load, "HOST-5: there is room on the device"
    driver.step()
    return found, load.ticket


def test_a_backup_moves_layer_by_layer(driver: Driver) -> None:
    driver.put(prompt(driver, 1, 2))
    assert not driver.pending(), "a backup starts with a step"
    driver.step()
    (backup,) = driver.pending()
    shown = (backup.kind, backup.parts, backup.units, backup.units_done)
    assert shown == (TransferKind.BACKUP, 2, 2, 0), f"two pages in one transfer of two layers, got {shown}"
    driver.advance(backup.ticket)
    assert driver.pending()[0].units_done == 1, f"one layer was moved, got {driver.pending()}"
    driver.complete_all()
    free = driver.adapter.host_sizes()[FULL].free
    assert free == 8, f"HOST-1: 4 of 12 host slots hold the backup, {free} are free"


def test_a_load_is_read_as_it_arrives(driver: Driver) -> None:
    key = on_the_host(driver, 1, 2, 3)
    found, ticket = started(driver, key)
    assert found.host_hit_length == 6, f"MATCH-12: expected 6 tokens on the host alone, got {found.host_hit_length}"
    read = [driver.read_ready_layers(ticket)[Pool.KV]]
    (load,) = driver.pending()
    driver.advance(load.ticket)
    read.append(driver.read_ready_layers(ticket)[Pool.KV])
    driver.complete(load.ticket)
    phases = [driver.load_phase(ticket)]
    driver.step()
    phases.append(driver.load_phase(ticket))
    read.append(driver.read_ready_layers(ticket)[Pool.KV])
    assert read == [0, 1, 2], f"HOST-6: expected 0, 1 and 2 layers to be ready, got {read}"
    assert phases == [TransferPhase.RUNNING, TransferPhase.DONE], f"a load ends with a step, got {phases}"
    receipt = driver.lock(found.best_match)
    slots = driver.claim(ticket)
    assert slots is not None, "FLOW-10: expected slots, as no failure was injected"
    assert len(slots) == 6, f"FLOW-10: expected 6 slots, got {slots}"
    driver.unlock(receipt)
    assert not driver.loads, f"expected no open load after the claim, got {driver.loads}"


def test_a_load_in_one_call(driver: Driver) -> None:
    key = on_the_host(driver, 1, 2)
    found = driver.load(key)
    assert len(found.device_indices) == 4, f"FLOW-10: 4 tokens were on the host, {len(found.device_indices)} came"
    again = driver.load(key)
    assert len(again.device_indices) == 4, "with nothing to load the first match is the answer"
    assert driver.load_back(key, again) is None, "HOST-5: there is nothing to load"


def test_a_load_that_is_refused_leaves_nothing(driver: Driver) -> None:
    key = on_the_host(driver, 1, 2)
    assert driver.load_back(key, driver.match(key), quota=2) is None, "HOST-5: 4 tokens are above a quota of 2"


def test_a_load_that_fails_delivers_nothing(driver: Driver) -> None:
    key = on_the_host(driver, 1, 2)
    _, ticket = started(driver, key)
    driver.fail(driver.pending()[0].ticket, parts_done=1)
    driver.step()
    assert driver.load_phase(ticket) is TransferPhase.FAILED, f"got {driver.load_phase(ticket)}"
    assert not driver.read_ready_layers(ticket), "nothing is read of a load that failed"
    assert driver.claim(ticket) is None, "FLOW-3: nothing was delivered"
    found = driver.match(key)
    lengths = (len(found.device_indices), found.host_hit_length)
    assert lengths == (2, 2), f"FLOW-3: the first part came, the second is on the host still, got {lengths}"


def test_slots_that_are_loaded_too_late_are_kept_for_their_readers(driver: Driver) -> None:
    key = on_the_host(driver, 1, 2)
    _, ticket = started(driver, key)
    driver.put(key)
    driver.drain()
    host = driver.snapshot().host
    assert host, "the cache has a host tier"
    assert len(host.kept[FULL]) == 4, f"INS-3: the tree took the fresh slots, and {host.kept} are kept"
    driver.abandon(ticket)
    driver.evict(FULL, 12)


def test_the_host_is_evicted(driver: Driver) -> None:
    key = backed_up(driver, 1, 2, 3)
    receipt = driver.lock_host(driver.match(key).best_match)
    assert driver.evict_host(FULL, 12).freed[FULL] == 0, "EVICT-8: the leaf of the host is locked"
    driver.unlock_host(receipt)
    freed = [driver.evict_host(FULL, tokens).freed[FULL] for tokens in (2, 12)]
    assert freed == [2, 4], f"EVICT-1: expected 2 tokens and then the other 4, got {freed}"


def test_a_host_lock_on_what_is_not_there_holds_the_device(driver: Driver) -> None:
    key = prompt(driver, 1, 2)
    receipt = driver.lock_host(driver.put(key).node)
    driver.step()
    driver.fail(driver.pending()[0].ticket, parts_done=0)
    driver.drain()
    freed = driver.evict(FULL, 12).freed[FULL]
    assert freed == 0, f"LOCK-7: the node is on the device alone, and locked; {freed} tokens were freed"
    driver.unlock_host(receipt)
    assert driver.evict(FULL, 12).freed[FULL] == 4, "LOCK-7: the lock was released"


def test_a_reset_ends_loads_and_host_locks(driver: Driver) -> None:
    key = on_the_host(driver, 1, 2)
    _, ticket = started(driver, key)
    receipt = driver.lock_host(driver.match(key).best_match)
    driver.put(prompt(driver, 3))
    driver.reset()
    assert not driver.loads, "EVICT-9: expected no open load"
    with pytest.raises(ReceiptError):
        driver.unlock_host(receipt)
    with pytest.raises(KeyError):
        driver.load_phase(ticket)
    free = [sizes[FULL].free for sizes in (driver.adapter.sizes(), driver.adapter.host_sizes())]
    assert free == [12, 12], f"EVICT-9: both tiers are empty, free are {free}"


def admit_loading(driver: Driver) -> Admission:
    """Admit a request with two pages that are only on the host, and with one page and one token of its own."""
    driver.put(driver.key(driver.prompt([1, 2])))
    driver.drain()
    for component in driver.config.components:
        driver.evict(component, 16)
    admission = driver.admit(driver.key([*driver.prompt([1, 2, 3]), 5]))
    assert admission, "REQ-5: a small request fits an empty device"
    assert (admission.loading, admission.cached_tokens) == (True, 4), f"HOST-4: got {admission}"
    return admission


def test_a_request_that_waits_for_a_load_cannot_be_finished() -> None:
    driver = drive(ReferenceAdapter, FULL, write_policy=WritePolicy.WRITE_THROUGH)
    request = admit_loading(driver).request
    with pytest.raises(ValueError, match="waits for a load: resume it first"):
        driver.finish(request)


class ResumesTooSoon(ReferenceAdapter):
    """`resume` returns before the load has ended."""

    def resume(self, request: Request) -> Admission | None:
        return Admission(request, request.table.copy(), 4, request.state, loading=False)


class WaitsOn(ReferenceAdapter):
    """`resume` returns an admission that is still loading."""

    def resume(self, request: Request) -> Admission | None:
        return Admission(request, request.table.copy(), 4, request.state, loading=True)


class DeliversLess(ReferenceAdapter):
    """`resume` reports one page less than was admitted."""

    def resume(self, request: Request) -> Admission | None:
        admission = super().resume(request)
        return admission and replace(admission, cached_tokens=admission.cached_tokens - 2)


class LosesItsSlots(ReferenceAdapter):
    """`resume` frees the slots of a waiting request."""

    def resume(self, request: Request) -> Admission | None:
        self.cache.free(request.table[4:])
        return None


WAITING_DEFECTS = [
    (ResumesTooSoon, "REQ-3: position 0 of a hit"),
    (WaitsOn, "FLOW-4: resume: expected a request that does not load"),
    (DeliversLess, "FLOW-10: resume: expected 4 cached tokens, as admitted, got 2"),
    (LosesItsSlots, "POOL-1: .*the free list, got the caller as well"),
]


@pytest.mark.parametrize(
    ("adapter", "message"), WAITING_DEFECTS, ids=[adapter.__name__ for adapter, _ in WAITING_DEFECTS]
)
def test_a_defect_is_found_while_a_request_waits(adapter: type[ReferenceAdapter], message: str) -> None:
    driver = drive(adapter, FULL, write_policy=WritePolicy.WRITE_THROUGH)
    request: Handle = admit_loading(driver).request
    if adapter is DeliversLess:
        driver.drain()
    with pytest.raises(InvariantError, match=message):
        driver.resume(request)


@pytest.fixture
def ledger() -> Ledger:
    book = Ledger(tiny_config(FULL, SWA, MAMBA))
    book.take(slots(2, 3, 6, 7), slots(4, 5, 2, 3))
    book.take_state(1)
    return book


def held_slots(ledger: Ledger) -> dict[str, list[int]]:
    return {component: sorted(held.tolist()) for component, held in ledger.held().items()}


def test_it_holds_what_was_taken_and_not_given(ledger: Ledger) -> None:
    ledger.give(slots(2, 3))
    ledger.drop_partners(slots(6, 7))
    ledger.take_state(4)
    ledger.give_state(1)
    expected = {FULL: [6, 7], SWA: [], MAMBA: [4]}
    assert held_slots(ledger) == expected, f"expected {expected}, got {held_slots(ledger)}"
    mapping = [held.tolist() for held in ledger.partners()]
    assert mapping == [[6, 7], [0, 0]], f"expected no partners for 6 and 7, got {mapping}"


def test_slots_beyond_the_capacity_are_kept_as_well(ledger: Ledger) -> None:
    ledger.take(slots(1000, 1001), slots(0, 0))
    assert held_slots(ledger)[FULL] == [2, 3, 6, 7, 1000, 1001], f"got {held_slots(ledger)[FULL]}"


@pytest.mark.parametrize("taken", [(2, 3), (8, 8), (0, 1)], ids=["held already", "named twice", "padding"])
def test_slots_that_cannot_be_allocated_fail(ledger: Ledger, taken: tuple[int, ...]) -> None:
    with pytest.raises(InvariantError, match="POOL-2: allocated slots"):
        ledger.take(slots(*taken), None)


@pytest.mark.parametrize("given", [(4, 5), (2000, 2001), (-1, 2)])
def test_slots_that_are_not_held_cannot_be_given(ledger: Ledger, given: tuple[int, ...]) -> None:
    with pytest.raises(InvariantError, match="POOL-2: freed slots"):
        ledger.give(slots(*given))
    with pytest.raises(InvariantError, match="POOL-2: freed SWA partners"):
        ledger.drop_partners(slots(*given))


def test_states_are_held_once(ledger: Ledger) -> None:
    for slot in (1, 0):
        with pytest.raises(InvariantError, match="POOL-2: allocated state"):
            ledger.take_state(slot)
    with pytest.raises(InvariantError, match="POOL-2: freed state"):
        ledger.give_state(2)


def tree(*locks: int) -> Snapshot:
    """A chain of nodes of one token, slot 1 first, with these lock counts."""
    return snapshot(
        [node((place,), {FULL: slots(place + 1)}, locks={FULL: count}) for place, count in enumerate(locks)], {}
    )


@pytest.fixture
def book() -> LockBook:
    return LockBook((FULL,), Tier.DEVICE)


def protected(book: LockBook, owner: int) -> list[int] | None:
    found = book.protected(owner, FULL)
    return None if found is None else found.tolist()


def test_each_owner_protects_what_was_locked_when_it_came(book: LockBook) -> None:
    first = book.acquire()
    assert protected(book, first) is None, "expected None before the first check"
    book.check(tree(1, 1, 0))
    second = book.acquire()
    book.check(tree(2, 1, 0))
    found = (protected(book, first), protected(book, second))
    assert found == ([1, 2], [1]), f"expected ([1, 2], [1]), got {found}"


def test_a_release_must_take_its_own_locks_and_no_others(book: LockBook) -> None:
    first = book.acquire()
    book.check(tree(1, 1))
    book.acquire()
    book.check(tree(2, 1))
    book.release(first)
    for locks in ((1, 1), (2, 0), (0, 0)):
        with pytest.raises(InvariantError, match=r"LOCK-2: full slot \d: expected a lock count of [01], from as many"):
            book.check(tree(*locks))
    book.check(tree(1, 0))


def test_a_locked_slot_that_is_gone_fails(book: LockBook) -> None:
    book.acquire()
    book.check(tree(0, 1))
    with pytest.raises(InvariantError, match=r"LOCK-5: full slot 2: .*got a slot that is not in the tree"):
        book.check(tree(0))


def test_an_owner_locks_a_slot_at_most_once(book: LockBook) -> None:
    book.acquire()
    with pytest.raises(InvariantError, match=r"LOCK-2: full slot 1: expected a lock count of 0, .*got 2$"):
        book.check(tree(2))


def test_a_renewed_owner_may_protect_other_slots(book: LockBook) -> None:
    owner = book.acquire()
    book.check(tree(1, 0))
    book.renew(owner)
    book.check(tree(1, 1))
    assert protected(book, owner) == [1, 2], f"expected [1, 2], got {protected(book, owner)}"


def test_owners_that_locked_together_are_not_compared(book: LockBook) -> None:
    first, second = book.acquire(), book.acquire()
    book.check(tree(2, 1))
    assert (protected(book, first), protected(book, second)) == (None, None), "expected None for both owners"
    book.release(first)
    book.check(tree(1, 0))
    assert protected(book, second) == [1], f"the other is alone: expected [1], got {protected(book, second)}"


def hybrid_tree(**locks: int) -> Snapshot:
    """One node of one token, slot 1 of each component, with these lock counts."""
    return snapshot([node((0,), {name: slots(1) for name in (FULL, SWA, MAMBA)}, locks=locks)], {})


@pytest.mark.parametrize("mamba", [0, 1])
def test_an_owner_that_releases_its_window_keeps_full_and_perhaps_its_state(mamba: int) -> None:
    book = LockBook((FULL, SWA, MAMBA), Tier.DEVICE)
    owner = book.acquire()
    book.check(hybrid_tree(full=1, swa=1, mamba=1))
    book.release_window(owner)
    for full, swa in ((1, 1), (0, 0)):
        with pytest.raises(InvariantError, match=r"LOCK-2: (full|swa) slot 1: expected a lock count of [01]"):
            book.check(hybrid_tree(full=full, swa=swa, mamba=mamba))
    book.check(hybrid_tree(full=1, swa=0, mamba=mamba))
    with pytest.raises(InvariantError, match="LOCK-2: mamba slot 1"):
        book.check(hybrid_tree(full=1, swa=0, mamba=1 - mamba))


def test_an_owner_without_a_component_locks_nothing_of_it() -> None:
    book = LockBook((FULL, SWA, MAMBA), Tier.DEVICE)
    book.acquire(without=(MAMBA,))
    with pytest.raises(InvariantError, match="LOCK-2: mamba slot 1: expected a lock count of 0"):
        book.check(hybrid_tree(full=1, swa=1, mamba=1))
    book.check(hybrid_tree(full=1, swa=1, mamba=0))


def test_a_cleared_book_expects_no_locks(book: LockBook) -> None:
    book.acquire()
    book.check(tree(1))
    book.clear()
    book.check(tree(0))
    with pytest.raises(InvariantError, match="LOCK-2"):
        book.check(tree(1))


def two_tiers(locks: int, pins: int, host_locks: int, host_pins: int) -> Snapshot:
    """One node of one token, slot 1 on the device and slot 2 on the host."""
    view = below({FULL: slots(2)}, locks={FULL: host_locks}, pins={FULL: pins}, host_pins={FULL: host_pins})
    return snapshot([node((0,), {FULL: slots(1)}, locks={FULL: locks})], {}, host_tier([view], {}))


def test_pins_of_the_cache_have_no_owner(book: LockBook) -> None:
    book.check(two_tiers(2, 2, 0, 0))
    owner = book.acquire()
    book.check(two_tiers(3, 2, 0, 0))
    assert protected(book, owner) == [1], f"expected [1], got {protected(book, owner)}"
    with pytest.raises(InvariantError, match=r"LOCK-2: full slot 1: expected a lock count of 1, .*got 2$"):
        book.check(two_tiers(3, 1, 0, 0))


def test_locks_on_the_host_have_a_book_of_their_own(book: LockBook) -> None:
    host_book = LockBook((FULL,), Tier.HOST)
    book.check(two_tiers(0, 0, 3, 2))
    owner = host_book.acquire()
    host_book.check(two_tiers(0, 0, 3, 2))
    assert protected(host_book, owner) == [2], f"expected host slot 2, got {protected(host_book, owner)}"
    with pytest.raises(InvariantError, match=r"LOCK-2: full slot 2 on the host: expected a lock count of 1, .*got 0$"):
        host_book.check(two_tiers(0, 0, 2, 2))
    with pytest.raises(InvariantError, match=r"LOCK-5: full slot 2 on the host: .*got a slot that is not in the tree"):
        host_book.check(snapshot([], {}, host_tier([], {})))
