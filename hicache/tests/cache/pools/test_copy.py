"""PoolCopier: the bytes that arrive are those that left, for all layouts, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from hicache.cache import UnifiedRadixCache
from hicache.config import BufferShape, CacheConfig, Follows, HostConfig, IoBackend, Layout, ModelShape, PoolShape
from hicache.errors import PoolMismatchError, SlotError
from hicache.pools.copy import (
    SCRATCH_BYTES,
    CopyMethod,
    DirectCopies,
    GatheredPair,
    KernelCopies,
    PoolCopier,
    RunCopies,
    copy_method,
)
from hicache.pools.device import DevicePools
from hicache.pools.host import HostPools, runtime_for
from hicache.stacks import layer_order, pool_specs
from hicache.testing.hybrid_model import reshaped
from hicache.tests.cache.pools.two_tiers import (
    BACKED_UP,
    FULL,
    LOADED,
    MAMBA,
    SWA,
    TwoTiers,
    contents,
    job_of,
    moved,
    two_tier_config,
)
from hicache.transfer.job import CopyJob
from hicache.types import Pool, TransferKind

DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "uint8"])
DEVICE_LAYOUTS = pytest.mark.parametrize("device_layout", list(Layout))
HOST_LAYOUTS = pytest.mark.parametrize("host_layout", list(Layout))
CPU = torch.device("cpu")
METHODS = pytest.mark.parametrize(
    "method", [RunCopies(), DirectCopies(), KernelCopies(CPU)], ids=lambda one: type(one).__name__
)
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine")


def by_layers(copier: PoolCopier, job: CopyJob) -> None:
    for layer in range(copier.layers):
        copier.copy_layer(job, layer)


VERBS = pytest.mark.parametrize("copy", [PoolCopier.copy, by_layers], ids=["at once", "by layers"])


def check_round_trip(tiers: TwoTiers, method: CopyMethod | None, copy: object) -> None:
    assert callable(copy), f"expected a verb of the copier, got {copy!r}"
    copier = tiers.copier(method)
    for kind, parts in ((TransferKind.BACKUP, BACKED_UP), (TransferKind.LOAD, LOADED)):
        job = job_of(kind, parts)
        expected = moved(job, tiers, len(parts))
        copy(copier, job)
        target = tiers.host if kind is TransferKind.BACKUP else tiers.device
        for pool, own in expected.items():
            assert np.array_equal(contents(target, pool), own), f"HOST-7: {pool} differs after a {kind.value}"


@DTYPES
@DEVICE_LAYOUTS
@HOST_LAYOUTS
@METHODS
@VERBS
def test_what_left_arrives_and_nothing_else_changes(
    dtype: str, device_layout: Layout, host_layout: Layout, method: CopyMethod, copy: object
) -> None:
    check_round_trip(TwoTiers(two_tier_config(device_layout, host_layout, dtype)), method, copy)


@pytest.mark.gpu
@NO_GPU
@DTYPES
@DEVICE_LAYOUTS
@HOST_LAYOUTS
@VERBS
@pytest.mark.parametrize("io_backend", list(IoBackend))
def test_what_leaves_a_gpu_comes_back(
    dtype: str, device_layout: Layout, host_layout: Layout, copy: object, io_backend: IoBackend
) -> None:
    tiers = TwoTiers(two_tier_config(device_layout, host_layout, dtype, "cuda"))
    tiers.host.pin(runtime_for("cuda"))
    check_round_trip(tiers, copy_method(io_backend, tiers.device.device), copy)
    tiers.host.close()


METHOD_OF: dict[tuple[str, IoBackend], type] = {
    ("cpu", IoBackend.DIRECT): RunCopies,
    ("cpu", IoBackend.KERNEL): KernelCopies,
    ("cuda", IoBackend.DIRECT): DirectCopies,
    ("cuda", IoBackend.KERNEL): KernelCopies,
}


@pytest.mark.parametrize(("device", "io_backend"), METHOD_OF, ids=str)
def test_an_io_backend_names_the_method(device: str, io_backend: IoBackend) -> None:
    found = type(copy_method(io_backend, torch.device(device)))
    assert found is METHOD_OF[device, io_backend], f"{io_backend.value} on {device} is {found.__name__}"


@pytest.mark.parametrize("io_backend", [None, *IoBackend])
def test_a_cache_copies_with_the_io_backend_of_its_configuration(
    io_backend: IoBackend | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods: list[CopyMethod] = []

    class Recording(PoolCopier):
        def __init__(self, device: Any, host: Any, order: Any, method: CopyMethod) -> None:
            methods.append(method)
            super().__init__(device, host, order, method)

    monkeypatch.setattr("hicache.opening.PoolCopier", Recording)
    config = two_tier_config()
    assert config.host is not None, "it has a host tier"
    UnifiedRadixCache.open(replace(config, host=replace(config.host, io_backend=io_backend))).close()
    expected = METHOD_OF["cpu", io_backend or IoBackend.DIRECT]
    assert [type(method) for method in methods] == [expected], f"{io_backend}: got {methods}"


class Copied(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the sizes of copies, and whether each is one run of memory at both ends."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.runs: list[bool] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.copy_.default:
            self.runs.append(all(tensor.is_contiguous() for tensor in args[:2]))
        return function(*args, **(kwargs or {}))


RUNS = {
    (Layout.LAYER_FIRST, Layout.LAYER_FIRST): 2,
    (Layout.PAGE_FIRST_DIRECT, Layout.PAGE_FIRST_DIRECT): 1,
    (Layout.LAYER_FIRST, Layout.PAGE_FIRST_DIRECT): 6,
    (Layout.PAGE_FIRST_DIRECT, Layout.LAYER_FIRST): 6,
}
"""Copies of three pages that follow each other, in two layers: of a layer, of all, or of a page in a layer."""


@pytest.mark.parametrize("layouts", RUNS, ids=lambda pair: "-".join(one.value for one in pair))
def test_each_direct_copy_is_one_run_of_memory(layouts: tuple[Layout, Layout]) -> None:
    tiers = TwoTiers(two_tier_config(*layouts))
    copier = tiers.copier(DirectCopies())
    with Copied() as copied:
        copier.copy(job_of(TransferKind.BACKUP, [{FULL: ([2, 3, 4], [5, 6, 7])}]))
    tensors = [Pool.KV, Pool.INDEXER]
    assert len(copied.runs) == RUNS[layouts] * len(tensors), f"as few as there are runs, got {len(copied.runs)}"
    assert all(copied.runs), "a GPU copies other memory through scratch memory of the CPU, which is waited for"


@METHODS
@pytest.mark.parametrize("bits", [0x7FC00001, 0xFFFFFFFF, 0x7F800001, 0x80000000], ids=hex)
def test_numbers_that_are_none_keep_their_bits(method: CopyMethod, bits: int) -> None:
    tiers = TwoTiers(two_tier_config())
    data = np.full((3, 8), bits, dtype=np.uint32).view(np.uint8)
    slots = np.arange(6, 9, dtype=np.int64)
    tiers.device.buffers[Pool.KV].write(slots, 1, data)
    tiers.copier(method).copy(job_of(TransferKind.BACKUP, [{FULL: ([2], [4])}]))
    found = tiers.host.read(Pool.KV, slots + 6, 1)
    assert np.array_equal(found, data), f"HOST-7: {data[0].tolist()} left, {found[0].tolist()} arrived"


@METHODS
def test_one_layer_of_the_stack_is_one_layer_of_each_pool_that_it_reads(method: CopyMethod) -> None:
    tiers = TwoTiers(two_tier_config())
    copier, job = tiers.copier(method), job_of(TransferKind.BACKUP, BACKED_UP)
    before = {pool: contents(tiers.host, pool) for pool in Pool}
    expected = moved(job, tiers, len(BACKED_UP))
    copier.copy_layer(job, 3)
    for pool in Pool:
        own = before[pool].copy()
        if pool in (Pool.KV, Pool.INDEXER):
            own[:, 1] = expected[pool][:, 1]
        assert np.array_equal(contents(tiers.host, pool), own), f"layer 3 of the stack is layer 1 of KV; {pool}"


def test_jobs_that_take_turns_are_not_mixed_up() -> None:
    tiers = TwoTiers(two_tier_config())
    copier = tiers.copier()
    jobs = [job_of(TransferKind.BACKUP, [part], number) for number, part in enumerate(BACKED_UP)]
    expected = moved(job_of(TransferKind.BACKUP, BACKED_UP), tiers, len(BACKED_UP))
    for layer in range(copier.layers):
        for job in jobs:
            copier.copy_layer(job, layer)
    for pool, own in expected.items():
        assert np.array_equal(contents(tiers.host, pool), own), f"{pool}: each job has pages of its own"


def test_kinds_of_layers_take_turns() -> None:
    tiers = TwoTiers(two_tier_config())
    assert tiers.order == (
        ((Pool.KV, 0), (Pool.INDEXER, 0)),
        ((Pool.SWA, 0),),
        ((Pool.MAMBA, 0),),
        ((Pool.KV, 1), (Pool.INDEXER, 1)),
        ((Pool.SWA, 1),),
        ((Pool.SWA, 2),),
    ), f"HOST-9: two full layers with an indexer, three of a window, one state: {tiers.order}"
    assert tiers.copier().layers == len(tiers.order), "a copier counts the layers of the whole stack"


@pytest.mark.parametrize("scratch_bytes", [1, 100, 1000])
def test_more_pages_than_scratch_memory_takes_are_moved(scratch_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hicache.pools.copy.SCRATCH_BYTES", scratch_bytes)
    config = two_tier_config()
    pages = 50
    sizes = {FULL: pages * 3, SWA: 3, MAMBA: 1}
    assert config.host is not None, "a configuration of two tiers has a host"
    tiers = TwoTiers(replace(config, capacity_tokens=sizes, host=replace(config.host, capacity_tokens=sizes)))
    numbers = list(range(1, pages + 1))
    job = job_of(TransferKind.BACKUP, [{FULL: (numbers, numbers[::-1])}])
    expected = moved(job, tiers, 1)
    tiers.copier(KernelCopies(CPU)).copy(job)
    assert np.array_equal(contents(tiers.host, Pool.KV), expected[Pool.KV]), f"{scratch_bytes} bytes at once"


class Gathered(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the bytes of each tensor that a kernel gathers pages into."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: list[int] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        if function is torch.ops.aten.index.Tensor:
            self.sizes.append(made.nbytes)
        return made


@pytest.mark.parametrize("kind", [TransferKind.BACKUP, TransferKind.LOAD])
def test_the_scratch_memory_of_a_model_of_80_layers_is_bounded(kind: TransferKind) -> None:
    # 4 KiB a token and layer, pages of 64 tokens: all layers of 256 pages have 5 GiB.
    pages, layers = 256, 80
    tier = torch.empty((pages + 1, layers, 64, 4096 // 8), dtype=torch.int64, device="meta")
    numbers = torch.arange(1, pages + 1, device="meta")
    with Gathered() as gathered:
        GatheredPair(tier, tier.clone()).copy(kind, [(numbers, numbers)], slice(None))
    assert sum(gathered.sizes) == pages * tier[0].nbytes, f"expected all pages to be gathered, got {gathered.sizes}"
    assert max(gathered.sizes) <= SCRATCH_BYTES, f"expected {SCRATCH_BYTES} bytes at most, got {max(gathered.sizes)}"


class PretendGpu(TorchFunctionMode):
    """Makes tensors on the CPU, and records where each was to be made or sent, and from which memory."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, bool]] = []
        self.sent: list[tuple[torch.device, bool]] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function is torch.tensor:
            self.made.append((str(kwargs.pop("device", "cpu")), kwargs.pop("pin_memory", False)))
        if function is torch.Tensor.to:
            self.sent.append((args[1], kwargs.get("non_blocking", False)))
            return args[0]
        return function(*args, **kwargs)


def test_page_numbers_are_sent_from_pinned_memory_without_a_wait() -> None:
    gpu = torch.device("cuda", 1)
    with PretendGpu() as calls:
        KernelCopies(gpu).addresses([1, 2], [3, 4])
    assert calls.made == [("cpu", True)] * 2, f"a tensor made on a GPU is a copy that is waited for, got {calls.made}"
    assert calls.sent == [(gpu, True)] * 2, f"expected copies without a wait, got {calls.sent}"


def copier_of(page_size: int, slot_bytes: int, device: Layout, host: Layout) -> PoolCopier:
    """A copier of a model with one pool of two layers."""
    buffers = (BufferShape("kv", (slot_bytes,), "uint8"),)
    model, sizes = ModelShape((PoolShape("kv", Follows.EVERY_PAGE, 2, buffers),)), {FULL: page_size}
    config = CacheConfig(sizes, page_size=page_size, model=model, layout=device, host=HostConfig(sizes, layout=host))
    specs = pool_specs(config)
    return PoolCopier(DevicePools(config, specs), HostPools(config, specs), layer_order(specs))


@pytest.mark.parametrize(
    ("page_size", "slot_bytes", "device", "host", "expected"),
    [
        (64, 1024, Layout.LAYER_FIRST, Layout.PAGE_FIRST_DIRECT, True),
        (64, 1024, Layout.PAGE_FIRST, Layout.PAGE_FIRST, True),
        (1, 64 << 10, Layout.LAYER_FIRST, Layout.LAYER_FIRST, True),
        (64, 1023, Layout.LAYER_FIRST, Layout.PAGE_FIRST_DIRECT, False),
        (64, 1024, Layout.LAYER_FIRST, Layout.PAGE_FIRST, False),
        (64, 1024, Layout.PAGE_FIRST, Layout.LAYER_FIRST, False),
    ],
)
def test_layers_cost_little_where_pages_are_large_and_lie_alike(
    page_size: int, slot_bytes: int, device: Layout, host: Layout, expected: bool
) -> None:
    copier = copier_of(page_size, slot_bytes, device, host)
    assert copier.layers_cost_little is expected, f"pages of {page_size * slot_bytes} bytes in a layer"


@METHODS
@pytest.mark.parametrize(
    "pages", [([1, 2], [3]), ([1], [2, 3]), ([0], [1]), ([1], [0]), ([9], [1]), ([1], [10]), ([-1], [1])], ids=str
)
def test_pages_that_are_none_are_refused_before_anything_is_copied(
    method: CopyMethod, pages: tuple[list[int], list[int]]
) -> None:
    tiers = TwoTiers(two_tier_config())
    before = contents(tiers.host, Pool.SWA)
    with pytest.raises(SlotError, match="full: "):
        tiers.copier(method).copy(job_of(TransferKind.BACKUP, [{SWA: ([1], [1])}, {FULL: pages}]))
    assert np.array_equal(contents(tiers.host, Pool.SWA), before), "nothing was copied"


@METHODS
def test_a_job_without_pages_copies_nothing(method: CopyMethod) -> None:
    tiers = TwoTiers(two_tier_config())
    before = contents(tiers.host, Pool.KV)
    tiers.copier(method).copy(job_of(TransferKind.BACKUP, [{FULL: ([], [])}, {}]))
    assert np.array_equal(contents(tiers.host, Pool.KV), before), "no page was named"


@pytest.mark.parametrize("difference", ["dtype", "layers", "heads"])
def test_unlike_tiers_are_refused_at_once(difference: str) -> None:
    config = two_tier_config()
    changes: dict[str, dict[str, object]] = {
        "dtype": {"dtype": "float16"},
        "layers": {"swa_layers": 1},
        "heads": {"head_dim": 8},
    }
    other = replace(config, model=reshaped(config.model, **changes[difference]))
    device, host = DevicePools(config, pool_specs(config)), HostPools(other, pool_specs(other))
    with pytest.raises(PoolMismatchError, match="cannot copy between"):
        PoolCopier(device, host, layer_order(pool_specs(config)))


def test_tiers_of_other_page_sizes_are_refused_at_once() -> None:
    config = two_tier_config()
    other = replace(config, page_size=1)
    device, host = DevicePools(config, pool_specs(config)), HostPools(other, pool_specs(other))
    with pytest.raises(PoolMismatchError, match="pages of 1 on the host"):
        PoolCopier(device, host, layer_order(pool_specs(config)))


def test_the_bytes_of_an_operation_are_those_of_every_layer_and_pool() -> None:
    tiers = TwoTiers(two_tier_config())
    part = {name: move.device for name, move in job_of(TransferKind.BACKUP, BACKED_UP).parts[0].items()}
    kv_slot, index_slot, states = 2 * 2 * 4 * 4, 2 * 4 * 4, 4 * 4 + 8 * 4
    expected = 3 * 3 * (kv_slot + index_slot) + 1 * 3 * (3 * 2 * 4 * 4) + 1 * states
    found = tiers.device.bytes_of(part)
    assert found == expected, f"3 pages of KV and index, 1 of the window, 1 state: expected {expected}, got {found}"
    assert tiers.device.bytes_of({MAMBA: part[MAMBA]}) == states, "a state alone"
