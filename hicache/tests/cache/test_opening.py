"""What cannot be opened is refused with ConfigurationError, for any value of a field, and nothing stays open."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch

from hicache import (
    BufferShape,
    CacheConfig,
    HostConfig,
    ModelShape,
    PoolShape,
    StorageConfig,
    Topology,
    UnifiedRadixCache,
    open_cache,
)
from hicache.config import DEVICE_TYPES, DTYPES
from hicache.errors import ConfigurationError
from hicache.testing.hybrid_model import TINY_MODEL

SIZES: dict[str, Any] = {"page_size": 16, "capacity_tokens": {"full": 64}}
HUGE = 10**30
WRONG: tuple[Any, ...] = (-1, 1.5, float("nan"), float("inf"), "x", "\0", HUGE, [], object(), b"x")
"""What no field takes, but for those in TAKEN."""

TAKEN: Mapping[str, tuple[Any, ...]] = {
    "HostConfig.selective_hits": (HUGE,),
    "HostConfig.load_back_threshold_tokens": (HUGE,),
    "StorageConfig.model": ("x", "\0"),
    "StorageConfig.model_fingerprint": ("x", "\0"),
    "StorageConfig.prefetch_threshold": (HUGE,),
    "StorageConfig.prefetch_timeout_base": (1.5, HUGE),
    "StorageConfig.prefetch_timeout_per_ki_token": (1.5, HUGE),
    "StorageConfig.timeout_cap_s": (1.5, HUGE),
    "StorageConfig.limit_tokens": (HUGE,),
    "StorageConfig.answer_timeout_s": (1.5, HUGE),
    "BufferShape.name": ("x", "\0"),
}
"""By field: what it takes of those."""


def opened_with(kind: type, name: str, value: Any) -> UnifiedRadixCache:
    """A cache opened with a value in one field of one configuration; all others can be served."""
    changed: dict[str, Any] = {name: value}
    if kind is CacheConfig:
        return open_cache(**SIZES | changed)
    host = HostConfig(**{"capacity_tokens": {"full": 64}} | (changed if kind is HostConfig else {}))
    storage = StorageConfig(**{"backend": "memory", "model": "m"} | (changed if kind is StorageConfig else {}))
    topology = Topology(**changed if kind is Topology else {})
    buffer: dict[str, Any] = {"name": "kv", "shape": (4,), "dtype": "float32"} | (
        changed if kind is BufferShape else {}
    )
    buffers = (BufferShape(**buffer),)
    pool: dict[str, Any] = {"name": "kv", "follows": "every_page", "layers": 1, "buffers": buffers}
    pools = (PoolShape(**pool | (changed if kind is PoolShape else {})),)
    model = ModelShape(**{"pools": pools} | (changed if kind is ModelShape else {}))
    return open_cache(**SIZES, model=model, topology=topology, host=host, storage=storage)


FIELDS = [
    (kind, one.name)
    for kind in (CacheConfig, HostConfig, StorageConfig, Topology, ModelShape, PoolShape, BufferShape)
    for one in fields(kind)
]


def open_things() -> tuple[int, int]:
    """Threads, and open files."""
    return threading.active_count(), len(list(Path("/proc/self/fd").iterdir())) if os.name == "posix" else 0


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=[f"{kind.__name__}.{name}" for kind, name in FIELDS])
def test_a_field_takes_nothing_else(kind: type, name: str) -> None:
    before = open_things()
    for value in WRONG:
        if any(value is taken or value == taken for taken in TAKEN.get(f"{kind.__name__}.{name}", ())):
            continue
        with pytest.raises(ConfigurationError):
            opened_with(kind, name, value).close()
    assert open_things() == before, f"threads and files before and after: {before}, {open_things()}"


ARGUMENTS: Mapping[str, tuple[Callable[[], object], str]] = {
    "a device that is not there": (lambda: open_cache(**SIZES, model=TINY_MODEL, device="cuda:99"), "device 'cuda:99'"),
    "the same without a model": (lambda: open_cache(**SIZES, device="cuda:99"), "device 'cuda:99' is not there"),
    "no device": (lambda: open_cache(**SIZES, device="tpu"), "device 'tpu' is not a device of torch"),
    "no bytes": (lambda: open_cache(**SIZES, device="meta"), "device 'meta' keeps no bytes"),
    "no topology": (lambda: open_cache(**SIZES, topology=None), "topology must be a Topology, got None"),  # type: ignore[arg-type]
    "true for ranks": (lambda: Topology(tp_size=True), "topology.tp_size must be an integer .*, got True"),
    "true for a window": (
        lambda: CacheConfig({"full": 64}, sliding_window_size=True),
        "sliding_window_size must be an integer from 1 .*, got True",
    ),
    "too many slots": (lambda: open_cache(**SIZES | {"capacity_tokens": 16 * HUGE}), "capacity_tokens.*'full'.*=1600"),
    "more than there is": (lambda: open_cache(**SIZES | {"capacity_tokens": 1 << 40}), "no memory on device 'cpu'"),
    "more than there is on the host": (
        lambda: open_cache(**SIZES, model=TINY_MODEL, host=HostConfig({"full": 1 << 40})),
        r"no memory .*host.capacity_tokens=\{'full': 1099511627776\}",
    ),
    "no groups": (lambda: open_cache(**SIZES, groups=5), "groups must be a table or None, got 5"),  # type: ignore[arg-type]
    "no tensors": (lambda: open_cache(**SIZES, tensors=5), "tensors must be a table or None, got 5"),  # type: ignore[arg-type]
    "no tensor": (
        lambda: open_cache(**SIZES, model=TINY_MODEL, tensors={"kv": 5}),  # type: ignore[dict-item]
        r"tensors\['kv'\] must be a sequence of tensors, got 5",
    ),
    "a pool of text": (lambda: ModelShape(("kv",)), "model.pools has PoolShapes alone, got 'kv'"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("make", "message"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_an_argument_is_refused_by_name(make: Callable[[], object], message: str) -> None:
    before = open_things()
    with pytest.raises(ConfigurationError, match=message):
        make()
    assert open_things() == before, f"threads and files before and after: {before}, {open_things()}"


OF_CAFFE2 = {"mkldnn", "opengl", "opencl", "ideep"}
"""Types of devices that torch still names, and has no tensors on."""


def test_the_types_of_devices_are_those_of_torch() -> None:
    with pytest.raises(RuntimeError) as refusal:
        torch.device("nothing")
    known = str(refusal.value).partition("Expected one of ")[2].partition(" device type")[0]
    expected = {*known.split(", ")} - OF_CAFFE2
    assert expected == DEVICE_TYPES, f"expected {expected}, hicache.config.DEVICE_TYPES has {DEVICE_TYPES}"


@pytest.mark.parametrize("device", sorted(DEVICE_TYPES - {"cpu", "cuda", "meta"}))
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with suppress(ConfigurationError):
        open_cache(**SIZES, model=TINY_MODEL, device=device).close()


def is_indexed(dtype: torch.dtype) -> bool:
    """Whether torch reads the elements of a tensor of this dtype."""
    try:
        torch.zeros(16, dtype=torch.uint8).view(dtype)[[0]]
    except NotImplementedError:
        return False
    return True


# Torch is still working on operations with complex32, and warns of it.
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_the_dtypes_are_those_of_torch_whose_elements_are_whole_bytes() -> None:
    every = {name: one for name, one in vars(torch).items() if isinstance(one, torch.dtype)}
    # Two elements of four bits each are one byte; torch moves them, and has no index of them.
    expected = {name for name, one in every.items() if is_indexed(one)} | {"float4_e2m1fn_x2"}
    assert expected == DTYPES, f"expected {expected}, hicache.config.DTYPES has {DTYPES}"


BESIDE = {"groups", "tensors", "metrics"}
"""Arguments of the opening that are not fields of a configuration."""


def test_the_keywords_are_the_fields_of_a_configuration() -> None:
    parameters, types = signature(open_cache).parameters, get_type_hints(open_cache)
    fields_of, field_types = {one.name: one for one in fields(CacheConfig)}, get_type_hints(CacheConfig)
    keywords = [name for name, one in parameters.items() if one.kind is Parameter.KEYWORD_ONLY]
    assert keywords == [*fields_of, *sorted(BESIDE, key=keywords.index)], f"expected {list(fields_of)}, got {keywords}"
    for name, one in fields_of.items():
        found = parameters[name].default, types[name]
        is_sizes = name == "capacity_tokens"
        expected = (None, int | field_types[name] | None) if is_sizes else (one.default, field_types[name])
        assert found == expected, f"{name}: expected default and type {expected}, found {found}"


def test_a_keyword_changes_a_field_of_the_configuration_also_to_its_default() -> None:
    config = CacheConfig({"full": 64}, page_size=16, bigram=True)
    with open_cache(config, page_size=1) as cache:
        assert cache.config == replace(config, page_size=1), f"expected bigram keys in pages of 1, got {cache.config}"
    with open_cache(config) as cache:
        assert cache.config == config, f"expected {config}, got {cache.config}"
