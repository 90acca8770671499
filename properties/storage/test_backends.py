"""Searches for sequences of verbs, and for faults, after which a backend gives a wrong answer."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from hicache.testing.contract import clause
from hicache.testing.storage.driver import StorageDriver
from hicache.testing.storage.fault_runs import NO_RUNS, fault_run
from hicache.testing.storage.faults import DiskFaults
from hicache.testing.storage.page_bytes import cut_evenly
from hicache.testing.storage.room import has_room
from hicache.testing.storage.subject import BackendSubject, Place
from hicache.types import HitPolicy

FAULT_RUNS = 60
PAGE = 512
ROOM = 6
POOLS = ("kv", "indexer", "mamba")
PAGES = 5
KEYS = [f"{pool}/{page}" for pool in POOLS for page in range(PAGES)]

SOME_KEYS = st.lists(st.sampled_from(KEYS), min_size=0, max_size=8, unique=True)
WHICH = st.integers(0, 3)
CUTS = st.sampled_from([(PAGE,), (1, 510, 1), cut_evenly(PAGE, 20), (0, PAGE)])
NEEDS = st.tuples(st.sampled_from(list(HitPolicy)), st.integers(1, 3))


class BackendMachine(RuleBasedStateMachine):
    """Any order of verbs on two scopes in one place, each with one or two instances; a dictionary gives the answers.

    `is_small`: the capacity is a few pages. `fails`: some calls of the disk fail.
    """

    subject: ClassVar[BackendSubject]
    folder: ClassVar[Path]
    is_small: ClassVar[bool]
    fails: ClassVar[bool]
    operations: ClassVar[list[int]]

    def __init__(self) -> None:
        super().__init__()
        room = ROOM * PAGE if self.is_small else 1 << 20
        self.place = Place(self.subject, self.folder, page_bytes=PAGE, capacity_bytes=room)
        scopes = ("a", "a-a")
        pages = len(scopes) * len(KEYS)
        forgets = self.is_small or self.fails or not has_room(self.place, pages, pages * PAGE)
        self.stores = [StorageDriver(self.place, scope=name, forgets=forgets) for name in scopes]
        self.disk = DiskFaults(random.Random(0))

    @initialize(seed=st.integers(0, 1 << 16))
    def choose_the_faults(self, seed: int) -> None:
        """Draw the seed that decides which calls of the disk fail."""
        self.disk = DiskFaults(random.Random(seed))

    @rule(which=WHICH, keys=SOME_KEYS, version=st.integers(0, 2), cuts=CUTS, is_sound=st.booleans())
    def keep(self, which: int, keys: list[str], version: int, cuts: tuple[int, ...], is_sound: bool) -> None:
        """`set`."""
        store, instance = self.chosen(which)
        with self.faults(is_sound):
            store.set(keys, version, cuts=cuts, instance=instance)

    @rule(which=WHICH, keys=SOME_KEYS, cuts=CUTS, is_sound=st.booleans())
    def read(self, which: int, keys: list[str], cuts: tuple[int, ...], is_sound: bool) -> None:
        """`get`."""
        store, instance = self.chosen(which)
        with self.faults(is_sound):
            store.get(keys, cuts=cuts, instance=instance)

    @rule(which=WHICH, keys=SOME_KEYS, is_sound=st.booleans())
    def look(self, which: int, keys: list[str], is_sound: bool) -> None:
        """`has`."""
        store, instance = self.chosen(which)
        with self.faults(is_sound):
            store.has(keys, instance=instance)

    @rule(which=WHICH, pages=st.integers(0, PAGES), indexer=NEEDS, mamba=NEEDS)
    def ask(self, which: int, pages: int, indexer: tuple[HitPolicy, int], mamba: tuple[HitPolicy, int]) -> None:
        """`exists`."""
        store, instance = self.chosen(which)
        kv, *others = [[f"{pool}/{page}" for page in range(pages)] for pool in POOLS]
        needs = [(keys, *need) for keys, need in zip(others, (indexer, mamba), strict=True)]
        store.exists(kv, needs, instance=instance)

    @rule(which=WHICH, keys=SOME_KEYS, pages=st.integers(0, 9))
    def mismatch(self, which: int, keys: list[str], pages: int) -> None:
        """`get` and `set` with different numbers of keys and pages."""
        store, instance = self.chosen(which)
        if len(keys) != pages:
            store.get_unequal(keys, pages, instance=instance)
            store.set_unequal(keys, pages, 0, instance=instance)

    @rule(which=WHICH, is_sound=st.booleans())
    def clear(self, which: int, is_sound: bool) -> None:
        """`clear`."""
        store, instance = self.chosen(which)
        with self.faults(is_sound):
            store.clear(instance=instance)

    @rule(which=WHICH)
    def reopen(self, which: int) -> None:
        """Close an instance, and open another one for the same scope."""
        store, instance = self.chosen(which)
        store.reopen(instance)

    @rule(which=WHICH)
    def open(self, which: int) -> None:
        """Open a second instance."""
        store, _ = self.chosen(which)
        if len(store.instances) == 1:
            store.open()

    @invariant()
    def capacity_is_bounded(self) -> None:
        """STORE-8: no scope holds more than its capacity."""
        for store in self.stores if self.is_small else ():
            kept = store.instances[0].stats().object_bytes
            assert kept <= ROOM * PAGE, f"STORE-8: expected at most {ROOM * PAGE} bytes, got {kept}"

    def teardown(self) -> None:
        """Without disk faults every page that is stored can be read."""
        try:
            for store in self.stores:
                store.get(KEYS)
        finally:
            self.operations.append(sum(store.operations for store in self.stores))
            self.place.close()

    def chosen(self, which: int) -> tuple[StorageDriver, int]:
        """One of the scopes, and one of its instances."""
        store = self.stores[which % 2]
        return store, which // 2 % len(store.instances)

    def faults(self, is_sound: bool) -> AbstractContextManager[None]:
        """The disk faults during a verb."""
        return nullcontext() if is_sound or not self.fails else self.disk.on()


def search(subject: BackendSubject, folder: Path, operations: list[int], *, is_small: bool, fails: bool) -> None:
    """Let Hypothesis search for a sequence with a wrong answer. `operations`: gets the verbs of each example."""
    bound = {"subject": subject, "folder": folder, "is_small": is_small, "fails": fails, "operations": operations}
    machine: type[BackendMachine] = type("Machine", (BackendMachine,), bound)
    # An example opens no cache, so it takes less time than the profiles assume.
    many = settings(max_examples=settings().max_examples * 2)
    run_state_machine_as_test(machine, settings=many)


@clause("KEY-2", "STORE-1", "STORE-2", "STORE-3", "STORE-5", "STORE-6", "STORE-7")
def test_any_order_of_verbs(backend: BackendSubject, tmp_path: Path, operations: list[int]) -> None:
    """With enough capacity and no disk faults a backend answers as a dictionary does."""
    search(backend, tmp_path, operations, is_small=False, fails=False)


@clause("STORE-1", "STORE-3", "STORE-5", "STORE-8")
def test_any_order_of_verbs_where_room_is_short(backend: BackendSubject, tmp_path: Path, operations: list[int]) -> None:
    """Objects may be evicted; the others have the right bytes."""
    if not backend.is_bounded:
        pytest.skip(f"no option of {backend.name} sets its capacity: it cannot be limited")
    search(backend, tmp_path, operations, is_small=True, fails=False)


@clause("STORE-3", "STORE-4")
def test_any_order_of_verbs_while_the_disk_fails(
    backend: BackendSubject, tmp_path: Path, operations: list[int]
) -> None:
    """Pages may be lost or refused; the others have the right bytes, and nothing raises."""
    if not backend.is_on_disk:
        pytest.skip(f"no option of {backend.name} is a folder: there is no disk that could fail")
    search(backend, tmp_path, operations, is_small=False, fails=True)


@clause("STORE-3", "STORE-4")
def test_runs_with_faults(backend: BackendSubject, tmp_path: Path, operations: list[int]) -> None:
    """A few of the runs that `hicache verify-storage --fault-runs` does."""
    counts = NO_RUNS
    for seed in range(FAULT_RUNS):
        counts += fault_run(backend, tmp_path, seed, operations)
    assert counts.faults or not backend.is_on_disk, f"STORE-3: expected some calls to fail, got {counts}"
    assert counts.hits, f"STORE-3: expected some pages to be read, got {counts}"
