"""The cost of backups and load-backs by pages and layouts: counted, and measured against a plain copy of the bytes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from hicache.config import ExecutorKind, Layout, ModelShape
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.hybrid_model import HybridModel, reshaped
from hicache.types import Handle

from .conftest import MeasureBeside
from .measurement import counts, functions_entered
from .prompt_transfer import PAGE_AND_LAYER_BYTES, WIDE_MODEL, LayoutPair, PromptTransfer
from .synthetic_tree import SLIM_MODEL

LAYER_FIRST, PAGE_FIRST, DIRECT = Layout
PAGES_ON_BOTH = [LayoutPair(PAGE_FIRST, PAGE_FIRST), LayoutPair(DIRECT, DIRECT)]
LAYOUT_PAIRS = [*PAGES_ON_BOTH, *[LayoutPair(LAYER_FIRST, host) for host in Layout]]

ROUNDS = {1: 200, 64: 30, 512: 20, 4_096: 5}
"""Rounds by the number of pages of the prompt."""

IN_A_ROW, SCATTERED = "pages in a row", "pages scattered"

COPIED_AT_ONCE = [*PAGES_ON_BOTH, LayoutPair(LAYER_FIRST, LAYER_FIRST), LayoutPair(LAYER_FIRST, DIRECT)]
"""Layouts with which consecutive pages are one run of memory per layer on both tiers. Where slots come before layers on
one tier only, each slot is a run of its own, of 2 KiB."""

COPIES = pytest.mark.parametrize(
    ("order", "layouts"),
    [*[(IN_A_ROW, layouts) for layouts in COPIED_AT_ONCE], *[(SCATTERED, layouts) for layouts in PAGES_ON_BOTH]],
    ids=str,
)
"""Layouts with which a page is at most one run of memory per layer. With others, scattered pages are runs of 32 KiB."""

COPY_PAGES, FEW_PAGES, MANY_PAGES = 64, 8, 512

LAYERS = HybridModel.of(WIDE_MODEL).full_layers
LAYERED_MODEL = reshaped(SLIM_MODEL, full_layers=LAYERS)
"""A model with the same number of layers as WIDE_MODEL, and little data."""

OpenTransfer = Callable[[LayoutPair, int, ModelShape], PromptTransfer]


@pytest.fixture
def open_transfer(adapter_type: type[CacheAdapter], open_cache: Callable[..., CacheAdapter]) -> OpenTransfer:
    """Opens a PromptTransfer, with a stepped executor if the adapter supports it."""
    is_stepped = Capability.STEPPED in adapter_type.capabilities
    executor = ExecutorKind.STEPPED if is_stepped else ExecutorKind.THREADED

    def open_one(layouts: LayoutPair, pages: int, model: ModelShape) -> PromptTransfer:
        return PromptTransfer(open_cache(layouts.config(pages, model, executor)), pages, model)

    return open_one


@pytest.fixture(params=ROUNDS, ids="{}pages".format)
def pages(request: pytest.FixtureRequest) -> int:
    """The number of pages of the prompt."""
    count: int = request.param
    return count


@pytest.fixture(params=LAYOUT_PAIRS, ids=str)
def transfer(
    request: pytest.FixtureRequest, pages: int, open_transfer: OpenTransfer, benchmark: BenchmarkFixture
) -> PromptTransfer:
    """A transfer for each pair of layouts; with little data if nothing is measured."""
    return open_transfer(request.param, pages, WIDE_MODEL if benchmark.enabled else SLIM_MODEL)


@pytest.fixture
def measure(
    benchmark: BenchmarkFixture, pages: int, transfer: PromptTransfer, measure_beside: MeasureBeside
) -> Callable[..., None]:
    """Measures one direction alternately with a plain copy, and reports its share of the plain copy's speed."""

    def measure_each(prepare: Callable[[], None], act: Callable[[], None]) -> None:
        benchmark.group = f"transfers of {pages} pages"
        measure_beside(prepare, transfer.copy_plain, act, ROUNDS[pages], "share of the speed of a plain copy")

    return measure_each


def test_back_up(transfer: PromptTransfer, measure: Callable[..., None]) -> None:
    measure(transfer.insert_new, transfer.back_up)
    transfer.evict_from_device()


def test_load_back(pages: int, transfer: PromptTransfer, measure: Callable[..., None]) -> None:
    transfer.insert_new()
    transfer.back_up()
    measure(transfer.evict_from_device, transfer.load)
    assert transfer.pages_on_device() == pages, (
        f"expected {pages} pages on the device, got {transfer.pages_on_device()}"
    )


class Copying:
    """Runs only the copying of a backup or a load-back, without the work of the tree."""

    def __init__(self, transfer: PromptTransfer) -> None:
        self.transfer = transfer
        self._cache = transfer.cache
        self._ticket: Handle | None = None
        self._pending: list[Handle] = []

    def prepare_backup(self) -> None:
        """End the last transfer, and start the backup of a new prompt."""
        self._cache.drain()
        if self._ticket is not None:
            self._cache.claim(self._ticket)
            self._ticket = None
        self.transfer.insert_new()
        self._start()

    def prepare_load(self) -> None:
        """Start the load-back of a new prompt, which is on the host alone."""
        self.prepare_backup()
        self._cache.drain()
        self.transfer.evict_from_device()
        self._ticket = self.transfer.begin_load().ticket
        self._start()

    def copy(self) -> None:
        """Complete the started transfer."""
        for ticket in self._pending:
            self._cache.complete(ticket)

    def _start(self) -> None:
        self._cache.step()
        self._pending = [transfer.ticket for transfer in self._cache.pending()]
        assert self._pending, "expected a transfer of the prompt in flight, got none"


DIRECTIONS = pytest.mark.parametrize("prepare", [Copying.prepare_backup, Copying.prepare_load], ids=["backup", "load"])

OpenCopying = Callable[[str, LayoutPair, int, ModelShape], Copying]


@pytest.fixture
def open_copying(open_transfer: OpenTransfer, require: Callable[..., None]) -> OpenCopying:
    """Opens a Copying with a stepped executor, of pages in a row or scattered pages, or skips the test."""

    def open_one(order: str, layouts: LayoutPair, pages: int, model: ModelShape) -> Copying:
        require(layouts.config(pages, model, ExecutorKind.STEPPED), Capability.STEPPED)
        transfer = open_transfer(layouts, pages, model)
        if order == SCATTERED:
            transfer.scatter()
        return Copying(transfer)

    return open_one


@COPIES
@DIRECTIONS
def test_copying(
    prepare: Callable[[Copying], None],
    order: str,
    layouts: LayoutPair,
    open_copying: OpenCopying,
    benchmark: BenchmarkFixture,
    measure_beside: MeasureBeside,
) -> None:
    copying = open_copying(order, layouts, COPY_PAGES, WIDE_MODEL if benchmark.enabled else SLIM_MODEL)
    benchmark.group = f"copying of {COPY_PAGES} {order}"
    measure_beside(
        lambda: prepare(copying),
        copying.transfer.copy_plain,
        copying.copy,
        ROUNDS[COPY_PAGES],
        "share of the speed of a plain copy",
    )


@pytest.mark.parametrize("layouts", COPIED_AT_ONCE, ids=str)
@DIRECTIONS
def test_copying_pages_in_a_row_enters_the_same_number_of_functions(
    prepare: Callable[[Copying], None], layouts: LayoutPair, open_copying: OpenCopying
) -> None:
    entered = dict[int, int]()
    for pages in (FEW_PAGES, MANY_PAGES):
        copying = open_copying(IN_A_ROW, layouts, pages, LAYERED_MODEL)
        prepare(copying)
        entered[pages] = functions_entered(copying.copy)
    assert entered[MANY_PAGES] == entered[FEW_PAGES], (
        f"expected the same number of functions entered for any number of pages in a row, got {entered} by pages"
    )


@COPIES
@DIRECTIONS
def test_copying_allocates_no_intermediate_copy(
    prepare: Callable[[Copying], None], order: str, layouts: LayoutPair, open_copying: OpenCopying
) -> None:
    copying = open_copying(order, layouts, COPY_PAGES, WIDE_MODEL)
    prepare(copying)
    tracemalloc.start()
    try:
        copying.copy()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < PAGE_AND_LAYER_BYTES, (
        f"{COPY_PAGES} {order}: expected less memory than one layer of a page, {PAGE_AND_LAYER_BYTES} bytes, "
        f"got a peak of {peak_bytes} bytes"
    )


@pytest.mark.parametrize("layouts", LAYOUT_PAIRS, ids=str)
def test_a_transfer_moves_each_byte_once(
    layouts: LayoutPair, open_transfer: OpenTransfer, require: Callable[..., None]
) -> None:
    require(layouts.config(COPY_PAGES, WIDE_MODEL, ExecutorKind.STEPPED), Capability.COUNTERS)
    transfer = open_transfer(layouts, COPY_PAGES, WIDE_MODEL)
    moved = COPY_PAGES * LAYERS * PAGE_AND_LAYER_BYTES
    transfer.insert_new()
    found = counts(transfer.cache, transfer.back_up)
    assert found.get("bytes_backed_up") == moved, f"a backup of {COPY_PAGES} pages: expected {moved} bytes, got {found}"
    transfer.evict_from_device()
    found = counts(transfer.cache, transfer.load)
    assert found.get("bytes_loaded") == moved, f"a load of {COPY_PAGES} pages: expected {moved} bytes, got {found}"
