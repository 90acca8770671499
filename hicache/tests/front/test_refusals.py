"""What open_cache and its configurations refuse: each message names the argument and its value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    PoolShape,
    StopPolicy,
    StorageConfig,
    Topology,
    WritePolicy,
    open_cache,
)
from hicache.errors import ConfigurationError
from hicache.tests.front.prompts import KV, KV_ONLY, PAGE

BUFFER = BufferShape("item", (4,), "float32")
SIZES: dict[str, Any] = {"page_size": PAGE, "capacity_tokens": 8 * PAGE}
HYBRID = ("full", "swa")
STORAGE = StorageConfig("memory", model="org/name@1")


def pool(name: str = "extra", follows: Any = Follows.EVERY_PAGE, layers: int = 1, **more: Any) -> PoolShape:
    """A pool with one buffer."""
    return PoolShape(name, follows, layers, more.pop("buffers", (BUFFER,)), **more)


def host(**changes: Any) -> HostConfig:
    """A host tier."""
    return HostConfig(**{"capacity_tokens": {"full": 8 * PAGE}} | changes)


MODELS: dict[str, tuple[Callable[[], object], str]] = {
    "no pool": (lambda: ModelShape(()), "the first pool of a model is 'kv' and follows every page, got None"),
    "another first pool": (lambda: ModelShape((pool("index"),)), "the first pool of a model .* got PoolShape.*'index'"),
    "a window first": (lambda: ModelShape((pool("kv", Follows.WINDOW),)), "the first pool .*got PoolShape.*WINDOW"),
    "a pool twice": (lambda: ModelShape((KV, pool("a"), pool("a"))), r"names a pool twice: \['kv', 'a', 'a'\]"),
    "pools that are no tuple": (lambda: ModelShape([KV]), r"pools must be a tuple, got \[PoolShape"),  # type: ignore[arg-type]
    "no buffer": (lambda: pool(buffers=()), "pool 'extra' has 1 layers and 0 buffers"),
    "layers below 0": (lambda: pool(layers=-1), "pool 'extra' has -1 layers"),
    "no token in an entry": (lambda: pool(tokens_per_entry=0), "pool 'extra': tokens_per_entry=0"),
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
    "no page size": ({"page_size": 0}, "page_size must be a positive integer, got 0"),
    "a part of a page": ({"capacity_tokens": 100}, r"capacity_tokens\['full'\]=100 is no positive multiple of 16"),
    "true": ({"capacity_tokens": True}, r"capacity_tokens\['full'\]=True is no positive multiple of 16"),
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
    "no window": (
        {"components": HYBRID, "capacity_tokens": {"full": 16, "swa": 16}},
        "'swa' needs a positive sliding_window_size, got None",
    ),
    "no pool for a component": (
        {"components": HYBRID, "capacity_tokens": {"full": 16, "swa": 16}, "sliding_window_size": 16, "model": KV_ONLY},
        "components has 'swa', but no pool of the model follows it",
    ),
    "entries that no page has whole": (
        {"model": ModelShape((KV, pool("summary", tokens_per_entry=5)))},
        "page_size=16 is no multiple of tokens_per_entry=5 of pool 'summary'",
    ),
    "an unknown dtype": (
        {"model": ModelShape((pool("kv", buffers=(BufferShape("kv", (4,), "float5"),)),))},
        "model dtype 'float5' is no dtype of torch",
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
        "storage.options must be a Mapping, got None",
    ),
    "an unknown stop policy": (
        lambda: StorageConfig("file", model="m", stop_policy="never"),  # type: ignore[arg-type]
        "storage.stop_policy must be one of 'best_effort', .*, got 'never'",
    ),
    "storage on streams": (
        lambda: StorageConfig("file", model="m", executor=ExecutorKind.STREAMS),
        "storage.executor is stepped or threaded",
    ),
    "a rank beyond the group": (lambda: Topology(tp_rank=2, tp_size=2), r"tp_rank 2 is not in range\(tp_size=2\)"),
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


def test_tensors_without_a_model_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"tensors are given for pools \['kv'\], the cache has \[\]"):
        open_cache(**SIZES, tensors={"kv": [torch.zeros(1)]})


def test_a_choice_may_be_given_by_its_value() -> None:
    below = host(write_policy="write_back", layout="layer_first", executor="stepped")
    config = CacheConfig(
        {"full": 8 * PAGE},
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
    config = CacheConfig({"full": 8 * PAGE}, page_size=PAGE)
    with open_cache(config, capacity_tokens=4 * PAGE, policy="mru") as cache:
        assert cache.config.capacity_tokens == {"full": 4 * PAGE}, f"got {cache.config.capacity_tokens}"
        assert cache.config.page_size == PAGE, f"got {cache.config.page_size}"
        assert cache.config.policy is EvictionPolicy.MRU, f"got {cache.config.policy}"
