"""RankDriver and TreeDigest: ranks as threads hold one tree; when trees differ, the error has the lines that differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from hicache.config import CacheConfig, ExecutorKind
from hicache.errors import InvariantError, RankError
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.configurations import standard_configurations
from hicache.testing.ranks.digest import digest_of, tree_differences
from hicache.testing.ranks.driver import RankDriver, config_on
from hicache.testing.ranks.world import Mesh, RankWorld, Team
from hicache.testing.snapshot import FetchView, HostNodeView, HostView, NodeView, PoolView, Snapshot, StorageView
from hicache.testing.snapshot import TransferView as Transfer
from hicache.testing.storage.scripted import store_of
from hicache.types import SHARED, Namespace, Slots, StorageKind, TransferKind

NAME = "full/page16/lru/write_through-page_first-stepped/ScriptedStorage-wait_complete-stepped"

STREAMS = next(
    one
    for one in standard_configurations(ReferenceAdapter.capabilities)
    if one.host is not None and one.host.executor is ExecutorKind.STREAMS and one.storage is None
)

Act = Callable[[RankDriver], object]


@pytest.fixture
def config() -> CacheConfig:
    """FULL alone on three tiers, with one KV head, which pipeline and context parallelism do not divide."""
    return next(one for one in standard_configurations(ReferenceAdapter.capabilities) if one.name == NAME)


@pytest.fixture
def team() -> Iterator[Team]:
    opened = Team(Mesh(1, 2, 1), timeout_s=2.0)
    yield opened
    opened.close()


@pytest.fixture
def drivers(team: Team, config: CacheConfig) -> Iterator[list[RankDriver]]:
    opened = team.each(lambda rank: RankDriver(ReferenceAdapter, config, team.worlds[rank]))
    for driver in opened:
        store = store_of(driver.config)
        assert store is not None, "a store of its own"
        store.empty()
    yield opened
    for driver in opened:
        driver.adapter.close()


ON_GPU = cast(RankWorld, SimpleNamespace(device="cuda:1", topology=Mesh(1, 2, 1).topology(1), rank=1))
"""One of two ranks that NCCL connects."""


def test_a_cache_whose_copies_a_test_moves_stays_on_the_cpu(config: CacheConfig) -> None:
    opened = config_on(config, ON_GPU)
    assert opened.device == "cpu", f"NCCL takes the tensors of collectives, and no copies: got {opened.device}"


def test_a_cache_on_streams_is_on_the_gpu_of_its_rank() -> None:
    opened = config_on(STREAMS, ON_GPU)
    assert opened.device == "cuda:1", f"expected the device of the rank, got {opened.device}"


def put(driver: RankDriver) -> None:
    """Insert a prompt of two pages."""
    driver.put(driver.key(driver.prompt([1, 2])))


def test_ranks_that_do_the_same_hold_one_tree_to_the_end(team: Team, drivers: list[RankDriver]) -> None:
    team.each(lambda rank: put(drivers[rank]))
    team.each(lambda rank: drivers[rank].step())
    ended = team.each(lambda rank: drivers[rank].let_end(TransferKind.BACKUP))
    team.each(lambda rank: drivers[rank].drain())
    assert ended == [1, 1], f"expected one backup to end on each rank, got {ended}"
    assert drivers[0].let_end(*StorageKind) == 0, "expected nothing in flight after drain"


def test_a_tree_that_differs_is_reported_on_every_rank(team: Team, drivers: list[RankDriver]) -> None:
    def act(rank: int) -> str:
        if rank:
            put(drivers[rank])
        try:
            drivers[rank].compare("put")
        except InvariantError as error:
            return str(error)
        return "nothing"

    messages = team.each(act)
    assert messages[0] == messages[1], f"expected the same message on each rank, got {messages}"
    assert messages[0].startswith("RANK-1: put: expected the same tree on every rank, got rank 1 has +"), (
        f"got {messages[0]}"
    )
    assert "+node 0..32 " in messages[0], f"expected the node that rank 1 has, got {messages[0]}"


def test_a_rank_that_skips_a_step_is_named(team: Team, drivers: list[RankDriver]) -> None:
    with pytest.raises(RankError, match=r"^rank 1 of cp skipped call \d+ \(MIN progress\)"):
        team.each(lambda rank: drivers[rank].compare("nothing") if rank else drivers[rank].step())


def test_bytes_depend_on_the_rank_that_holds_them(team: Team, drivers: list[RankDriver]) -> None:
    team.each(lambda rank: put(drivers[rank]))
    team.each(lambda rank: drivers[rank].drain())
    stores = [store_of(driver.config) for driver in drivers]
    contents = [set(store.objects.values()) for store in stores if store is not None]
    assert all(len(content) == 2 for content in contents), f"expected two pages in each store, got {contents}"
    assert not contents[0] & contents[1], "RANK-6: expected other bytes in each rank's part of the same pages"


def test_a_rank_opens_a_cache_in_its_place_with_a_store_of_its_own(team: Team, config: CacheConfig) -> None:
    configs = [config_on(config, world) for world in team.worlds]
    ranks = [one.topology.cp_rank for one in configs]
    assert ranks == [0, 1], f"RANK-5: expected cp ranks 0 and 1, got {ranks}"
    stores = {one.storage.extra.options["store"] for one in configs if one.storage is not None}
    assert len(stores) == 2, f"expected a store for each rank, got {stores}"
    assert {one.name for one in configs} == {config.name}, "expected the same name on all ranks"


def test_a_cache_is_opened_again_on_every_rank(team: Team, drivers: list[RankDriver]) -> None:
    team.each(lambda rank: put(drivers[rank]))
    team.each(lambda rank: drivers[rank].drain())
    team.each(lambda rank: drivers[rank].restart())
    key = drivers[0].key(drivers[0].prompt([1, 2]))
    tickets = team.each(lambda rank: drivers[rank].prefetch(key))
    team.each(lambda rank: drivers[rank].drain())
    brought = team.each(lambda rank: drivers[rank].check_prefetch(tickets[rank]))
    assert brought == [32, 32], f"FETCH-7: expected both pages from storage on each rank, got {brought}"


# TreeDigest: equal for equal trees in any slots, and different when anything else differs.


def slots(first: int, count: int) -> Slots:
    """`count` consecutive slots."""
    return np.arange(first, first + count, dtype=np.int64)


def tokens(*numbers: int) -> bytes:
    """The segment of a node."""
    return np.array(numbers, dtype="<i4").tobytes()


def node(segment: bytes, parent: int, start: int, first_slot: int) -> NodeView:
    """A node that is on the device and locked once."""
    count = len(segment) // 4
    return NodeView(
        parent, SHARED, segment, start, start + count, {"full": slots(first_slot, count)}, {"full": 1}, hits=2
    )


def snapshot_of(first_slot: int, *, reverse: bool = False) -> Snapshot:
    """Two nodes below the root, in slots from `first_slot` on, the second one also on the host; a backup in flight."""
    nodes = [node(tokens(1, 2), -1, 0, first_slot), node(tokens(7, 8), -1, 0, first_slot + 2)]
    below = [
        HostNodeView({"full": held}, {"full": 0}, {"full": 0}, {"full": 0}) for held in (None, slots(first_slot, 2))
    ]
    marks = [frozenset[str](), frozenset({"full"})]
    if reverse:
        nodes, below, marks = nodes[::-1], below[::-1], marks[::-1]
    pools = {"full": PoolView(8, slots(first_slot + 4, 3))}
    backup = Transfer(TransferKind.BACKUP, {"full": slots(first_slot, 2)}, {"full": slots(first_slot, 2)})
    host = HostView(tuple(below), pools, (backup,), {"full": slots(0, 0)})
    return Snapshot(tuple(nodes), pools, host, StorageView(tuple(marks), (FetchView({"full": slots(1, 1)}),)))


def first(snapshot: Snapshot, **changes: object) -> Snapshot:
    """The same snapshot with another first node."""
    return replace(snapshot, nodes=(replace(snapshot.nodes[0], **changes), *snapshot.nodes[1:]))  # type: ignore[arg-type]


def below(snapshot: Snapshot, **changes: object) -> Snapshot:
    """The same snapshot with another host part of the second node."""
    assert snapshot.host is not None, "expected a snapshot with a host tier"
    views = (snapshot.host.nodes[0], replace(snapshot.host.nodes[1], **changes))  # type: ignore[arg-type]
    return replace(snapshot, host=replace(snapshot.host, nodes=views))


CHANGES: dict[str, Callable[[Snapshot], Snapshot]] = {
    "key": lambda it: first(it, segment=tokens(1, 3)),
    "namespace": lambda it: first(it, namespace=Namespace("lora", None, None)),
    "residency": lambda it: first(it, slots={"full": None}),
    "locks": lambda it: first(it, locks={"full": 0}),
    "hits": lambda it: first(it, hits=3),
    "host residency": lambda it: below(it, slots={"full": None}),
    "host locks": lambda it: below(it, locks={"full": 1}),
    "pins": lambda it: below(it, pins={"full": 1}),
    "host pins": lambda it: below(it, host_pins={"full": 1}),
    "capacity": lambda it: replace(it, pools={"full": PoolView(9, it.pools["full"].free)}),
    "free slots": lambda it: replace(it, pools={"full": PoolView(8, slots(0, 2))}),
    "transfers": lambda it: replace(it, host=replace(it.host, transfers=())),  # type: ignore[type-var]
    "kept": lambda it: replace(it, host=replace(it.host, kept={"full": slots(0, 1)})),  # type: ignore[type-var]
    "persisted": lambda it: replace(it, storage=StorageView((frozenset(), frozenset()), it.storage.fetches)),  # type: ignore[union-attr]
    "prefetches": lambda it: replace(it, storage=StorageView(it.storage.persisted, ())),  # type: ignore[union-attr]
    "abandoned": lambda it: replace(it, storage=replace(it.storage, abandoned={"full": slots(1, 1)})),  # type: ignore[type-var]
}


def test_slots_and_the_order_of_nodes_do_not_matter() -> None:
    one, other = digest_of(snapshot_of(10)), digest_of(snapshot_of(50, reverse=True))
    assert one == other, f"RANK-1: expected one digest of one tree in other slots, but:\n{one.difference(other)}"


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_any_other_difference_is_reported(change: Callable[[Snapshot], Snapshot]) -> None:
    one, other = digest_of(snapshot_of(10)), digest_of(change(snapshot_of(10)))
    messages = tree_differences([one.text, one.text, other.text])
    assert messages.startswith("rank 2 has + where rank 0 has -:\n"), (
        f"RANK-1: expected a difference on rank 2, got {messages!r}"
    )


def test_a_difference_is_reported_as_the_lines_that_differ() -> None:
    messages = tree_differences(
        [digest_of(it).text for it in (snapshot_of(10), first(snapshot_of(10), locks={"full": 0}))]
    )
    lines = [line.partition("#")[0] + line.partition(":")[2] for line in messages.splitlines()[1:]]
    expected = [
        "-node 0..2 [1 2]  on device full:2; locked full:1; hits 2",
        "+node 0..2 [1 2]  on device full:2; hits 2",
    ]
    assert lines == expected, f"expected {expected}, got {lines}"


def test_equal_trees_report_nothing() -> None:
    assert tree_differences([digest_of(snapshot_of(slot)).text for slot in (1, 9, 30)]) == "", (
        "RANK-1: three equal trees"
    )
