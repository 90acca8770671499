"""What a backup and a load-back cost over pages and layouts: counted, and measured beside a plain copy of the bytes."""

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
from .crossing import PAGE_AND_LAYER_BYTES, WIDE_MODEL, Crossing, Route
from .scale import SLIM_MODEL
from .work import counts, functions_entered

LAYER_FIRST, PAGE_FIRST, DIRECT = Layout
PAGES_ON_BOTH = [Route(PAGE_FIRST, PAGE_FIRST), Route(DIRECT, DIRECT)]
ROUTES = [*PAGES_ON_BOTH, *[Route(LAYER_FIRST, host) for host in Layout]]

ROUNDS = {1: 200, 64: 30, 512: 20, 4_096: 5}
"""By the pages of the prompt."""

IN_A_ROW, SCATTERED = "pages in a row", "pages scattered"

COPIED_AT_ONCE = [*PAGES_ON_BOTH, Route(LAYER_FIRST, LAYER_FIRST), Route(LAYER_FIRST, DIRECT)]
"""Routes on which pages in a row are one run of each layer at both ends. Where slots come before layers at one end
only, each slot is a run of its own, of 2 KiB."""

COPIES = pytest.mark.parametrize(
    ("order", "route"),
    [*[(IN_A_ROW, route) for route in COPIED_AT_ONCE], *[(SCATTERED, route) for route in PAGES_ON_BOTH]],
    ids=str,
)
"""Where a page is one run for each layer at least. Between other layouts, scattered pages are runs of 32 KiB."""

COPY_PAGES, FEW_PAGES, MANY_PAGES = 64, 8, 512

LAYERS = HybridModel.of(WIDE_MODEL).full_layers
LAYERED_MODEL = reshaped(SLIM_MODEL, full_layers=LAYERS)
"""As many layers as are measured, with hardly any bytes."""

OpenCrossing = Callable[[Route, int, ModelShape], Crossing]


@pytest.fixture
def open_crossing(adapter_type: type[CacheAdapter], open_cache: Callable[..., CacheAdapter]) -> OpenCrossing:
    """Opens a crossing whose transfers take place when they are waited for, if the adapter can do that."""
    is_stepped = Capability.STEPPED in adapter_type.capabilities
    executor = ExecutorKind.STEPPED if is_stepped else ExecutorKind.THREADED

    def open_one(route: Route, pages: int, model: ModelShape) -> Crossing:
        return Crossing(open_cache(route.config(pages, model, executor)), pages, model)

    return open_one


@pytest.fixture(params=ROUNDS, ids="{}pages".format)
def pages(request: pytest.FixtureRequest) -> int:
    """The pages of the prompt."""
    count: int = request.param
    return count


@pytest.fixture(params=ROUTES, ids=str)
def crossing(
    request: pytest.FixtureRequest, pages: int, open_crossing: OpenCrossing, benchmark: BenchmarkFixture
) -> Crossing:
    """A crossing on each route; with hardly any bytes when nothing is measured."""
    return open_crossing(request.param, pages, WIDE_MODEL if benchmark.enabled else SLIM_MODEL)


@pytest.fixture
def measure(
    benchmark: BenchmarkFixture, pages: int, crossing: Crossing, measure_beside: MeasureBeside
) -> Callable[..., None]:
    """Goes one way again and again, each time after a plain copy, and reports how much of its speed that is."""

    def measure_each(prepare: Callable[[], None], go: Callable[[], None]) -> None:
        benchmark.group = f"transfers of {pages} pages"
        measure_beside(prepare, crossing.copy_plainly, go, ROUNDS[pages], "part of the speed of a plain copy")

    return measure_each


def test_back_up(crossing: Crossing, measure: Callable[..., None]) -> None:
    measure(crossing.renew, crossing.back_up)
    crossing.demote()


def test_load_back(pages: int, crossing: Crossing, measure: Callable[..., None]) -> None:
    crossing.renew()
    crossing.back_up()
    measure(crossing.demote, crossing.load)
    assert crossing.pages_on_device() == pages, f"the prompt has {pages} pages, which are back on the device"


class Copying:
    """The copying alone of a backup and of a load, without what the tree does about it."""

    def __init__(self, crossing: Crossing) -> None:
        self.crossing = crossing
        self._cache = crossing.cache
        self._ticket: Handle | None = None
        self._pending: list[Handle] = []

    def prepare_backup(self) -> None:
        """End what was begun, and start the backup of a new prompt."""
        self._cache.drain()
        if self._ticket is not None:
            self._cache.claim(self._ticket)
            self._ticket = None
        self.crossing.renew()
        self._start()

    def prepare_load(self) -> None:
        """Start the load of a new prompt, which is on the host alone."""
        self.prepare_backup()
        self._cache.drain()
        self.crossing.demote()
        self._ticket = self.crossing.begin_load().ticket
        self._start()

    def copy(self) -> None:
        """Copy what was started."""
        for ticket in self._pending:
            self._cache.complete(ticket)

    def _start(self) -> None:
        self._cache.step()
        self._pending = [transfer.ticket for transfer in self._cache.pending()]
        assert self._pending, "a transfer of the prompt is under way"


WAYS = pytest.mark.parametrize("prepare", [Copying.prepare_backup, Copying.prepare_load], ids=["backup", "load"])

OpenCopying = Callable[[str, Route, int, ModelShape], Copying]


@pytest.fixture
def open_copying(open_crossing: OpenCrossing, require: Callable[..., None]) -> OpenCopying:
    """Opens copying by steps, of pages in a row or scattered, or skips."""

    def open_one(order: str, route: Route, pages: int, model: ModelShape) -> Copying:
        require(route.config(pages, model, ExecutorKind.STEPPED), Capability.STEPPED)
        crossing = open_crossing(route, pages, model)
        if order == SCATTERED:
            crossing.scatter()
        return Copying(crossing)

    return open_one


@COPIES
@WAYS
def test_copying(
    prepare: Callable[[Copying], None],
    order: str,
    route: Route,
    open_copying: OpenCopying,
    benchmark: BenchmarkFixture,
    measure_beside: MeasureBeside,
) -> None:
    copying = open_copying(order, route, COPY_PAGES, WIDE_MODEL if benchmark.enabled else SLIM_MODEL)
    benchmark.group = f"copying of {COPY_PAGES} {order}"
    measure_beside(
        lambda: prepare(copying),
        copying.crossing.copy_plainly,
        copying.copy,
        ROUNDS[COPY_PAGES],
        "part of the speed of a plain copy",
    )


@pytest.mark.parametrize("route", COPIED_AT_ONCE, ids=str)
@WAYS
def test_copying_pages_in_a_row_enters_as_many_functions_however_many(
    prepare: Callable[[Copying], None], route: Route, open_copying: OpenCopying
) -> None:
    entered = dict[int, int]()
    for pages in (FEW_PAGES, MANY_PAGES):
        copying = open_copying(IN_A_ROW, route, pages, LAYERED_MODEL)
        prepare(copying)
        entered[pages] = functions_entered(copying.copy)
    assert entered[MANY_PAGES] == entered[FEW_PAGES], (
        f"pages in a row are one run: functions entered {entered}, by pages"
    )


@COPIES
@WAYS
def test_copying_holds_no_copy_in_between(
    prepare: Callable[[Copying], None], order: str, route: Route, open_copying: OpenCopying
) -> None:
    copying = open_copying(order, route, COPY_PAGES, WIDE_MODEL)
    prepare(copying)
    tracemalloc.start()
    try:
        copying.copy()
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < PAGE_AND_LAYER_BYTES, (
        f"{COPY_PAGES} {order}: expected less memory than one layer of a page has, {PAGE_AND_LAYER_BYTES} bytes, "
        f"got {most_bytes} bytes at most"
    )


@pytest.mark.parametrize("route", ROUTES, ids=str)
def test_a_transfer_moves_each_byte_once(
    route: Route, open_crossing: OpenCrossing, require: Callable[..., None]
) -> None:
    require(route.config(COPY_PAGES, WIDE_MODEL, ExecutorKind.STEPPED), Capability.COUNTERS)
    crossing = open_crossing(route, COPY_PAGES, WIDE_MODEL)
    moved = COPY_PAGES * LAYERS * PAGE_AND_LAYER_BYTES
    crossing.renew()
    found = counts(crossing.cache, crossing.back_up)
    assert found.get("bytes_backed_up") == moved, f"a backup of {COPY_PAGES} pages: expected {moved} bytes, got {found}"
    crossing.demote()
    found = counts(crossing.cache, crossing.load)
    assert found.get("bytes_loaded") == moved, f"a load of {COPY_PAGES} pages: expected {moved} bytes, got {found}"
