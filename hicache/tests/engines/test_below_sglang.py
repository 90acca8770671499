"""HicacheStorage below SGLang: what it does with a call, and SGLang's own cache and controller over each backend."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hicache.config import ExecutorKind
from hicache.engines import below_sglang
from hicache.engines.below_sglang import KV, HostPoolPages
from hicache.engines.interface import release_of
from hicache.engines.releases import ADAPTERS
from hicache.engines.sglang import dsa, pages
from hicache.engines.sglang.pages import GatedPages
from hicache.errors import ConfigurationError
from hicache.storage.base import BATCH_PAGES
from hicache.storage.hf3fs.catalogue import Catalogue
from hicache.storage.hf3fs.service import MetadataService
from hicache.testing.configurations import standard_configurations
from hicache.testing.driving.driver import Driver
from hicache.testing.load import load_adapter
from hicache.tests.storage.engines.engine import EngineProcess
from hicache.tests.storage.engines.engines import ENGINES

PAGES = 200
PAGE_SIZE = 2
KEYS = [f"{number:064x}" for number in range(PAGES)]


class HostPool(SimpleNamespace):
    """A host pool with SGLang's interface: pages of two pieces, such as keys and values."""

    def __init__(self, layout: str = "page_first", dtype: torch.dtype = torch.float32) -> None:
        super().__init__(layout=layout, dtype=dtype, page_size=PAGE_SIZE)
        self.kv_buffer = torch.arange(2 * PAGES * PAGE_SIZE, dtype=dtype).reshape(2, PAGES * PAGE_SIZE)

    def get_page_buffer_meta(self, indices: torch.Tensor) -> tuple[list[int], list[int]]:
        bytes_each = PAGE_SIZE * self.dtype.itemsize
        starts = [part[slot].data_ptr() for slot in indices[::PAGE_SIZE] for part in self.kv_buffer]
        return starts, [bytes_each] * len(starts)


@dataclass
class PoolTransferResult:
    """SGLang's answer to a query, in release 0.5.23."""

    kv_hit_pages: int
    extra_pool_hit_pages: dict[str, int]
    restorable_prefix_pages: list[int] | None = None


def config(**changes: Any) -> SimpleNamespace:
    """SGLang's storage configuration."""
    fields: dict[str, Any] = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0}
    fields |= {"attn_cp_size": 1, "is_mla_model": False, "model_name": "org/model"}
    extra = {"interface_v1": 1, "backend": "memory", "options": {"store": "below", "capacity_bytes": 1 << 20}}
    return SimpleNamespace(**(fields | {"extra_config": extra} | changes))


def opened(host: HostPool, **changes: Any) -> HostPoolPages:
    """The class over a host pool of KV."""
    found = HostPoolPages(config(**changes), {})
    found.mem_pool_host = host
    return found


def slots(pages: int) -> torch.Tensor:
    """The slots of the first pages."""
    return torch.arange(pages * PAGE_SIZE)


@pytest.fixture
def below() -> Iterator[HostPoolPages]:
    """The class over a backend in memory, which is empty."""
    found = opened(HostPool())
    found.clear()
    yield found
    found.clear()
    found.close()


def test_pages_come_back_to_other_slots_in_more_than_one_batch(below: HostPoolPages) -> None:
    assert PAGES > BATCH_PAGES, "the pages are more than one batch"
    assert below.batch_set_v1(KEYS, slots(PAGES)) == [True] * PAGES, "there is room"
    assert below.batch_exists([*KEYS, "other"]) == PAGES, "all are there"
    other = opened(HostPool())
    other.mem_pool_host.kv_buffer.zero_()
    assert other.batch_get_v1(KEYS[::-1], slots(PAGES)) == [True] * PAGES, "another instance reads them"
    expected = HostPool().kv_buffer.reshape(2, PAGES, PAGE_SIZE).flip(1).reshape(2, -1)
    assert torch.equal(other.mem_pool_host.kv_buffer, expected), "each page has its own bytes"


def test_no_page_after_one_that_is_not_there_is_read(below: HostPoolPages) -> None:
    below.batch_set_v1(KEYS[:4], slots(4))
    assert below.batch_get_v1([KEYS[0], "other", KEYS[1]], slots(3)) == [True, False, False], "SGLang uses a prefix"


@pytest.mark.parametrize(
    ("host", "changes"),
    [
        (HostPool(dtype=torch.int32), {}),
        (HostPool(layout="layer_first"), {}),
        (HostPool(), {"model_name": "org-model"}),
        (HostPool(), {"tp_size": 2}),
        (HostPool(), {"is_mla_model": True, "dcp_size": 2, "dcp_rank": 1}),
    ],
    ids=["dtype", "layout", "model", "rank", "dcp"],
)
def test_a_cache_that_differs_reads_nothing(below: HostPoolPages, host: HostPool, changes: dict[str, Any]) -> None:
    below.batch_set_v1(KEYS[:2], slots(2))
    assert opened(host, **changes).batch_exists(KEYS[:2]) == 0, "STORE-1: the bytes would mean something else"


def test_ranks_share_what_is_equal_on_all_of_them() -> None:
    first, second = (opened(HostPool(), is_mla_model=True, tp_size=2, tp_rank=rank) for rank in (0, 1))
    for one in (first, second):
        one.registered_pools["mamba"] = HostPool()
    assert first.names(KV, KEYS) == second.names(KV, KEYS), "MLA has the same KV on each rank"
    assert not {*first.names("mamba", KEYS)} & {*second.names("mamba", KEYS)}, "each rank has states of its own"


def test_pools_are_asked_together_and_a_rank_tells_all_lengths(
    monkeypatch: pytest.MonkeyPatch, below: HostPoolPages
) -> None:
    monkeypatch.setattr(below_sglang, "import_module", lambda _: SimpleNamespace(PoolTransferResult=PoolTransferResult))
    ranked = opened(below.mem_pool_host, tp_size=2)
    for one in (below, ranked):
        one.registered_pools["mamba"] = HostPool()
        one.batch_set_v1(KEYS[:5], slots(5))
        states = [SimpleNamespace(name="mamba", keys=[KEYS[0], KEYS[2], KEYS[3]], host_indices=slots(3))]
        assert one.batch_set_v2(states) == {"mamba": [True] * 3}, "there is room"
    policy = SimpleNamespace(value="trailing_pages")
    others = SimpleNamespace(name="groups", keys=[], hit_policy=SimpleNamespace(value="block_groups"))
    query = [SimpleNamespace(name="mamba", keys=[KEYS[4]], hit_policy=policy), others]
    assert below.batch_exists_v2(KEYS[:5], query) == PoolTransferResult(4, {KV: 4, "mamba": 4}), "a state ends page 4"
    assert ranked.batch_exists_v2(KEYS[:5], query).restorable_prefix_pages == [1, 3, 4], "the states that there are"


def test_pages_of_draft_models_are_tensors(below: HostPoolPages) -> None:
    names = [f"{key}.draft" for key in KEYS[:2]]
    pages = [torch.full((6,), number, dtype=torch.bfloat16) for number in (1, 2)]
    assert below.batch_set(names, pages), "there is room"
    assert below.exists(names[0]), "it is there"
    assert below.batch_exists(KEYS[:2]) == 0, "they are not pages of KV"
    first, second, missing = below.batch_get([*names, "other.draft"], [torch.zeros(6, dtype=torch.bfloat16)] * 3)
    assert missing is None, "it was never stored"
    assert first is second, "the target that was given is the one that is returned"
    assert torch.equal(below.get(names[1], torch.zeros(6, dtype=torch.bfloat16)), pages[1]), "the bytes are equal"


def test_what_a_backend_raises_is_logged_once_and_ends_no_thread(
    below: HostPoolPages, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> list[bool]:
        raise OSError("the disk is gone")

    for verb in ("get", "set", "exists", "has", "clear"):
        monkeypatch.setattr(below.backend, verb, fail)
    with caplog.at_level(logging.ERROR):
        assert below.batch_get_v1(KEYS[:2], slots(2)) == below.batch_set_v1(KEYS[:2], slots(2)) == [False] * 2, "misses"
        assert (below.batch_exists(KEYS[:2]), below.exists(KEYS[0]), below.clear()) == (0, False, False), (
            "nothing is there"
        )
        assert below.batch_get_v2([SimpleNamespace(name="other", keys=KEYS[:1], host_indices=slots(1))]) == {
            "other": [False]
        }, "a pool that SGLang never registered"
    assert [one.message.partition(": ")[2] for one in caplog.records] == ["OSError('the disk is gone')"], "once"
    monkeypatch.undo()


@pytest.fixture
def gated() -> Generator[GatedPages, None, None]:
    """The storage below SGLang in the suites."""
    pages = GatedPages(config(), {})
    pages.mem_pool_host = HostPool()
    yield pages
    pages.close()


def test_in_the_suites_what_a_backend_raises_reaches_sglang(gated: GatedPages, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError("the disk is gone")

    monkeypatch.setattr(gated.backend, "exists", fail)
    with pytest.raises(OSError, match="disk is gone"):
        gated.batch_exists(KEYS[:2])
    gated.is_like_builtin = False
    assert gated.batch_exists(KEYS[:2]) == 0, "HicacheStorage itself answers"


def test_in_the_suites_what_a_backend_answers_reaches_sglang(
    gated: GatedPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    for verb, lie in {"exists": 3, "get": [1, 1], "set": None}.items():
        monkeypatch.setattr(gated.backend, verb, lambda *_, lie=lie: lie)

    def answers() -> list[object]:
        asked = (KEYS[:2], slots(2))
        return [gated.batch_exists(KEYS[:2]), gated.batch_get_v1(*asked), gated.batch_set_v1(*asked)]

    assert answers() == [3, [1, 1], None], "unchanged"
    gated.is_like_builtin = False
    assert answers() == [0, [False, False], [False, False]], "HicacheStorage takes none of them for a page"


@pytest.mark.parametrize(
    ("extra", "named"),
    [({"interface_v1": 0}, "interface_v1"), ({"backend": None}, "backend"), ({"options": [1]}, "options")],
    ids=["copies", "no backend", "no table"],
)
def test_a_configuration_that_is_wrong_is_refused(extra: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        HostPoolPages(config(extra_config=config().extra_config | extra), {})


def test_a_pool_without_memory_is_refused_when_it_is_registered(below: HostPoolPages) -> None:
    below.mem_pool_host.get_page_buffer_meta = lambda _: None
    with pytest.raises(ConfigurationError, match="no memory"):
        below.on_host_pools_registered()


# SGLang's own cache and controller.

RELEASES = ADAPTERS["sglang"]


def options_of(backend: str, folder: Path) -> Generator[tuple[str, Mapping[str, Any]], None, None]:
    """The name of a backend and its options, in a folder or on an engine that runs as long as the generator."""
    if backend == "hf3fs":
        with closing(Catalogue(folder / "metadata")) as catalogue, closing(MetadataService(catalogue)) as service:
            service.start()
            yield backend, {"root": str(folder), "capacity_pages": 100, "metadata_url": service.url}
        return
    if backend not in ENGINES:
        yield backend, {"root": str(folder), **({"capacity_slots": 1_000} if backend == "slotfile" else {})}
        return
    engine = ENGINES[backend]
    if engine.missing:
        pytest.skip(engine.missing)
    with closing(EngineProcess(engine, folder)) as process:
        yield engine.backend, process.options


@pytest.fixture(params=["slotfile", "file", "hf3fs", *ENGINES])
def open_cache(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Driver]]:
    """Opens SGLang's cache over a backend: `open_cache("full+swa")`. The class that SGLang opens is the public one.

    `full+indexer` is a model with DSA: latents of MLA, and an indexer as a sidecar.
    """
    version = release_of("sglang") or "none"
    if version not in RELEASES:
        pytest.skip(f"it needs a release of SGLang that has an adapter; {version} is installed")
    adapter = load_adapter(RELEASES[version])
    monkeypatch.setattr(pages, "OPENED", ("hicache.engines.below_sglang", "HicacheStorage"))
    caches: list[Driver] = []

    def open_one(components: str) -> Driver:
        kind = adapter
        if has_indexer := components == DSA:
            if version not in dsa.ADAPTERS:
                pytest.skip(f"it needs a release of SGLang with a host pool for an indexer; {version} is installed")
            kind, components = dsa.ADAPTERS[version], "full"
        configs = standard_configurations(adapter.capabilities)
        config = next(
            one for one in configs if one.storage and one.name.startswith(f"{components}/page16/lru/write_through")
        )
        config = dsa.with_dsa(config) if has_indexer else config
        assert config.storage is not None, "the configuration has a storage tier"
        tier = replace(config.storage, backend=name, options=options, executor=ExecutorKind.THREADED)
        config = replace(config, storage=tier)
        caches.append(Driver(kind(config), config))
        return caches[-1]

    given = options_of(request.param, tmp_path)
    name, options = next(given)
    yield open_one
    for cache in caches:
        cache.adapter.close()
    given.close()


DSA = "full+indexer"


@pytest.mark.parametrize("components", ["full", "full+swa", "full+mamba", DSA])
def test_a_server_reads_what_another_one_has_stored(open_cache: Callable[..., Driver], components: str) -> None:
    writer = open_cache(components)
    key = writer.key(writer.prompt((1, 2, 3, 4)))
    writer.put(key)
    writer.drain()
    writer.check()
    stored = writer.adapter.storage_keys("kv", key)
    assert len(set(stored)) == 4, f"a key for each page, got {stored}"
    for pool in (KV, *writer.config.sidecars):
        assert held(writer, pool) == [True] * 4, f"the backend has each page of {pool}"
    reader = open_cache(components)
    ticket = reader.prefetch(key)
    assert ticket is not None, "FETCH-1: the prompt is not too short"
    reader.drain()
    tokens = reader.check_prefetch(ticket)
    assert tokens == 4 * reader.config.page_size, f"all pages come from storage, got {tokens} tokens"
    # Loading back, the driver compares each byte with the one that was written.
    found = reader.load(key)
    assert len(found.device_indices) == tokens, f"all pages are on the device, got {found}"
    reader.check()


def held(cache: Driver, pool: str) -> list[bool]:
    """Whether the backend has each page of a prompt in a pool that stores all of them."""
    adapter: Any = cache.adapter
    keys = adapter.storage_keys(KV, cache.key(cache.prompt((1, 2, 3, 4))))
    pages: HostPoolPages = adapter.cache.cache_controller.storage_backend
    return pages.backend.has(pages.names(pool, [key.rpartition("/")[2] for key in keys]))


def test_a_clear_of_the_cache_clears_the_backend(open_cache: Callable[..., Driver]) -> None:
    cache = open_cache("full")
    cache.put(cache.key(cache.prompt((1, 2, 3, 4))))
    cache.drain()
    assert held(cache, KV) == [True] * 4, "the keys that SGLang asks for are those of the backend"
    assert cache.clear_storage(), "the backend is cleared"
    assert held(cache, KV) == [False] * 4, "no page is left"
