"""After `close` every public verb of a cache and of its requests says that it is closed, for any arguments."""

from __future__ import annotations

from inspect import Parameter, signature
from typing import Any

import pytest

from hicache import HostConfig, RequestManager, UnifiedRadixCache, open_cache
from hicache.errors import ClosedError, PinningError
from hicache.pools.host import HostPools
from hicache.tests.cache.test_arguments import opened, scene_of

STILL_ALLOWED = {"UnifiedRadixCache.open", "UnifiedRadixCache.close", "RequestManager.turn"}
"""What makes a cache, what does nothing the second time, and the turn itself."""

VERBS = {
    f"{kind.__name__}.{name}": member
    for kind in (UnifiedRadixCache, RequestManager)
    for name, member in vars(kind).items()
    if name == "__enter__" or not name.startswith("_")
}
"""Every public method and property of both, so that a new one is tested as well."""


def called(thing: object, member: Any) -> object:
    """Call a method with None for each argument that it needs, or read a property."""
    if isinstance(member, property):
        return member.__get__(thing)
    needed = [one for one in signature(member).parameters.values() if one.default is Parameter.empty]
    return member(thing, *(None for _ in needed[1:]))


@pytest.fixture(scope="module")
def closed() -> tuple[UnifiedRadixCache, RequestManager]:
    """A cache with three components on three tiers, and its requests; both were in use."""
    with opened() as cache:
        requests = scene_of(cache).requests
    return cache, requests


@pytest.mark.parametrize("name", sorted(VERBS.keys() - STILL_ALLOWED))
def test_a_verb_of_a_closed_cache_is_refused(closed: tuple[UnifiedRadixCache, RequestManager], name: str) -> None:
    cache, requests = closed
    thing = cache if name.startswith("UnifiedRadixCache") else requests
    with pytest.raises(ClosedError, match=f"^{name.rpartition('.')[2]}: the cache is closed; open another one$"):
        called(thing, VERBS[name])


def test_every_verb_is_found() -> None:
    assert {"UnifiedRadixCache.match", "UnifiedRadixCache.is_idle", "RequestManager.admit"} <= VERBS.keys(), (
        f"found {sorted(VERBS)}"
    )
    assert VERBS.keys() >= STILL_ALLOWED, f"{STILL_ALLOWED - VERBS.keys()} are gone: remove them from the list"


def test_a_closed_cache_takes_no_requests(closed: tuple[UnifiedRadixCache, RequestManager]) -> None:
    with pytest.raises(ClosedError, match=r"^RequestManager: the cache is closed"):
        RequestManager(closed[0])


def test_what_was_counted_can_be_read_after_the_end() -> None:
    with open_cache(capacity_tokens=4) as cache:
        cache.match(cache.key([1, 2]))
    assert cache.counters.traffic.tokens_missed == 2, f"got {cache.counters}"
    cache.close()


def test_a_cache_whose_end_failed_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: HostPools) -> None:
        raise PinningError("cudaHostUnregister failed")

    monkeypatch.setattr(HostPools, "close", fail)
    cache = open_cache(capacity_tokens=4, host=HostConfig({"full": 4}))
    with pytest.raises(PinningError):
        cache.close()
    with pytest.raises(ClosedError):
        cache.allocate(1)
    cache.close()


def test_a_cache_that_was_interrupted_is_closed_as_any_other() -> None:
    with open_cache(capacity_tokens=4) as cache:
        cache.turn.fail(KeyboardInterrupt())
        assert cache.turn.is_interrupted, "the cache takes it for the end of a verb in its middle"
    with pytest.raises(ClosedError):
        cache.reset()
