"""What a backup and a load-back cost beside one plain copy of the same bytes, over pages and layouts."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from hicache.config import ExecutorKind, Layout, ModelShape
from hicache.testing.adapter import CacheAdapter, Capability

from .crossing import WIDE_MODEL, Crossing, Route
from .scale import SLIM_MODEL
from .turns import Turns

LAYER_FIRST, PAGE_FIRST, DIRECT = Layout
PAGES_ON_BOTH = [Route(PAGE_FIRST, PAGE_FIRST), Route(DIRECT, DIRECT)]
ROUTES = [*PAGES_ON_BOTH, *[Route(LAYER_FIRST, host) for host in Layout]]

ROUNDS = {1: 200, 64: 30, 4_096: 5}
"""By the pages of the prompt."""

SHARE = 0.8
"""Of a plain copy's speed: what a transfer reaches."""

FAST = {
    "pages in a row": [*PAGES_ON_BOTH, Route(LAYER_FIRST, LAYER_FIRST), Route(LAYER_FIRST, DIRECT)],
    "pages scattered": PAGES_ON_BOTH,
}
"""Where it can. Where the pages of a layer lie scattered, each is a run of its own, of 32 KiB; and where slots come
before layers at one end only, each slot is one, of 2 KiB."""

COPY_PAGES, CROSSING_PAGES = 64, 512
"""How many pages the copying alone needs to reach it, and how many all that belongs to a transfer."""

FEWEST_ROUNDS, MOST_ROUNDS = 5, 100

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
def measure(benchmark: BenchmarkFixture, pages: int, crossing: Crossing) -> Callable[..., None]:
    """Goes one way again and again, each time after a plain copy, and notes how much of its speed that is."""
    plain_s: list[float] = []

    def measure_each(prepare: Callable[[], None], go: Callable[[], None]) -> None:
        def set_up() -> None:
            prepare()
            begin = perf_counter()
            crossing.copy_plainly()
            plain_s.append(perf_counter() - begin)

        rounds = ROUNDS[pages] if benchmark.enabled else 1
        benchmark.group = f"transfers of {pages} pages"
        benchmark.pedantic(go, setup=set_up, rounds=rounds)  # type: ignore[no-untyped-call]
        if benchmark.enabled:
            statistics: Any = benchmark.stats
            benchmark.extra_info["share of a plain copy"] = round(min(plain_s) / statistics.stats.min, 2)

    return measure_each


def test_back_up(crossing: Crossing, measure: Callable[..., None]) -> None:
    measure(crossing.renew, crossing.back_up)
    crossing.demote()


def test_load_back(pages: int, crossing: Crossing, measure: Callable[..., None]) -> None:
    crossing.renew()
    crossing.back_up()
    measure(crossing.demote, crossing.load)
    assert crossing.pages_on_device() == pages, f"the prompt has {pages} pages, which are back on the device"


def take_turn_copying(crossing: Crossing, turns: Turns) -> None:
    """A plain copy, the copying of a backup, and the copying of a load."""
    cache = crossing.cache
    crossing.renew()
    turns.take("plain copy", lambda _: crossing.copy_plainly(), [None])
    cache.step()
    turns.take("backup", lambda transfer: cache.complete(transfer.ticket), cache.pending())
    cache.step()
    crossing.demote()
    loading = crossing.begin_load()
    cache.step()
    turns.take("load", lambda transfer: cache.complete(transfer.ticket), cache.pending())
    cache.step()
    cache.claim(loading.ticket)


def take_turn(crossing: Crossing, turns: Turns) -> None:
    """A plain copy, a backup and a load with all that belongs to them."""
    crossing.renew()
    turns.take("plain copy", lambda _: crossing.copy_plainly(), [None])
    turns.take("backup", lambda _: crossing.back_up(), [None])
    crossing.demote()
    turns.take("load", lambda _: crossing.load(), [None])


def shares(crossing: Crossing, take_turn: Callable[[Crossing, Turns], None]) -> dict[str, float]:
    """How much of a plain copy's speed each way reaches, at its best, which is known when it is fast enough."""
    turns, found = Turns(), dict[str, float]()
    for taken in range(MOST_ROUNDS):
        take_turn(crossing, turns)
        found = {way: turns.least_us["plain copy"] / turns.least_us[way] for way in ("backup", "load")}
        if taken >= FEWEST_ROUNDS and min(found.values()) >= SHARE:
            break
    return found


@pytest.mark.parametrize(
    ("order", "route"), [(order, route) for order, routes in FAST.items() for route in routes], ids=str
)
def test_copying_is_nearly_as_fast_as_a_plain_copy(
    order: str, route: Route, open_crossing: OpenCrossing, require: Callable[..., None]
) -> None:
    require(route.config(COPY_PAGES, WIDE_MODEL, ExecutorKind.STEPPED))
    crossing = open_crossing(route, COPY_PAGES, WIDE_MODEL)
    if order == "pages scattered":
        crossing.scatter()
    found = shares(crossing, take_turn_copying)
    assert min(found.values()) >= SHARE, f"{COPY_PAGES} {order}, {route}: shares {found}, expected {SHARE} of each"


@pytest.mark.parametrize("route", FAST["pages in a row"], ids=str)
def test_a_large_transfer_is_nearly_as_fast_as_a_plain_copy(route: Route, open_crossing: OpenCrossing) -> None:
    found = shares(open_crossing(route, CROSSING_PAGES, WIDE_MODEL), take_turn)
    assert min(found.values()) >= SHARE, f"{CROSSING_PAGES} pages, {route}: shares {found}, expected {SHARE} of each"
