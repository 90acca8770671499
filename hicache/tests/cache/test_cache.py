"""UnifiedRadixCache as a user opens it: with a model and without, closed and opened again, and what is refused."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hicache import (
    BufferShape,
    CacheConfig,
    EvictionPolicy,
    ExecutorKind,
    Follows,
    HostConfig,
    Layout,
    ModelShape,
    Namespace,
    PoolShape,
    RequestManager,
    StopPolicy,
    StorageConfig,
    Topology,
    UnifiedRadixCache,
    WritePolicy,
    open_cache,
)
from hicache.clock import VirtualClock
from hicache.errors import ConfigurationError, PoolMismatchError, StaleHandleError
from hicache.pools.buffers import RawBytes, TierPools
from hicache.runtime import Runtime
from hicache.storage.file import FileStorage
from hicache.storage.keys import warn_of_no_fingerprint
from hicache.storage.memory import MemoryStorage
from hicache.tests.cache.pools.two_tiers import stored_config
from hicache.types import SHARED, Slots, Tokens

PAGE = 16
CAPACITY = 8 * PAGE
SIZES: dict[str, Any] = {"page_size": PAGE, "capacity_tokens": CAPACITY}
PROMPT: Tokens = np.arange(4 * PAGE, dtype=np.int32)

KV = PoolShape("kv", Follows.EVERY_PAGE, 2, (BufferShape("kv", (2, 2, 4), "float32"),))
KV_ONLY = ModelShape((KV,))


@pytest.mark.parametrize("states", [0, 1])
def test_requests_that_have_decoded_past_their_window_lock_none(states: int) -> None:
    window, prompt, count = 128, 512, 8
    sizes = {"full": 16_384, "swa": 8192} | ({"mamba": 4 * count} if states else {})
    config = CacheConfig(
        sizes,
        page_size=PAGE,
        components=tuple(sizes),
        sliding_window_size=window,
        mamba_chunk_size=PAGE * states or None,
    )
    with open_cache(config) as cache:
        requests = RequestManager(cache)
        running = [requests.admit([*range(first, first + prompt)]) for first in range(0, count * 1000, 1000)]
        for request in running:
            assert request is not None, "there are slots for 8 prompts"
            requests.checkpoint(request, prompt)
        locked = [{name: one.protected for name, one in cache.sizes().items()}]
        for _, request in product(range(25), running):
            assert request is not None, "there are slots for 8 prompts"
            assert requests.extend(request, range(40)), "there are slots for 1,000 tokens more"
        locked.append({name: one.protected for name, one in cache.sizes().items()})
        full = {"full": count * prompt}
        before = full | {"swa": count * window} | ({"mamba": count} if states else {})
        after = full | {"swa": 0} | ({"mamba": 0} if states else {})
        assert locked == [before, after], (
            f"8 x 1,000 tokens past a window of 128: expected {[before, after]}, got {locked}"
        )


def insert_prompt(cache: UnifiedRadixCache, tokens: Tokens = PROMPT, namespace: Namespace | None = None) -> Slots:
    """Allocate slots for a prompt and insert it; the slots."""
    slots = cache.allocate(len(tokens))
    assert slots is not None, f"no slots for {len(tokens)} tokens, the cache has {cache.sizes()}"
    result = cache.insert(cache.key(tokens, namespace), slots)
    assert result.accepted_length == len(tokens), f"expected {len(tokens)} tokens to be accepted, got {result}"
    return slots


def load_prompt_back(cache: UnifiedRadixCache) -> Slots:
    """Load the prompt back from the host; its slots."""
    found = cache.match(cache.key(PROMPT))
    assert found.host_hit_length == len(PROMPT), f"expected all of the prompt on the host alone, got {found}"
    load = cache.load_back(found.best_match)
    assert load is not None, "a load-back of the whole prompt is worth it"
    cache.drain()
    slots = cache.claim(load.ticket)
    assert slots is not None, "the load-back failed"
    assert np.array_equal(slots, load.indices), f"promised were the slots {load.indices}, the tree has {slots}"
    return slots


def fill(pools: TierPools, slots: Slots) -> None:
    """Write random bytes to the pages of some FULL slots, in every pool."""
    random = np.random.default_rng(seed=7)
    for name, own in _pool_slots(pools, slots).items():
        buffers = pools.buffers[name]
        for layer in range(buffers.spec.layers):
            buffers.write(own, layer, random.integers(1, 256, (len(own), buffers.spec.slot_bytes), dtype=np.uint8))


def read(pools: TierPools, slots: Slots) -> dict[str, RawBytes]:
    """The bytes of the pages of some FULL slots, by pool: uint8 [layers, entries, bytes of an entry]."""
    return {
        name: np.stack([pools.buffers[name].read(own, layer) for layer in range(pools.buffers[name].spec.layers)])
        for name, own in _pool_slots(pools, slots).items()
    }


def erase(pools: TierPools) -> None:
    """Overwrite every byte of every pool."""
    for buffers in pools.buffers.values():
        for raw in buffers.raw:
            raw.fill_(0)


def _pool_slots(pools: TierPools, slots: Slots) -> dict[str, Slots]:
    """The entries of whole pages in each pool: those with one entry for several tokens have fewer in a page."""
    pages = slots[:: pools.page_size] // pools.page_size
    return {
        name: (pages[:, None] * buffers.page_size + np.arange(buffers.page_size)).reshape(-1)
        for name, buffers in pools.buffers.items()
    }


# Without a model a cache manages slots on every tier that it has, and holds no tensors.


def test_it_manages_slots_on_both_tiers_and_holds_no_tensors() -> None:
    with open_cache(**SIZES, host=HostConfig({"full": CAPACITY})) as cache:
        assert cache.config.capacity_tokens == {"full": CAPACITY}, f"got {cache.config.capacity_tokens}"
        assert cache.config.components == ("full",), f"got {cache.config.components}"
        assert cache.host is not None, "it has a host tier"
        assert cache.pools.buffers == {}, f"on the device are buffers of {list(cache.pools.buffers)}"
        assert cache.host.pools.buffers == {}, f"on the host are buffers of {list(cache.host.pools.buffers)}"
        assert cache.host.pools.regions() == [], "there is host memory"
        slots = insert_prompt(cache)
        cache.drain()
        found = cache.match(cache.key(np.append(PROMPT, PROMPT)))
        assert np.array_equal(found.device_indices, slots), f"expected {slots}, got {found.device_indices}"
        sizes = cache.sizes()["full"]
        assert (sizes.evictable, sizes.free) == (len(PROMPT), CAPACITY - len(PROMPT)), f"got {sizes}"
        assert cache.host_sizes()["full"].free == CAPACITY - len(PROMPT), f"got {cache.host_sizes()}"
        receipt = cache.lock(found.device_anchor)
        assert cache.evict("full", CAPACITY).freed == {"full": 0}, "a locked prompt was evicted"
        assert cache.allocate(CAPACITY) is None, "slots were allocated that a lock protects"
        cache.unlock(receipt)
        assert cache.evict("full", CAPACITY).freed == {"full": len(PROMPT)}, "the unlocked prompt stays"
        taken = cache.allocate(CAPACITY)
        assert taken is not None, "all slots are free"
        assert len(np.unique(taken)) == CAPACITY, f"slots were allocated twice: {taken}"
        assert taken.min() >= PAGE, f"slots of the padding page were allocated: {taken.min()}"
        cache.free(taken)
        slots = load_prompt_back(cache)
        found = cache.match(cache.key(PROMPT))
        assert np.array_equal(found.device_indices, slots), f"expected {slots}, got {found.device_indices}"
        cache.reset()
        for sizes in (cache.sizes()["full"], cache.host_sizes()["full"]):
            assert sizes.free == CAPACITY, f"expected {CAPACITY} free slots after a reset, got {sizes}"
        with pytest.raises(StaleHandleError):
            cache.lock(found.best_match)


def test_a_hybrid_cache_manages_windows_and_states() -> None:
    capacity = {"full": CAPACITY, "swa": CAPACITY, "mamba": 4}
    with open_cache(
        components=("full", "swa", "mamba"),
        page_size=PAGE,
        capacity_tokens=capacity,
        sliding_window_size=2 * PAGE,
        mamba_chunk_size=PAGE,
        host=HostConfig(capacity),
    ) as cache:
        slots, state = cache.allocate(len(PROMPT)), cache.allocate_state()
        assert slots is not None, "the cache is empty"
        assert cache.insert(cache.key(PROMPT), slots, state).state_adopted, "the tree has no state here yet"
        cache.drain()
        freed = cache.evict("full", CAPACITY).freed
        assert freed == {"full": len(PROMPT), "swa": len(PROMPT), "mamba": 1}, f"got {freed}"
        load_prompt_back(cache)
        node = cache.match(cache.key(PROMPT)).device_anchor
        fork = cache.fork_state(node)
        assert fork not in (None, cache.state_of(node)), f"a request got the tree's own state {fork}"


def test_no_namespace_is_the_empty_namespace() -> None:
    with open_cache(**SIZES) as cache:
        assert cache.key(PROMPT) == cache.key(PROMPT, None) == cache.key(PROMPT, Namespace()), "three keys of one kind"
        requests = RequestManager(cache)
        first = requests.admit(PROMPT)
        assert first is not None, "the cache is empty"
        requests.finish(first)
        second = requests.admit(np.append(PROMPT, np.int32(9)), Namespace())
        assert second is not None, "the cache has room"
        assert second.cached_tokens == len(PROMPT), f"expected {len(PROMPT)} cached tokens, got {second.cached_tokens}"
        other = cache.match(cache.key(PROMPT, Namespace(tenant="a")))
        assert len(other.device_indices) == 0, "another namespace was served"


# With a model it allocates pools, or takes the tensors that the caller owns; every byte survives every tier.

PAGES = 1 + CAPACITY // PAGE
SIDECARS = ModelShape(
    (
        KV,
        PoolShape("summary", Follows.EVERY_PAGE, 3, (BufferShape("mean", (5,), "float16"),), tokens_per_entry=4),
        PoolShape(
            "index", Follows.EVERY_PAGE, 2, (BufferShape("key", (3,), "int8"), BufferShape("scale", (1,), "float32"))
        ),
    )
)


def _tensor(dtype: torch.dtype = torch.float32, pages: int = PAGES, device: str = "cpu") -> torch.Tensor:
    """A tensor as an engine would allocate it for KV_ONLY: [layers, pages, page size, K and V, heads, elements]."""
    return torch.zeros(2, pages, PAGE, 2, 2, 4, dtype=dtype, device=device)


def open_with_model(tensors: Any = None, **changes: Any) -> UnifiedRadixCache:
    fields: dict[str, Any] = {"model": KV_ONLY, "host": HostConfig({"full": CAPACITY})} | changes
    return open_cache(**SIZES, tensors=tensors, **fields)


def test_pools_are_allocated() -> None:
    with open_with_model(model=SIDECARS) as cache:
        assert list(cache.pools.buffers) == ["kv", "summary", "index"], f"got {list(cache.pools.buffers)}"
        for name, shape in {"kv": (PAGES, PAGE, 2, 2, 4), "summary": (PAGES, PAGE // 4, 5)}.items():
            view = cache.pools.buffers[name].layer_view(0, 1)
            assert view.shape == shape, f"a layer of {name}: expected {shape}, got {tuple(view.shape)}"
            assert not view.any(), f"{name} has other bytes than 0"


def test_the_callers_tensor_is_the_pool() -> None:
    kv = _tensor()
    with open_with_model({"kv": [kv]}) as cache:
        layers = [cache.pools.buffers["kv"].layer_view(0, layer) for layer in range(2)]
        for layer, view in enumerate(layers):
            assert view.data_ptr() == kv[layer].data_ptr(), f"layer {layer} is a copy"


def test_what_the_engine_writes_is_backed_up_and_loaded_back() -> None:
    kv = _tensor()
    with open_with_model({"kv": [kv]}) as cache:
        assert cache.host is not None, "it has a host tier"
        by_slot = kv.view(2, PAGES * PAGE, 2, 2, 4)
        slots = torch.from_numpy(insert_prompt(cache))
        written = torch.randn(2, len(PROMPT), 2, 2, 4)
        by_slot[:, slots] = written
        cache.drain()
        cache.evict("full", CAPACITY)
        kv.fill_(1)
        # Other slots than before: what is read below was loaded back there.
        other = cache.allocate(PAGE)
        loaded = load_prompt_back(cache)
        assert other is not None, "all slots were free"
        assert not np.array_equal(loaded, slots), f"the prompt is at the same slots {loaded}"
        found = by_slot[:, torch.from_numpy(loaded)]
        assert torch.equal(found, written), "the bytes that came back are not those that the engine wrote"
        assert torch.all(by_slot[:, torch.from_numpy(other)] == 1), "a load-back wrote to slots of a request"


def test_the_callers_tensors_may_be_those_of_some_pools() -> None:
    index = [torch.zeros(2, PAGES, PAGE, 3, dtype=torch.int8), torch.zeros(2, PAGES, PAGE, 1)]
    with open_with_model({"index": index}, model=SIDECARS) as cache:
        pools = cache.pools.buffers
        views = [pools["index"].layer_view(number, 0) for number in range(2)]
        assert [view.data_ptr() for view in views] == [own.data_ptr() for own in index], "the tensors were copied"
        assert pools["kv"].raw[0].numel() == _tensor().nbytes, "the pool that was not given is allocated"


EXPECTED = rf"must be \(torch.float32, 'cpu', {2 * PAGES * PAGE * 64}, True\), got "
REFUSED_TENSORS = {
    "another dtype": (
        lambda: [_tensor(torch.float16)],
        rf"pool 'kv', buffer 'kv': .*{EXPECTED}\(torch.float16, 'cpu', {PAGES * PAGE * 64}, True\)",
    ),
    "no padding page": (
        lambda: [_tensor(pages=PAGES - 1)],
        rf"{EXPECTED}\(torch.float32, 'cpu', {2 * (PAGES - 1) * PAGE * 64}, True\)",
    ),
    "another device": (lambda: [_tensor(device="meta")], rf"{EXPECTED}\(torch.float32, 'meta', "),
    "not contiguous": (lambda: [_tensor().transpose(0, 1)], rf"{EXPECTED}.*False\)"),
    "two tensors": (lambda: [_tensor(), _tensor()], "pool 'kv' has 1 buffers, 2 tensors came"),
}


@pytest.mark.parametrize(("tensors", "message"), REFUSED_TENSORS.values(), ids=REFUSED_TENSORS)
def test_other_tensors_are_refused(tensors: Callable[[], list[torch.Tensor]], message: str) -> None:
    with pytest.raises(PoolMismatchError, match=message):
        open_with_model({"kv": tensors()})


@pytest.mark.parametrize(("model", "pools"), [(KV_ONLY, r"\['kv'\]"), (None, r"\[\]")], ids=["model", "no model"])
def test_tensors_of_another_pool_are_refused(model: ModelShape | None, pools: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"tensors are given for pools \['swa'\], the cache has {pools}"):
        open_with_model({"swa": [_tensor()]}, model=model)


@pytest.mark.parametrize("layout", Layout, ids=lambda layout: layout.value)
def test_sidecars_survive_the_host(layout: Layout) -> None:
    with open_with_model(model=SIDECARS, host=HostConfig({"full": CAPACITY}, layout=layout)) as cache:
        fill(cache.pools, slots := insert_prompt(cache))
        written = read(cache.pools, slots)
        cache.drain()
        cache.evict("full", CAPACITY)
        erase(cache.pools)
        found = read(cache.pools, load_prompt_back(cache))
    for name, expected in written.items():
        assert expected.all(), f"{name}: the bytes that were written are not all other than 0"
        assert np.array_equal(found[name], expected), f"{name}: other bytes came back from the host"


@pytest.mark.parametrize("backend", ["file", "slotfile"])
def test_sidecars_survive_a_restart(backend: str, tmp_path: Path) -> None:
    options = {"root": str(tmp_path)} | ({"capacity_slots": 64} if backend == "slotfile" else {})
    storage = StorageConfig(
        backend, model="org/name@1", options=options, prefetch_threshold=PAGE, stop_policy=StopPolicy.WAIT_COMPLETE
    )
    with open_with_model(model=SIDECARS, storage=storage) as cache:
        fill(cache.pools, slots := insert_prompt(cache))
        written = read(cache.pools, slots)
        cache.drain()
    with open_with_model(model=SIDECARS, storage=storage) as cache:
        operation = cache.prefetch(cache.key(PROMPT))
        assert operation is not None, "the prompt is longer than the threshold"
        cache.drain()
        came_tokens = cache.check_prefetch(operation)
        assert came_tokens == len(PROMPT), f"expected {len(PROMPT)} tokens from storage, got {came_tokens}"
        found = read(cache.pools, load_prompt_back(cache))
    for name, expected in written.items():
        assert np.array_equal(found[name], expected), f"{name}: other bytes came back from storage"


def first_version(config: CacheConfig) -> str:
    """The scope that the first version of keys gave to a cache: it has neither a version nor a fingerprint."""
    storage, host, model = config.storage, config.host, config.model
    assert storage is not None, "it has a storage tier"
    assert host is not None, "it has a host tier"
    assert model is not None, "it has a model"
    names = {"model": storage.model, "shape": asdict(model)}
    meaning = {**names, "page_size": config.page_size, "bigram": config.bigram, "layout": host.layout.value}
    digest = hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()[:32]
    return f"org-name-1-{digest}"


def stored_tokens(root: Path) -> int:
    """What a cache on disk finds of the prompt in storage."""
    with open_on_disk(root, stop_policy=StopPolicy.WAIT_COMPLETE) as cache:
        operation = cache.prefetch(cache.key(PROMPT))
        assert operation is not None, "the prompt is as long as the threshold"
        cache.drain()
        came = cache.check_prefetch(operation)
        assert came is not None, "it was drained"
        return came


def test_pages_of_the_first_version_are_a_miss_and_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("hicache.storage.keys._scope_of", first_version)
        with open_on_disk(tmp_path) as cache:
            insert_prompt(cache)
            cache.drain()
        assert stored_tokens(tmp_path) == len(PROMPT), "the earlier version finds its own pages"
    assert stored_tokens(tmp_path) == 0, "STORE-1: pages of an earlier version are not served"
    monkeypatch.setattr("hicache.storage.keys._scope_of", first_version)
    assert stored_tokens(tmp_path) == len(PROMPT), "the pages of the earlier version are still there"


def test_storage_without_a_fingerprint_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    warn_of_no_fingerprint.cache_clear()
    for fingerprint in ("a", None, None):
        with open_on_disk(tmp_path, model_fingerprint=fingerprint):
            expected = 0 if fingerprint else 1
            assert len(caplog.messages) == expected, f"{fingerprint}: expected {expected} warnings, {caplog.messages}"
    (warning,) = caplog.messages
    assert warning.startswith("storage.model_fingerprint is not given"), f"got {warning!r}"


# Closed, it has no thread left, also after errors; if it could not be opened, it has none either.


def open_on_disk(root: Path, **changes: Any) -> UnifiedRadixCache:
    given: dict[str, Any] = {
        "model": "org/name@1",
        "options": {"root": str(root)},
        "prefetch_threshold": PAGE,
        **changes,
    }
    return open_cache(
        page_size=PAGE,
        capacity_tokens=CAPACITY,
        model=KV_ONLY,
        host=HostConfig({"full": CAPACITY}),
        storage=StorageConfig("file", **given),
    )


Threads = Callable[[], list[str]]
"""The names of the threads of hicache that have begun since a test began."""


@pytest.fixture
def threads() -> Threads:
    """A broken cache of another test in this process may have left some: those are not counted."""
    before = set(threading.enumerate())
    return lambda: sorted(one.name for one in set(threading.enumerate()) - before if one.name.startswith("hicache"))


def test_a_close_ends_all_threads_and_a_second_one_does_nothing(tmp_path: Path, threads: Threads) -> None:
    with open_on_disk(tmp_path) as cache:
        insert_prompt(cache)
        cache.drain()
        cache.evict("full", CAPACITY)
        load_prompt_back(cache)
        assert cache.prefetch(cache.key(PROMPT[::-1])) is not None, "the prompt is as long as the threshold"
        cache.drain()
        expected = ["hicache-backup", "hicache-load", "hicache-storage-read", "hicache-storage-write"]
        assert threads() == expected, f"expected {expected} after a job of each kind, found {threads()}"
        cache.close()
    assert threads() == [], f"after two closings there are {threads()}"


def test_an_exception_passes_and_leaves_no_thread(tmp_path: Path, threads: Threads) -> None:
    def fail_inside() -> None:
        with open_on_disk(tmp_path) as cache:
            insert_prompt(cache)
            cache.step()  # a backup is under way
            raise KeyError("of the caller")

    with pytest.raises(KeyError, match="of the caller"):
        fail_inside()
    assert threads() == [], f"after an exception there are {threads()}"


def test_a_cache_that_cannot_be_opened_leaves_no_thread(tmp_path: Path, threads: Threads) -> None:
    with pytest.raises(ConfigurationError, match="'file' has no option 'rood', which is 'x'"):
        open_on_disk(tmp_path, options={"root": str(tmp_path), "rood": "x"})
    assert threads() == [], f"after a refusal there are {threads()}"


class KilledError(BaseException):
    """Ends a thread."""


@pytest.mark.parametrize("error", [OSError("a file is held"), KilledError("of the backend")], ids=repr)
def test_a_backend_that_raises_when_it_is_closed_leaves_no_thread(
    tmp_path: Path,
    error: BaseException,
    threads: Threads,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(_: FileStorage) -> None:
        raise error

    with open_on_disk(tmp_path) as cache:
        insert_prompt(cache)
        cache.drain()
        cache.evict("full", CAPACITY)
        load_prompt_back(cache)
        monkeypatch.setattr(FileStorage, "close", refuse)
    assert threads() == [], f"the backend could not be closed, and there are {threads()}"
    assert "storage backend, close: " in caplog.text, f"expected the error to be logged, got {caplog.messages}"


def test_the_longest_call_of_a_verb_is_measured() -> None:
    clock = VirtualClock()

    class Slow(MemoryStorage):
        def clear(self) -> bool:
            clock.advance(7.0)
            return super().clear()

    config = stored_config()
    runtime = replace(Runtime.of(config), open_backend=lambda scope: Slow(scope, {}), clock=clock)
    with closing(UnifiedRadixCache.open(config, runtime)) as cache:
        cache.step()
        assert cache.liveness.longest_s == 0.0, f"no time has passed, got {cache.liveness}"
        assert cache.clear_storage(), "nothing is under way"
        cache.drain()
        found = cache.liveness.longest_verb, cache.liveness.longest_s
        assert found == ("clear_storage", 7.0), f"the backend took 7 s to clear, got {found}"


# Opened again over files, on threads and on real time, it has what was inserted before.

TIMEOUT_S = 30
"""How long the test waits for the prefetch before it fails."""

HYBRID_PROMPT = np.arange(9, dtype=np.int32)


def filed(root: Path) -> CacheConfig:
    """The tiny configuration over files, on threads."""
    config = stored_config(root=str(root))
    assert config.storage is not None, "the configuration has a storage tier"
    return replace(config, storage=replace(config.storage, backend="file"))


def insert_hybrid_prompt(cache: UnifiedRadixCache) -> None:
    slots, state = cache.allocate(len(HYBRID_PROMPT)), cache.allocate_state()
    assert slots is not None, "the cache is empty"
    cache.insert(cache.key(HYBRID_PROMPT, SHARED), slots, state, priority=0)


def test_a_prompt_outlives_its_cache(tmp_path: Path) -> None:
    first = open_cache(filed(tmp_path))
    insert_hybrid_prompt(first)
    first.drain()
    assert first.counters.bytes_stored > 0, "FETCH-9: what is on the host is written to storage"
    first.close()
    second = open_cache(filed(tmp_path))
    operation = second.prefetch(second.key(HYBRID_PROMPT, SHARED))
    assert operation is not None, "the prompt is long enough for a prefetch"
    deadline = time.monotonic() + TIMEOUT_S
    while (came := second.check_prefetch(operation)) is None and time.monotonic() < deadline:
        second.step()
    assert came == len(HYBRID_PROMPT), f"FLOW-9: all of it comes back after a restart, got {came}"
    found = second.match(second.key(HYBRID_PROMPT, SHARED), chunked=False)
    assert found.host_hit_length == len(HYBRID_PROMPT), "and the next match finds it on the host"
    second.close()


# Verbs of a tier or a component that it does not have say how to open a cache that has it.

Verb = Callable[[UnifiedRadixCache], object]


HOST_VERBS: dict[str, Verb] = {
    "load_back": lambda cache: cache.load_back(cache.match(cache.key(PROMPT)).best_match),
    "load_phase": lambda cache: cache.load_phase(None),  # type: ignore[arg-type]
    "layers_done": lambda cache: cache.layers_done(None),  # type: ignore[arg-type]
    "wait_layer": lambda cache: cache.wait_layer(None, 0),  # type: ignore[arg-type]
    "claim": lambda cache: cache.claim(None),  # type: ignore[arg-type]
    "abandon": lambda cache: cache.abandon(None),  # type: ignore[arg-type]
    "lock_host": lambda cache: cache.lock_host(cache.match(cache.key(PROMPT)).best_match),
    "unlock_host": lambda cache: cache.unlock_host(cache.lock(cache.match(cache.key(PROMPT)).device_anchor)),
    "evict_host": lambda cache: cache.evict_host("full", PAGE),
    "host_sizes": lambda cache: cache.host_sizes(),
}

STORAGE_VERBS: dict[str, Verb] = {
    "prefetch": lambda cache: cache.prefetch(cache.key(PROMPT)),
    "check_prefetch": lambda cache: cache.check_prefetch(None),  # type: ignore[arg-type]
    "abort_prefetch": lambda cache: cache.abort_prefetch(None),  # type: ignore[arg-type]
    "attach_storage": lambda cache: cache.attach_storage(),
    "detach_storage": lambda cache: cache.detach_storage(),
    "clear_storage": lambda cache: cache.clear_storage(),
}

COMPONENT_VERBS: dict[str, tuple[Verb, str]] = {
    "evict": (lambda cache: cache.evict("swa", PAGE), "swa"),
    "evict_host": (lambda cache: cache.evict_host("swa", PAGE), "swa"),
    "allocate_state": (lambda cache: cache.allocate_state(), "mamba"),
    "free_state": (lambda cache: cache.free_state(1), "mamba"),
    "fork_state": (lambda cache: cache.fork_state(cache.match(cache.key(PROMPT)).device_anchor), "mamba"),
    "state_of": (lambda cache: cache.state_of(cache.match(cache.key(PROMPT)).device_anchor), "mamba"),
}


@pytest.mark.parametrize("verb", HOST_VERBS.values(), ids=HOST_VERBS)
def test_a_verb_of_the_host_tier_needs_one(verb: Verb) -> None:
    with open_cache(**SIZES) as cache:
        insert_prompt(cache)
        with pytest.raises(ConfigurationError, match=r"has no host tier: open the cache with host=HostConfig\("):
            verb(cache)


@pytest.mark.parametrize("verb", STORAGE_VERBS.values(), ids=STORAGE_VERBS)
@pytest.mark.parametrize("host", [None, HostConfig({"full": CAPACITY})], ids=["device", "host"])
def test_a_verb_of_the_storage_tier_needs_one(verb: Verb, host: HostConfig | None) -> None:
    expected = r"has no storage tier: open the cache with storage=StorageConfig\("
    with open_cache(**SIZES, host=host) as cache, pytest.raises(ConfigurationError, match=expected):
        verb(cache)


@pytest.mark.parametrize(("verb", "component"), COMPONENT_VERBS.values(), ids=COMPONENT_VERBS)
def test_a_verb_of_a_component_needs_it(verb: Verb, component: str) -> None:
    with open_cache(**SIZES, host=HostConfig({"full": CAPACITY})) as cache:
        insert_prompt(cache)
        expected = rf"has no component '{component}': open the cache with components=\('full', '{component}'\)"
        with pytest.raises(ConfigurationError, match=expected):
            verb(cache)


def test_steps_of_a_cache_without_tiers_do_nothing() -> None:
    with open_cache(**SIZES) as cache:
        insert_prompt(cache)
        cache.step()
        cache.drain()
        assert cache.is_idle, "nothing is under way between tiers that are not there"


# What open_cache and its configurations refuse: each message names the argument and its value.

BUFFER = BufferShape("item", (4,), "float32")
HYBRID = ("full", "swa")
STORAGE = StorageConfig("memory", model="org/name@1")


def pool(name: str = "extra", follows: Any = Follows.EVERY_PAGE, layers: int = 1, **more: Any) -> PoolShape:
    """A pool with one buffer."""
    return PoolShape(name, follows, layers, more.pop("buffers", (BUFFER,)), **more)


def host(**changes: Any) -> HostConfig:
    """A host tier."""
    return HostConfig(**{"capacity_tokens": {"full": CAPACITY}} | changes)


MODELS: dict[str, tuple[Callable[[], object], str]] = {
    "no pool": (lambda: ModelShape(()), "the first pool of a model is 'kv' and follows every page, got None"),
    "another first pool": (lambda: ModelShape((pool("index"),)), "the first pool of a model .* got PoolShape.*'index'"),
    "a window first": (lambda: ModelShape((pool("kv", Follows.WINDOW),)), "the first pool .*got PoolShape.*WINDOW"),
    "a pool twice": (lambda: ModelShape((KV, pool("a"), pool("a"))), r"model.pools has two of the name 'a'"),
    "pools that are no tuple": (lambda: ModelShape([KV]), r"pools must be a tuple, got \[PoolShape"),  # type: ignore[arg-type]
    "no buffer": (lambda: pool(buffers=()), "pool 'extra': buffers must have one or more, got ()"),
    "layers below 0": (lambda: pool(layers=-1), "pool 'extra': layers must be an integer from 1 to .*, got -1"),
    "no token in an entry": (
        lambda: pool(tokens_per_entry=0),
        "pool 'extra': tokens_per_entry must be an integer from 1 to .*, got 0",
    ),
    "entries of a window": (
        lambda: pool(follows=Follows.WINDOW, tokens_per_entry=4),
        "pool 'extra': tokens_per_entry=4 is possible for pools that follow every page",
    ),
    "follows what is not there": (
        lambda: pool(follows="some_pages"),
        "pool 'extra': follows must be one of 'every_page', 'window', 'last_state', got 'some_pages'",
    ),
}

OPENINGS: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown argument": ({"page_sise": 16}, "open_cache has no argument 'page_sise'; known: .*page_size"),
    "no config": ({"config": 65_536}, "config must be a CacheConfig or None, got 65536"),
    "true": ({"capacity_tokens": True}, r"capacity_tokens\['full'\]=True is not a positive multiple of 16"),
    "one number for two": (
        {"components": HYBRID, "sliding_window_size": 16},
        r"capacity_tokens is given for \['full'\], components are \['full', 'swa'\]",
    ),
    "a number on the host": ({"host": host(capacity_tokens=64)}, "host.capacity_tokens is a table .*, got 64"),
    "a text of components": ({"components": "full"}, "components must be a tuple, got 'full'"),
    "an unknown component": (
        {"components": ("full", "kv"), "capacity_tokens": {"full": 16, "kv": 16}},
        r"components \['kv'\] are unknown; known: \['full', 'mamba', 'swa'\]",
    ),
    "entries that no page has whole": (
        {"model": ModelShape((KV, pool("summary", tokens_per_entry=5)))},
        "page_size=16 is not a multiple of tokens_per_entry=5 of pool 'summary'",
    ),
    "storage without a host": ({"model": KV_ONLY, "storage": STORAGE}, "storage needs a host tier"),
    "storage without a model": ({"host": host(), "storage": STORAGE}, "storage needs a model"),
    "an unknown backend": (
        {"model": KV_ONLY, "host": host(), "storage": StorageConfig("tape", model="org/name@1")},
        "storage backend 'tape' is unknown; known: memory, file, slotfile",
    ),
    "a backend for a configuration": (
        {"model": KV_ONLY, "host": host(), "storage": "file"},
        "storage must be a StorageConfig or None, got 'file'",
    ),
    "a table for a host": ({"host": {"full": 64}}, "host must be a HostConfig or None, got {'full': 64}"),
    "a name for a model": ({"model": "org/name"}, "model must be a ModelShape or None, got 'org/name'"),
    "no topology": ({"topology": None}, "topology must be a Topology, got None"),
    "a text for a flag": ({"bigram": "yes"}, "bigram must be a bool, got 'yes'"),
    "an unknown policy": ({"policy": "random"}, "policy must be one of 'lru', 'lfu', .*, got 'random'"),
    "an unknown layout": ({"layout": "page"}, "layout must be one of 'layer_first', .*, got 'page'"),
    "ranks without groups": (
        {"topology": Topology(tp_rank=1, tp_size=2)},
        r"topology has ranks \(rank, size\) of {'tp': \(1, 2\)}, groups are given for {}",
    ),
}

TIERS: dict[str, tuple[Callable[[], object], str]] = {
    "an unknown write policy": (
        lambda: host(write_policy="write_around"),
        "host.write_policy must be one of 'write_through', .*, got 'write_around'",
    ),
    "an unknown layout": (lambda: host(layout="page"), "host.layout must be one of .*, got 'page'"),
    "an unknown executor": (lambda: host(executor="fork"), "host.executor must be one of 'stepped', .*, got 'fork'"),
    "no hits": (lambda: host(selective_hits=0), "host.selective_hits must be 1 or more, got 0"),
    "an empty model": (
        lambda: StorageConfig("file", model=""),
        "storage needs a backend and a model, got 'file' and ''",
    ),
    "a number for a model": (lambda: StorageConfig("file", model=5), "storage.model must be a str, got 5"),  # type: ignore[arg-type]
    "no options": (
        lambda: StorageConfig("file", model="m", options=None),  # type: ignore[arg-type]
        "storage.options must be a Mapping, got a NoneType",
    ),
    "an unknown stop policy": (
        lambda: StorageConfig("file", model="m", stop_policy="never"),  # type: ignore[arg-type]
        "storage.stop_policy must be one of 'best_effort', .*, got 'never'",
    ),
    "storage on streams": (
        lambda: StorageConfig("file", model="m", executor=ExecutorKind.STREAMS),
        "storage.executor is stepped or threaded",
    ),
    "streams on a CPU": (
        lambda: CacheConfig({"full": 16}, host=HostConfig({"full": 16}, executor=ExecutorKind.STREAMS)),
        "host.executor is streams on a CUDA device, and nowhere else: got 'streams' on 'cpu'",
    ),
    "a thread on a GPU": (
        lambda: CacheConfig({"full": 16}, device="cuda:1", host=HostConfig({"full": 16})),
        "host.executor is streams on a CUDA device, and nowhere else: got 'threaded' on 'cuda:1'",
    ),
}


@pytest.mark.parametrize(("make", "message"), [*MODELS.values(), *TIERS.values()], ids=[*MODELS, *TIERS])
def test_a_configuration_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize(("arguments", "message"), OPENINGS.values(), ids=OPENINGS)
def test_an_opening_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        open_cache(**SIZES | arguments)


def test_a_cache_needs_a_capacity() -> None:
    with pytest.raises(ConfigurationError, match="open_cache needs capacity_tokens, such as 65536"):
        open_cache(page_size=PAGE)


def test_storage_needs_the_name_of_a_model() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'model'"):
        StorageConfig("file")  # type: ignore[call-arg]


def test_a_choice_may_be_given_by_its_value() -> None:
    below = host(write_policy="write_back", layout="layer_first", executor="stepped")
    config = CacheConfig(
        {"full": CAPACITY},
        page_size=PAGE,
        policy="lfu",  # type: ignore[arg-type]
        layout="page_first",  # type: ignore[arg-type]
        host=below,
    )
    assert (config.policy, config.layout) == (EvictionPolicy.LFU, Layout.PAGE_FIRST), f"got {config}"
    found = (below.write_policy, below.layout, below.executor)
    assert found == (WritePolicy.WRITE_BACK, Layout.LAYER_FIRST, ExecutorKind.STEPPED), f"got {below}"
    storage = StorageConfig("file", model="m", stop_policy="timeout")  # type: ignore[arg-type]
    assert storage.stop_policy is StopPolicy.TIMEOUT, f"got {storage.stop_policy!r}"
    assert config.name == "full/page16/lfu/write_back-layer_first-stepped", f"got {config.name}"


def test_changes_come_on_top_of_a_configuration() -> None:
    config = CacheConfig({"full": CAPACITY}, page_size=PAGE)
    with open_cache(config, capacity_tokens=4 * PAGE, policy="mru") as cache:  # type: ignore[arg-type]
        assert cache.config.capacity_tokens == {"full": 4 * PAGE}, f"got {cache.config.capacity_tokens}"
        assert cache.config.page_size == PAGE, f"got {cache.config.page_size}"
        assert cache.config.policy is EvictionPolicy.MRU, f"got {cache.config.policy}"
