"""The adapters of SGLang's caches and storage backends, with and without SGLang, and their lists of known failures."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from hicache import engines
from hicache.config import CacheConfig
from hicache.engines.below_sglang import scope_of
from hicache.engines.interface import release_of
from hicache.engines.releases import ADAPTERS as RELEASES
from hicache.engines.sglang import ranks, storage
from hicache.engines.sglang.storage import SglangStorage
from hicache.engines.sglang.view import extra_key
from hicache.engines.sglang.workers import Gate, StorageThreads, WorkQueue
from hicache.errors import ConfigurationError
from hicache.storage.base import PoolQuery
from hicache.storage.keys import check_scope
from hicache.testing.adapter import Capability
from hicache.testing.configurations import standard_configurations
from hicache.testing.hybrid_model import TINY_MODEL, HybridModel, reshaped
from hicache.testing.load import load_adapter
from hicache.testing.plugin.known_failures import read_known_failures
from hicache.testing.ranks.world import Mesh
from hicache.testing.storage.page_bytes import Sheet
from hicache.types import HitPolicy, StorageKind, TransferKind

ADAPTERS = {path.rpartition(":")[2]: release for release, path in RELEASES["sglang"].items()} | {
    "Sglang0523Rust": "0.5.23"
}
"""Each adapter class, and the release whose interface it needs."""


EVERY_ADAPTER = pytest.mark.parametrize("name", ADAPTERS)


def tiny(name: str) -> CacheConfig:
    """The standard configuration of this name."""
    return next(config for config in standard_configurations(frozenset(Capability)) if config.name == name)


def path_of(name: str) -> str:
    """The adapter's path, as an option takes it."""
    return f"hicache.engines.sglang.adapter:{name}"


@EVERY_ADAPTER
def test_an_adapter_can_be_named_where_sglang_is_not_installed(name: str) -> None:
    adapter = load_adapter(path_of(name))
    assert Capability.SIZES in adapter.capabilities, f"{name} expected SIZES, got {adapter.capabilities}"


@EVERY_ADAPTER
def test_an_adapter_refuses_another_release(name: str) -> None:
    if release_of("sglang") == ADAPTERS[name]:
        pytest.skip(f"the interface of sglang {ADAPTERS[name]}, which {name} drives, is the one that is installed")
    with pytest.raises(ImportError, match="sglang"):
        load_adapter(path_of(name))(tiny("full/page1/lru"))


def test_no_two_namespaces_are_one_text() -> None:
    named = [{"lora": "a"}, {"salt": "a"}, {"lora": "a", "salt": ""}, {"lora": "a", "salt": "b"}, {"lora": "ab"}]
    texts = [extra_key({"lora": one.get("lora"), "salt": one.get("salt")}) for one in named]
    assert len(set(texts)) == len(named), f"each namespace has a text of its own, got {texts}"
    assert extra_key({"lora": None, "salt": None}) is None, "expected None for the shared namespace"


def test_a_scope_tells_models_with_similar_names_apart() -> None:
    names = ("org/m", "org-m", "org_m", "org.m", "org//m", "org/m ", f"{'m' * 300}1", f"{'m' * 300}2")
    scopes = [check_scope(scope_of(name)) for name in names]
    assert len(set(scopes)) == len(names), f"STORE-1: each model has a scope of its own, got {scopes}"


class Controller(SimpleNamespace):
    """A controller with one thread that calls storage for each item in its queue, as SGLang's threads do."""

    def __init__(self, gate: Gate) -> None:
        queues = {name: WorkQueue() for name in ("prefetch_queue", "prefetch_hit_queue")}
        super().__init__(**queues, extra_host_mem_release_queues={}, ack_write_queue=[])
        self._gate = gate
        self.prefetch_thread = threading.Thread(target=self.prefetch_thread_func, daemon=True)
        self.prefetch_thread.start()

    def prefetch_thread_func(self) -> None:
        while (item := self.prefetch_queue.get()) != "end":
            self._gate.enter()
            if item == "agree":
                self._all_reduce()
            if item == "bad":
                raise RuntimeError("storage raises, as a test wants it")
            self.prefetch_hit_queue.put(item)


@contextmanager
def working(*, is_open: bool) -> Iterator[tuple[Controller, StorageThreads]]:
    """A controller whose thread has ended after the block."""
    gate = Gate(is_open=is_open)
    controller = Controller(gate)
    try:
        yield controller, StorageThreads(controller, gate)
    finally:
        gate.set_open(is_open=True)
        controller.prefetch_queue.put("end")
        controller.prefetch_thread.join(timeout=10)
        assert not controller.prefetch_thread.is_alive(), "expected the thread to have ended"


def test_every_request_is_answered_when_all_threads_are_idle() -> None:
    with working(is_open=True) as (controller, threads):
        for number in range(20):
            controller.prefetch_queue.put(number)
            threads.wait_until_idle()
            assert threads.answers() == (0, number + 1), f"{number + 1} answers, got {threads.answers()}"
            assert not list(threads.operations()), "expected no operation in work"


def test_a_thread_waits_at_the_gate_until_it_is_released() -> None:
    with working(is_open=False) as (controller, threads):
        controller.prefetch_queue.put("first")
        controller.prefetch_queue.put("second")
        for name in ("first", "second"):
            threads.wait_until_idle()
            [(thread, kind, item)] = threads.waiting_at_gate()
            assert (kind, item) == (StorageKind.QUERY, name), f"one question at a time, got {kind}, {item}"
            assert name in threads.operations(), f"{name} is worked on, got {list(threads.operations())}"
            threads.gate.release(thread)
        threads.wait_until_idle()
        assert threads.answers() == (0, 2), f"expected both to be released, got {threads.answers()}"


def test_a_gate_that_opens_lets_all_pass() -> None:
    with working(is_open=False) as (controller, threads):
        controller.prefetch_queue.put("first")
        threads.wait_until_idle()
        threads.gate.set_open(is_open=True)
        controller.prefetch_queue.put("second")
        threads.wait_until_idle()
        assert threads.answers() == (0, 2), f"expected both answers, got {threads.answers()}"


def test_a_thread_that_raised_is_idle_and_its_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), working(is_open=True) as (controller, threads):
        controller.prefetch_queue.put("bad")
        controller.prefetch_thread.join(timeout=10)
        controller.prefetch_queue.put("never")
        threads.wait_until_idle()
        assert threads.answers() == (0, 0), f"expected no answers of a dead thread, got {threads.answers()}"
    assert "as a test wants it" in caplog.text, f"expected the error in the log, got {caplog.text!r}"


STORAGE_LISTS = sorted((Path(engines.__file__).parent / "known").glob("hicachefile-*.toml"))

RANK = "tp0of1.cp0of1.pp0of1"


class PoolHitPolicy(str, Enum):
    """SGLang's enumeration of hit policies."""

    ALL_PAGES = "all_pages"
    TRAILING_PAGES = "trailing_pages"


@dataclass
class PoolTransfer:
    """SGLang's query of one pool."""

    name: str
    keys: list[str]
    hit_policy: PoolHitPolicy


class FakeStorage:
    """A backend with SGLang's interface, over a dictionary. `error`: the exception that reads and writes raise."""

    def __init__(self, config: SimpleNamespace, _: dict[str, object]) -> None:
        self.config = config
        self.pages: dict[str, torch.Tensor] = {}
        self.asked: list[tuple[Sequence[str], list[PoolTransfer]]] = []
        self.error: Exception | None = None

    def exists(self, key: str) -> bool:
        return key in self.pages

    def batch_get(self, keys: Sequence[str], targets: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        if self.error is not None:
            raise self.error
        return [self.pages.get(key) for key, _ in zip(keys, targets, strict=True)]

    def batch_set(self, keys: Sequence[str], pages: Sequence[torch.Tensor]) -> bool:
        self.pages.update({key: page.clone() for key, page in zip(keys, pages, strict=True)})
        return True

    def batch_exists_v2(self, keys: Sequence[str], transfers: list[PoolTransfer]) -> SimpleNamespace:
        self.asked.append((keys, transfers))
        return SimpleNamespace(kv_hit_pages=1)

    def clear(self) -> None:
        self.pages.clear()


MODULE = SimpleNamespace(HiCacheStorageConfig=SimpleNamespace, PoolHitPolicy=PoolHitPolicy, PoolTransfer=PoolTransfer)


def opened(monkeypatch: pytest.MonkeyPatch, release: str = "0.5.23") -> tuple[SglangStorage, FakeStorage]:
    """The adapter over a fake backend, for a release of SGLang, and the fake."""

    def import_from(_: str, *names: str) -> Any:
        return (FakeStorage,) if names else MODULE

    monkeypatch.setattr(storage, "prepare_sglang", lambda: release)
    monkeypatch.setattr(storage, "import_from", import_from)
    backend = SglangStorage("model", {"class": "somewhere:FakeStorage", "extra_config": {"size": 3}})
    assert isinstance(backend.storages[RANK], FakeStorage), f"expected the named class, got {backend.storages}"
    return backend, backend.storages[RANK]


def kept(backend: SglangStorage, keys: Sequence[str]) -> Sheet:
    """Store pages in two pieces under these keys."""
    sheet = Sheet([(3, 5)] * len(keys))
    for number, _ in enumerate(keys):
        sheet.write(number, bytes([number]) * 3 + bytes([100 + number]) * 5)
    assert backend.set(keys, sheet.pages, []) == [True] * len(keys), "expected all pages to be stored"
    return sheet


def test_it_is_opened_for_the_model_with_its_extra_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    _, fake = opened(monkeypatch)
    assert (fake.config.model_name, fake.config.extra_config) == ("model", {"size": 3}), f"got {fake.config}"


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (f"kv.{RANK}/9f86", "9f86"),
        (f"indexer.{RANK}/9f86", "9f86.indexer"),
        ("kv.one.two/9f86", "9f86@one,two"),
        ("mamba/7", "7@.mamba"),
        ("kv/7", "7@"),
        ("a/b/c", "a/b/c"),
        ("../a", "../a"),
    ],
)
def test_keys_are_those_that_a_controller_gives(monkeypatch: pytest.MonkeyPatch, key: str, name: str) -> None:
    backend, fake = opened(monkeypatch)
    kept(backend, [key])
    assert list(fake.pages) == [name], f"{key}: expected {name}, got {list(fake.pages)}"
    assert backend.has([key, "other"]) == [True, False], "it is looked for under the same name"


@pytest.mark.parametrize(
    ("rank", "expected"),
    [
        ("tp1of2.cp0of1.pp0of1", (1, 2, 0, 1, 0, 1, False)),
        ("tp0of1.cp1of4.pp2of3", (0, 1, 1, 4, 2, 3, False)),
        ("tpall.cp0of1.pp0of1", (0, 1, 0, 1, 0, 1, True)),
    ],
)
def test_a_rank_has_an_instance_of_its_own(
    monkeypatch: pytest.MonkeyPatch, rank: str, expected: tuple[int, ...]
) -> None:
    backend, only = opened(monkeypatch)
    kept(backend, [f"kv.{rank}/9f86"])
    config = backend.storages[rank].config
    found = (config.tp_rank, config.tp_size, config.attn_cp_rank, config.attn_cp_size, config.pp_rank, config.pp_size)
    assert (*found, config.is_mla_model) == expected, f"{rank} is opened as itself, got {config}"
    assert list(backend.storages[rank].pages) == ["9f86"], "its keys are hashes"
    assert not only.pages, "the only rank has nothing of it"
    with pytest.raises(ValueError, match="one rank at a time"):
        backend.has([f"kv.{rank}/9f86", f"kv.{RANK}/9f86"])


def test_pages_go_and_come_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, _ = opened(monkeypatch)
    keys = ["kv/0", "kv/1"]
    source = kept(backend, keys)
    target = Sheet([(8,), (1, 0, 7), (8,)])
    assert backend.get([*keys, "kv/2"], target.pages, []) == [True, True, False], "two of three are there"
    assert [target.read(page) for page in (0, 1)] == [source.read(page) for page in (0, 1)], "the same bytes"
    assert target.has_its_guards, "nothing is written beside the pages"
    assert backend.clear(), "a class that says nothing has cleared"
    assert backend.has(keys) == [False] * 2, "all are gone"


@pytest.mark.parametrize("release", ["0.5.13.post1", "0.5.23"])
def test_what_is_raised_is_what_the_controller_of_the_release_makes_of_it(
    monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    backend, fake = opened(monkeypatch, release)
    kept(backend, ["kv/0"])
    fake.error = OSError("short read")
    target = Sheet([(8,), (8,)])
    if release == "0.5.23":
        assert backend.get(["kv/0", "kv/1"], target.pages, []) == [False, False], "the whole batch is missed"
    else:
        with pytest.raises(OSError, match="short read"):
            backend.get(["kv/0", "kv/1"], target.pages, [])


def test_a_prefix_over_pools_is_asked_of_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, fake = opened(monkeypatch)
    keys, indexer, states = ([f"{pool}.{RANK}/{page}" for page in "abc"] for pool in ("kv", "indexer", "mamba"))
    queries = [PoolQuery(indexer, HitPolicy.ALL_PAGES, 0), PoolQuery(states, HitPolicy.TRAILING_PAGES, 2)]
    assert backend.exists(keys, queries, []) == 1, "the backend's own answer"
    names, transfers = fake.asked[0]
    assert names == ["a", "b", "c"], f"the pages by the names of KV, got {names}"
    found = [(one.name, one.hit_policy.value, len(one.keys)) for one in transfers]
    expected = [("indexer", "all_pages", 3), ("mamba", "trailing_pages", 2)]
    assert found == expected, f"pools, policies and windows: expected {expected}, got {found}"


def test_pools_that_hold_other_pages_are_looked_for_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, fake = opened(monkeypatch)
    kept(backend, ["kv/0", "kv/1", "mamba/8"])
    answer = backend.exists(["kv/0", "kv/1"], [PoolQuery(["mamba/8", "mamba/9"], HitPolicy.ALL_PAGES, 0)], [])
    assert (answer, fake.asked) == (1, []), "SGLang has no words for this: the pages are looked for"


def test_without_sglang_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise ImportError("sglang is not installed")

    monkeypatch.setattr(storage, "prepare_sglang", missing)
    with pytest.raises(ConfigurationError, match="sglang is not installed"):
        SglangStorage("model", {"class": "somewhere:FakeStorage"})


@pytest.mark.parametrize("path", STORAGE_LISTS, ids=lambda path: path.name)
def test_the_lists_of_known_failures_can_be_read(path: Path) -> None:
    entries = read_known_failures(path)
    assert entries, f"{path} lists nothing"
    ids = [entry.id for entry in entries]
    assert len(ids) == len(set(ids)), f"an entry stands twice in {path}: {sorted(ids)}"


def test_there_is_a_list_for_each_release() -> None:
    names = [path.name for path in STORAGE_LISTS]
    assert names == ["hicachefile-0.5.13.toml", "hicachefile-0.5.23.toml"], f"got {names}"


# sglang_ranks: what needs no SGLang.


class Ack(NamedTuple):
    """As SGLang's acknowledgement of a copy."""

    start_event: object
    finish_event: object
    node_ids: list[int]


def test_a_copy_ends_when_it_is_released_or_waited_for() -> None:
    acks = ranks.Acks(TransferKind.BACKUP)
    for number in range(3):
        acks.append(Ack(None, None, [number, number + 1]))
    first, second, _ = (ack.finish_event for ack in acks)
    assert [one.parts for one in acks.pending()] == [2, 2, 2], f"three copies of two nodes each, got {acks.pending()}"
    first.synchronize()
    assert first.query(), "expected a copy that SGLang waited for to have ended"
    assert not second.query(), "expected the next one to be held"
    assert [one.ticket for one in acks.pending()] == [("backup", 2), ("backup", 3)], f"got {acks.pending()}"
    acks.release()
    acks.holds = False
    acks.append(Ack(None, None, [9]))
    assert not acks.pending(), f"expected none to be held, got {acks.pending()}"


def test_the_groups_are_those_of_sglangs_scheduler() -> None:
    groups = ranks.groups_of(Mesh(tp_size=2, cp_size=2, pp_size=2))
    assert groups == {
        "tp_cache_group": [[0, 1, 2, 3], [4, 5, 6, 7]],
        "attn_tp_cache_group": [[0, 1], [2, 3], [4, 5], [6, 7]],
        "attn_cp_cache_group": [[0, 2], [1, 3], [4, 6], [5, 7]],
        "pp_cache_group": [[0, 4], [1, 5], [2, 6], [3, 7]],
    }, f"got {groups}"


def test_stages_and_ranks_share_the_layers_and_heads() -> None:
    config = replace(tiny("full+swa/page16/lru"), model=reshaped(TINY_MODEL, full_layers=3, kv_heads=4))
    mesh = Mesh(tp_size=2, cp_size=1, pp_size=2)
    shares = [ranks.share_of(replace(config, topology=mesh.topology(rank))) for rank in range(mesh.ranks)]
    models = [HybridModel.of(share.model) for share in shares]
    assert [(one.full_layers, one.kv_heads) for one in models] == [(1, 2), (1, 2), (2, 2), (2, 2)], f"got {models}"


def test_a_thread_that_waits_for_another_rank_is_idle() -> None:
    entered, leave = threading.Event(), threading.Event()

    def collective() -> None:
        entered.set()
        leave.wait(timeout=10)

    with working(is_open=True) as (controller, threads):
        controller._all_reduce = collective
        threads.watch_ranks()
        controller.prefetch_queue.put("agree")
        assert entered.wait(timeout=10), "expected the thread to enter the collective"
        threads.wait_until_idle()
        assert list(threads.crossings().values()) == [[1, 0]], f"got {threads.crossings()}"
        leave.set()
        assert controller.prefetch_hit_queue.get(timeout=10) == "agree", "expected the thread to go on"
        assert list(threads.crossings().values()) == [[1, 1]], f"got {threads.crossings()}"
