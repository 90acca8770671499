"""RedisStorage on a cluster: nodes that are down, slots that move or that no node has, and options."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from hicache.errors import ConfigurationError
from hicache.storage.base import StorageBackend
from hicache.storage.pause import Pause
from hicache.storage.redis import RedisStorage
from hicache.storage.redis_cluster import RedisCluster
from hicache.storage.redis_server import Address, RedisServer
from hicache.tests.storage.engines.engine import HOST, Engine, EngineProcess
from hicache.tests.storage.engines.engines import ENGINES

from .conftest import PAGE_BYTES, SCOPE, Open, Start
from .test_faults import all_fail, kept, read, until
from .test_redis import DAMAGE, DAMAGED, name

pytestmark = pytest.mark.parametrize("engine", ["redis-cluster"], indirect=True)

KEYS = [f"kv.0of1/{number:064x}" for number in range(60)]
ALL = [True] * len(KEYS)


def slot_of(key: str) -> int:
    """The slot of the object of a key."""
    from redis.crc import key_slot

    return int(key_slot(name(key).encode()))


@pytest.fixture
def process(start: Start) -> EngineProcess:
    """A cluster."""
    return start()


@pytest.fixture
def nodes(process: EngineProcess) -> Iterator[list[Any]]:
    """A client of each node."""
    import redis

    with ExitStack() as opened:
        yield [opened.enter_context(closing(redis.Redis(port=port))) for port in process.settings.ports]


def is_open(backend: StorageBackend) -> bool:
    """Whether a node has not answered since it failed."""
    breaker = backend.breaker()
    assert breaker is not None, "the backend has a breaker"
    return breaker.is_open


def owner_of(node: Any, slot: int) -> int:
    """The number of the port of the node that has a slot, as one of the nodes tells."""
    table = node.execute_command("CLUSTER", "SLOTS")
    return next(int(primary[1]) for begin, last, primary, *_ in table if begin <= slot <= last)


def on_node(process: EngineProcess, nodes: Sequence[Any], number: int) -> list[bool]:
    """Whether each of KEYS belongs to a node."""
    port = process.settings.ports[number]
    return [owner_of(nodes[0], slot_of(key)) == port for key in KEYS]


def of_one_slot(count: int) -> list[str]:
    """Keys whose objects share a slot."""
    found: dict[int, list[str]] = {}
    for number in range(1_000_000):
        key = f"kv.0of1/{number:064x}"
        some = found.setdefault(slot_of(key), [])
        some.append(key)
        if len(some) == count:
            return some
    raise AssertionError(f"no slot has {count} of a million keys")


def test_the_pages_are_spread_over_the_nodes_by_slot(process: EngineProcess, open_on: Open, nodes: list[Any]) -> None:
    backend = open_on(process)
    assert kept(backend, KEYS) == read(backend, KEYS) == backend.has(KEYS) == ALL, "all are stored"
    held = [node.dbsize() for node in nodes]
    assert held == [on_node(process, nodes, number).count(True) for number in range(3)], "each has those of its slots"
    assert min(held) > 0, f"each node has some of {len(KEYS)} pages, got {held}"
    stats = backend.stats()
    assert (stats.objects, stats.object_bytes) == (len(KEYS), len(KEYS) * PAGE_BYTES), f"all are counted, got {stats}"
    assert backend.clear(), "STORE-7: all are removed"
    assert [node.dbsize() for node in nodes] == [0, 0, 0], "STORE-7: from every node"


def test_a_node_that_is_killed_costs_its_own_pages_alone(
    process: EngineProcess, open_on: Open, nodes: list[Any]
) -> None:
    backend = open_on(process, retry_s=0)
    kept(backend, KEYS)
    others = [not one for one in on_node(process, nodes, 1)]
    process.kill(1)
    assert read(backend, KEYS) == backend.has(KEYS) == others, "STORE-3: the other nodes answer for their pages"
    assert kept(backend, KEYS) == others, "STORE-3: and are written to"
    stats, lost = backend.stats(), others.count(False)
    assert stats.misses == stats.refused == {"error": lost}, f"STORE-3: the others are errors, got {stats}"
    assert stats.objects == others.count(True), f"what the other nodes have is counted, got {stats}"
    assert not backend.clear(), "STORE-7: what the node may have was not removed"
    assert is_open(backend), "a node has not answered since"
    process.start()
    until(lambda: kept(backend, KEYS) == ALL, "the node is back")
    assert read(backend, KEYS) == ALL, "all hit again"
    assert not is_open(backend), "all nodes answer"


def test_a_node_that_hangs_is_asked_once_and_the_others_answer(
    process: EngineProcess, open_on: Open, nodes: list[Any]
) -> None:
    backend = open_on(process, timeout_s=process.engine.timeout_s, retry_s=3_600)
    kept(backend, KEYS)
    others = [not one for one in on_node(process, nodes, 2)]
    process.pause(2)
    assert read(backend, KEYS) == others, "STORE-3: the others answer in the same call"
    process.resume(2)
    assert read(backend, KEYS) == others, "the node is asked again after retry_s, and the others at once"
    assert open_on(process).has(KEYS) == ALL, "another instance asks it"


@pytest.mark.usefixtures("engine")
def test_nodes_are_asked_side_by_side() -> None:
    import redis

    pause, all_at_once = Pause(0, time.monotonic), Barrier(3)

    def connect(address: Address) -> RedisServer:
        return RedisServer(redis, address, redis.ConnectionPool(port=address[1]), pause)

    cluster = RedisCluster(redis, connect, [(HOST, port) for port in (1, 2, 3)], pause, 0)
    # The barrier is broken unless all three wait for it: nodes that hang are waited for once, and not in turn.
    cluster.ask(cluster.first, lambda _: [all_at_once.wait(60)])
    cluster.close()


def test_nodes_that_hang_together_are_answered_as_errors(process: EngineProcess, open_on: Open) -> None:
    backend = open_on(process, timeout_s=process.engine.timeout_s, retry_s=0)
    kept(backend, KEYS)
    process.pause()
    all_fail(backend)
    process.resume()
    until(lambda: read(backend, KEYS) == ALL, "the nodes go on, with what was stored before")


def test_a_slot_moves_while_it_is_used(process: EngineProcess, open_on: Open, nodes: list[Any]) -> None:
    keys = of_one_slot(4)
    slot, stored = slot_of(keys[0]), keys[:3]
    backend = open_on(process)
    assert kept(backend, stored) == [True] * 3, "three pages of one slot"
    at = process.settings.ports.index(owner_of(nodes[0], slot))
    source, target = nodes[at], nodes[(at + 1) % 3]
    source_id, target_id = (node.execute_command("CLUSTER", "MYID") for node in (source, target))
    target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
    source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
    port = target.connection_pool.connection_kwargs["port"]
    source.migrate(HOST, port, [name(stored[0])], 0, 5_000)
    assert read(backend, stored) == backend.has(stored) == [True] * 3, "ASK: of the moved page and of the others"
    assert kept(backend, keys) == read(backend, keys) == [True] * 4, "ASK: a new page goes to the new node"
    assert target.dbsize() == 2, "the moved page and the new one are there"
    assert backend.stats().objects == 4, "pages of both nodes are counted"
    source.migrate(HOST, port, [name(key) for key in stored[1:]], 0, 5_000)
    for node in (target, source, *nodes):
        node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target_id)
    assert read(backend, keys) == backend.has(keys) == kept(backend, keys) == [True] * 4, "MOVED: the new node has all"
    stats = backend.stats()
    assert (stats.misses, stats.refused) == ({}, {}), f"no page was lost on the way, got {stats}"
    assert stats.written == 4, f"and none was written twice, got {stats}"


def test_clear_removes_the_pages_of_a_slot_that_moves(process: EngineProcess, open_on: Open, nodes: list[Any]) -> None:
    keys = of_one_slot(3)
    slot = slot_of(keys[0])
    backend = open_on(process)
    kept(backend, keys)
    at = process.settings.ports.index(owner_of(nodes[0], slot))
    source, target = nodes[at], nodes[(at + 1) % 3]
    source_id, target_id = (node.execute_command("CLUSTER", "MYID") for node in (source, target))
    target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
    source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
    source.migrate(HOST, target.connection_pool.connection_kwargs["port"], [name(keys[0])], 0, 5_000)
    assert backend.clear(), "STORE-7: all are removed"
    assert [node.dbsize() for node in nodes] == [0, 0, 0], "STORE-7: from both nodes"


def test_slots_that_another_node_takes_over_are_found(process: EngineProcess, open_on: Open, nodes: list[Any]) -> None:
    backend = open_on(process, retry_s=0)
    kept(backend, KEYS)
    process.kill(2)
    table = nodes[0].execute_command("CLUSTER", "SLOTS")
    begin, last = next(one[:2] for one in table if one[2][1] == process.settings.ports[2])
    for node in nodes[:2]:
        node.execute_command("CLUSTER", "DELSLOTSRANGE", begin, last)
    nodes[0].execute_command("CLUSTER", "ADDSLOTSRANGE", begin, last)
    until(lambda: kept(backend, KEYS) == ALL, "the table of slots is read again")
    assert read(backend, KEYS) == ALL, "each page has a node"
    assert not is_open(backend), "the dead node has no slots any more"


def test_a_replica_takes_over(engine: Engine, tmp_path: Path, open_on: Open) -> None:
    import redis

    with closing(EngineProcess(replace(engine, processes=6), tmp_path)) as process, ExitStack() as opened:
        backend = open_on(process, nodes=[f"{HOST}:{port}" for port in process.settings.ports[:3]], retry_s=0.01)
        assert kept(backend, KEYS) == ALL, "the pages are stored"
        assert backend.stats().objects == len(KEYS), "those of replicas are not counted"
        nodes = [opened.enter_context(closing(redis.Redis(port=port))) for port in process.settings.ports]
        until(lambda: sum(node.dbsize() for node in nodes) == 2 * len(KEYS), "the replicas have all of them")
        process.kill(1)
        assert not all(read(backend, KEYS)), "STORE-3: pages of the node are misses at first"
        until(lambda: read(backend, KEYS) == ALL, "its replica has its slots, and its pages")
        assert not is_open(backend), "all nodes with slots answer"
        assert backend.clear(), "STORE-7: all are removed"


@pytest.mark.parametrize("whole", ["yes", "no"])
def test_slots_that_no_node_has_are_errors(process: EngineProcess, open_on: Open, nodes: list[Any], whole: str) -> None:
    slot = slot_of(KEYS[0])
    for node in nodes:
        node.config_set("cluster-require-full-coverage", whole)
        node.execute_command("CLUSTER", "DELSLOTS", slot)
    backend = open_on(process, retry_s=0)
    # A node that requires all slots refuses the others too; it looks from time to time.
    expected = [whole == "no" and slot_of(key) != slot for key in KEYS]
    until(lambda: kept(backend, KEYS) == expected, "a page without a node is refused")
    assert read(backend, KEYS) == backend.has(KEYS) == expected, "STORE-3: and is a miss"
    assert set(backend.stats().misses) == {"error"}, "STORE-3: it is not an absent page: it may be there later"
    assert not backend.clear(), "STORE-7: it may be there later"
    nodes[0].execute_command("CLUSTER", "ADDSLOTS", slot)
    until(lambda: kept(backend, KEYS) == ALL, "the slot has a node again")
    assert read(backend, KEYS) == ALL, "all are there"


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_object_is_a_miss_and_is_removed(process: EngineProcess, open_on: Open, kind: str) -> None:
    import redis

    backend = open_on(process)
    kept(backend)
    reason, damage = DAMAGE[kind]
    with closing(redis.RedisCluster(host=HOST, port=process.settings.port)) as client:
        damage(client)
    assert not read(backend, [DAMAGED])[0], f"STORE-3, STORE-13: {kind} is a miss"
    assert backend.stats().misses == {reason: 1}, f"STORE-3: expected {reason}, got {backend.stats()}"
    assert backend.has([DAMAGED]) == [False], "STORE-3: it is removed"
    assert all(kept(backend)), "STORE-3: it can be written again"
    assert all(read(backend)), "STORE-3: and read"


def test_an_access_that_one_node_withdraws_costs_its_own_pages(
    process: EngineProcess, open_on: Open, nodes: list[Any]
) -> None:
    for node in nodes:
        node.acl_setuser("writer", enabled=True, passwords=["+of-the-writer"], keys=["hicache/*"], categories=["+@all"])
    backend = open_on(process, username="writer", password="of-the-writer")  # noqa: S106 - ends with the test
    assert kept(backend, KEYS) == ALL, "the user has access"
    nodes[1].acl_setuser("writer", enabled=True, reset_keys=True, keys=["theirs/*"])
    expected = [not one for one in on_node(process, nodes, 1)]
    assert read(backend, KEYS) == backend.has(KEYS) == kept(backend, KEYS) == expected, "STORE-3: the others answer"
    with pytest.raises(ConfigurationError, match="refuses the access"):
        open_on(process, username="writer", password="of-the-writer")  # noqa: S106 - ends with the test


def test_one_node_is_enough_to_find_the_others(process: EngineProcess, open_on: Open) -> None:
    for port in process.settings.ports:
        backend = open_on(process, nodes=[f"{HOST}:1", f"{HOST}:{port}"], retry_s=0)
        assert kept(backend, KEYS) == read(backend, KEYS) == ALL, "the others are found, though the first is not a node"


def test_a_node_that_is_opened_as_a_single_server_is_refused(process: EngineProcess, nodes: list[Any]) -> None:
    own = owner_of(nodes[0], slot_of(""))
    port = next(port for port in process.settings.ports if port != own)
    with pytest.raises(ConfigurationError, match="the option `nodes`"):
        RedisStorage(SCOPE, {"port": port})


@pytest.mark.usefixtures("engine")
def test_a_server_without_a_cluster_is_refused(tmp_path: Path) -> None:
    with (
        closing(EngineProcess(ENGINES["redis"], tmp_path)) as server,
        pytest.raises(ConfigurationError, match="cluster support disabled"),
    ):
        RedisStorage(SCOPE, {"nodes": [f"{HOST}:{server.settings.port}"]})


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("nodes", [[], "a:1", ["a"], ["a:"], [":1"], ["a:1:2"], [1], ["a:1", "b"]], ids=str)
def test_nodes_that_are_no_addresses_are_named(nodes: object) -> None:
    with pytest.raises(ConfigurationError, match="nodes"):
        RedisStorage(SCOPE, {"nodes": nodes})


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("other", [{"host": "a"}, {"port": 1}, {"socket": "a"}, {"database": 0}], ids=str)
def test_nodes_exclude_the_options_of_a_single_server(other: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="nodes"):
        RedisStorage(SCOPE, {"nodes": ["a:1"], **other})
