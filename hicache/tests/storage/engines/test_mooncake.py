"""MooncakeStorage: nodes that are gone, objects of others, pages that are replaced while they are read, and options."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from hicache.errors import ConfigurationError
from hicache.storage.mooncake import LEASE_EXPIRED, MooncakeStorage
from hicache.testing.storage.page_bytes import Sheet, page_bytes
from hicache.tests.storage.engines.engine import EngineProcess

from .conftest import PAGE_BYTES, SCOPE, Open, Start
from .test_faults import CAPACITY_BYTES, KEYS, filled, kept, read, until

pytestmark = pytest.mark.parametrize("engine", ["mooncake"], indirect=True)

DAMAGED, OTHER = KEYS[0], KEYS[1]


def name(key: str) -> str:
    """The name of the object."""
    return f"hicache/{SCOPE}/{key}"


@pytest.fixture
def process(start: Start) -> EngineProcess:
    """A master with one node."""
    return start()


@pytest.fixture
def client(process: EngineProcess) -> Iterator[Any]:
    """A client that writes what no backend does."""
    from mooncake.store import MooncakeDistributedStore

    with closing(MooncakeDistributedStore()) as opened:
        address = f"127.0.0.1:{process.settings.port}"
        assert opened.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", address) == 0, "the master is there"
        yield opened


def damaged(kind: str, sound: bytes, other: bytes) -> bytes:
    """What is stored in the place of a page. `sound`: its object. `other`: that of another page."""
    return {
        "a page under another name": other,
        "other bytes in it": sound[:5_000] + b"other bytes" + sound[5_011:],
        "another checksum": b"12345678" + sound[8:],
        "a byte less": sound[:-1],
        "a byte more": sound + b"1",
        "a few bytes": b"1",
    }[kind]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("a page under another name", "corrupt"),
        ("other bytes in it", "corrupt"),
        ("another checksum", "corrupt"),
        ("a byte less", "short"),
        ("a byte more", "long"),
        ("a few bytes", "short"),
    ],
)
def test_a_damaged_object_is_a_miss_and_is_removed(
    process: EngineProcess, open_on: Open, client: Any, kind: str, reason: str
) -> None:
    backend = open_on(process)
    kept(backend)
    data = damaged(kind, client.get(name(DAMAGED)), client.get(name(OTHER)))
    assert client.remove(name(DAMAGED), True) == client.put(name(DAMAGED), data) == 0, "the object is replaced"
    assert read(backend) == [key != DAMAGED for key in KEYS], f"STORE-3, STORE-13: {kind} is a miss, the rest is there"
    assert backend.stats().misses == {reason: 1}, f"STORE-3: expected {reason}, got {backend.stats()}"
    assert backend.has([DAMAGED]) == [False], "STORE-3: it is removed"
    assert all(kept(backend)), "STORE-3: it can be written again"
    assert all(read(backend)), "STORE-3: and read"


@pytest.mark.parametrize("is_replaced", [False, True], ids=["its own bytes", "the bytes of another page"])
def test_a_read_that_outlives_its_lease_gives_its_own_bytes_or_a_miss(
    process: EngineProcess, open_on: Open, client: Any, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    backend = open_on(process)
    kept(backend)
    page = page_bytes(SCOPE, OTHER if is_replaced else DAMAGED, 0, PAGE_BYTES)

    class Late:
        """A client whose reads end when their leases have expired: the slot may have another page by then."""

        def batch_get_into_multi_buffers(self, names: list[str], places: Any, sizes: Any) -> list[int]:
            read_names = [name(OTHER) if is_replaced else one for one in names]
            client.batch_get_into_multi_buffers(read_names, places, sizes)
            return [LEASE_EXPIRED] * len(names)

    sheet = Sheet([(PAGE_BYTES,)])
    with monkeypatch.context() as late:
        late.setattr(backend, "_client", Late())
        answers = backend.get([DAMAGED], sheet.pages, [])
    assert sheet.read(0) == page, "the bytes of the slot have arrived"
    assert answers == [not is_replaced], f"STORE-3: the bytes of another page are a miss, got {answers}"
    assert backend.has([DAMAGED]) == [True], "the object itself is sound, and stays"


def test_a_full_store_evicts_and_takes_new_pages_soon(start: Start, open_on: Open) -> None:
    backend, keys, answers = filled(start(capacity_bytes=CAPACITY_BYTES), open_on)
    assert answers.count(True) > 0, "STORE-8: there was room for some"
    until(lambda: all(kept(backend)), "STORE-8: pages are evicted for others")
    assert read(backend) == [True] * len(KEYS), "STORE-5: a batch does not evict its own pages"
    there = read(backend, keys)
    assert 0 < there.count(True) < len(keys), f"STORE-8: {len(keys)} pages do not fit, {there.count(True)} are there"
    stats = backend.stats()
    assert set(stats.refused) <= {"full"}, f"STORE-8: pages without room are counted as such, got {stats}"
    assert stats.object_bytes <= CAPACITY_BYTES, f"STORE-8: at most {CAPACITY_BYTES} bytes are kept, got {stats}"
    assert stats.removed > 0, f"STORE-8: what was evicted is counted, got {stats}"


@pytest.mark.parametrize("fails", ["kill_node", "pause_node"])
def test_pages_on_a_node_that_is_gone_are_misses(
    process: EngineProcess, open_on: Open, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    for limit in ("MC_TCP_STATUS_TIMEOUT_SEC", "MC_TCP_PROGRESS_TIMEOUT_SEC"):
        monkeypatch.setenv(limit, "1")
    backend = open_on(process, timeout_s=1, retry_s=0)
    kept(backend)
    getattr(process, fails)()
    assert read(backend) == [False] * len(KEYS), "STORE-3: no page can be read, though the master has their names"
    misses = backend.stats().misses
    assert sum(misses.values()) == len(KEYS), f"STORE-3: a miss each, got {misses}"
    # A node that does not answer is waited for, and the master may have found out meanwhile.
    assert set(misses) <= {"error", "absent"}, f"STORE-3: errors, until the master has found out, got {misses}"
    until(lambda: not any(backend.has(KEYS)), "the master has found out")
    assert read(backend) == [False] * len(KEYS), "STORE-3: they are absent"
    assert backend.stats().misses["absent"] >= len(KEYS), f"STORE-3: they are absent, got {backend.stats()}"
    assert kept(backend) == [False] * len(KEYS), "STORE-3: no node has room"


def test_memory_that_an_instance_lends_is_there_until_it_is_closed(process: EngineProcess, open_on: Open) -> None:
    process.kill_node()
    lending = open_on(process, segment_bytes=64 << 20)
    other = open_on(process)
    until(lambda: all(kept(other)), "the pages go to the memory of the other instance")
    until(lambda: all(read(other)), "and come back")
    lending.close()
    assert not any(read(other)), "STORE-3: they are gone with the instance"


def test_registered_memory_is_read_and_written(process: EngineProcess, open_on: Open) -> None:
    backend, sheet = open_on(process), Sheet([(PAGE_BYTES // 2, PAGE_BYTES // 2)] * len(KEYS))
    backend.register([piece for page in sheet.pages for piece in page])
    for number, key in enumerate(KEYS):
        sheet.write(number, page_bytes(SCOPE, key, 0, PAGE_BYTES))
    assert backend.set(KEYS, sheet.pages, []) == [True] * len(KEYS), "they are stored"
    assert read(backend) == [True] * len(KEYS), "STORE-3: with the bytes that were given"


def test_a_scope_sees_no_objects_of_others(process: EngineProcess, open_on: Open, client: Any) -> None:
    backend = open_on(process)
    client.put("theirs", b"1")
    client.put(f"hicache/{SCOPE}-2/{KEYS[0]}", b"1")
    client.put(f"a/{name(KEYS[0])}", b"1")
    kept(backend)
    stats = backend.stats()
    assert (stats.objects, stats.object_bytes) == (len(KEYS), len(KEYS) * PAGE_BYTES), f"STORE-7: got {stats}"
    assert backend.clear(), "STORE-7: all are removed"
    assert backend.stats().objects == 0, "STORE-7: all are removed"
    others = ["theirs", f"hicache/{SCOPE}-2/{KEYS[0]}", f"a/{name(KEYS[0])}"]
    assert client.batch_is_exist(others) == [1] * 3, "STORE-7: the objects of others stay"


def test_without_the_port_of_the_metrics_pages_are_stored_and_not_counted(
    process: EngineProcess, open_on: Open
) -> None:
    backend = open_on(process, metrics_port=1)
    assert kept(backend) == read(backend) == [True] * len(KEYS), "pages do not need it"
    assert backend.stats().objects == 0, "the number of objects is unknown"
    assert kept(backend) == read(backend) == [True] * len(KEYS), "the failure concerns the statistics alone"


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    "options",
    [{"port": 0}, {"port": "50051"}, {"timeout_s": 0}, {"retry_s": True}, {"segment_bytes": -1}, {"url": 1}],
    ids=str,
)
def test_an_option_that_is_wrong_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        MooncakeStorage(SCOPE, options)
