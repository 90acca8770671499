"""Back-ups and load-backs on a GPU, each direction and both at once, against plain copies of pinned memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.config import ExecutorKind, Layout
from hicache.optional_torch import torch
from hicache.testing.adapter import CacheAdapter
from hicache.testing.devices import missing_device
from hicache.testing.load import moved

from .conftest import MeasureBeside
from .prompt_transfer import WIDE_MODEL, LayoutPair, PromptTransfer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(missing_device("cuda")), reason=missing_device("cuda")),
]

PAGES = 4_096
"""A gigabyte: a copy takes tens of milliseconds, and a call of CUDA microseconds."""

ROUNDS = 10

SHARE = "share of the speed of a copy of pinned memory"


class PinnedCopies:
    """Copies of so many bytes between a GPU and pinned memory, on a stream for each direction."""

    def __init__(self, size_bytes: int) -> None:
        self._pinned = [torch.ones(size_bytes, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self._device = [torch.ones(size_bytes, dtype=torch.uint8, device="cuda") for _ in range(2)]
        self._streams = [torch.cuda.Stream() for _ in range(2)]  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()

    def to_host(self) -> None:
        """Return when they are on the host."""
        self._copy(self._pinned[0], self._device[0], self._streams[0])
        torch.cuda.synchronize()

    def to_device(self) -> None:
        """Return when they are on the device."""
        self._copy(self._device[1], self._pinned[1], self._streams[1])
        torch.cuda.synchronize()

    def both(self) -> None:
        """Return when both copies are done, which run side by side."""
        self._copy(self._pinned[0], self._device[0], self._streams[0])
        self.to_device()

    def _copy(self, target: torch.Tensor, source: torch.Tensor, stream: torch.cuda.Stream) -> None:
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)


OpenTransfer = Callable[[], PromptTransfer]


@pytest.fixture(params=[LayoutPair(Layout.LAYER_FIRST, host) for host in Layout], ids=str)
def open_transfer(request: pytest.FixtureRequest, open_cache: Callable[..., CacheAdapter]) -> OpenTransfer:
    """Opens a PromptTransfer on the GPU, for each layout of the host."""
    layouts: LayoutPair = request.param

    def open_one() -> PromptTransfer:
        config = layouts.config(PAGES, WIDE_MODEL, ExecutorKind.THREADED)
        return PromptTransfer(open_cache(moved(config, "cuda")), PAGES, WIDE_MODEL)

    return open_one


def test_back_up(open_transfer: OpenTransfer, measure_beside: MeasureBeside) -> None:
    transfer = open_transfer()
    copies = PinnedCopies(transfer.size_bytes)
    measure_beside(transfer.insert_new, copies.to_host, transfer.back_up, ROUNDS, SHARE)
    transfer.evict_from_device()


def test_load_back(open_transfer: OpenTransfer, measure_beside: MeasureBeside) -> None:
    transfer = open_transfer()
    copies = PinnedCopies(transfer.size_bytes)
    transfer.insert_new()
    transfer.back_up()
    measure_beside(transfer.evict_from_device, copies.to_device, transfer.load, ROUNDS, SHARE)
    assert transfer.pages_on_device() == PAGES, f"expected {PAGES} pages, got {transfer.pages_on_device()}"


def test_both_directions_at_once(open_transfer: OpenTransfer, measure_beside: MeasureBeside) -> None:
    leaving, coming = open_transfer(), open_transfer()
    copies = PinnedCopies(leaving.size_bytes)
    coming.insert_new()
    coming.back_up()

    def prepare() -> None:
        leaving.insert_new()
        coming.evict_from_device()

    def act() -> None:
        loading = coming.begin_load()
        coming.cache.step()
        leaving.back_up()
        coming.finish_load(loading)

    measure_beside(prepare, copies.both, act, ROUNDS, f"{SHARE}, in both directions at once")
    assert coming.pages_on_device() == PAGES, f"expected {PAGES} pages, got {coming.pages_on_device()}"
