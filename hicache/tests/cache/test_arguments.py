"""Every verb of a cache and of its requests refuses a wrong argument with an error of its own, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pytest
import torch

from hicache import ExecutorKind, HostConfig, Namespace, RequestManager, StorageConfig, UnifiedRadixCache, open_cache
from hicache.errors import HiCacheError
from hicache.keys import RadixKey
from hicache.testing.caches.reference import ReferenceView
from hicache.testing.hybrid_model import TINY_MODEL
from hicache.types import SHARED, Slots, Tokens

PAGE = 4
SIZES = {"full": 32 * PAGE, "swa": 32 * PAGE, "mamba": 8}
PROMPT: Tokens = np.arange(4 * PAGE, dtype=np.int32)
OTHER: Tokens = np.arange(100, 100 + 4 * PAGE, dtype=np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """A cache with every component and tier, a prompt on the host alone, one on the device, and what a caller has.

    `own`, `state`: allocated and not inserted. `node`: of the prompt on the device. `ticket`, `fetched`: of a load-back
    and of a prefetch. `request`: running.
    """

    cache: UnifiedRadixCache
    requests: RequestManager
    own: Slots
    state: int
    node: Any
    receipt: Any
    ticket: Any
    fetched: Any
    request: Any

    @property
    def key(self) -> RadixKey:
        """Of as many tokens as there are own slots."""
        return self.cache.key(np.arange(500, 500 + len(self.own), dtype=np.int32))

    def values(self) -> str:
        """All that a snapshot shows, and what was counted."""
        return repr((asdict(ReferenceView(self.cache).snapshot()), self.cache.sizes(), self.cache.host_sizes()))


def put(cache: UnifiedRadixCache, tokens: Tokens) -> Any:
    """Insert a prompt with its state; its node."""
    slots, state = cache.allocate(len(tokens)), cache.allocate_state()
    assert slots is not None, "there is room for a prompt"
    return cache.insert(cache.key(tokens), slots, state).node


def opened() -> UnifiedRadixCache:
    """Three components on three tiers."""
    return open_cache(
        components=("full", "swa", "mamba"),
        page_size=PAGE,
        capacity_tokens=SIZES,
        sliding_window_size=PAGE,
        mamba_chunk_size=PAGE,
        model=TINY_MODEL,
        host=HostConfig(SIZES, executor=ExecutorKind.STEPPED, load_back_threshold_tokens=0),
        storage=StorageConfig("memory", model="tiny", prefetch_threshold=0, executor=ExecutorKind.STEPPED),
    )


def scene_of(cache: UnifiedRadixCache) -> Scene:
    """The objects of a cache that a caller holds."""
    put(cache, PROMPT)
    cache.drain()
    for component in cache.config.components:
        cache.evict(component, SIZES[component])
    loading = cache.load_back(cache.match(cache.key(PROMPT)).best_match)
    fetched = cache.prefetch(cache.key(np.arange(900, 900 + 2 * PAGE, dtype=np.int32)))
    requests = RequestManager(cache)
    request = requests.admit(np.arange(700, 700 + 3 * PAGE, dtype=np.int32))
    node, own, state = put(cache, OTHER), cache.allocate(2 * PAGE), cache.allocate_state()
    assert loading is not None, "the prompt is on the host alone"
    assert own is not None, "there is room for two pages"
    assert state is not None, "there is room for a state"
    assert request is not None, "there is room for a request"
    return Scene(cache, requests, own, state, node, cache.lock(node), loading.ticket, fetched, request)


@pytest.fixture(scope="module")
def scenes() -> Iterator[tuple[Scene, Scene]]:
    """Two caches of one configuration: that of the tests, and another one."""
    with opened() as first, opened() as second:
        yield scene_of(first), scene_of(second)


Call = Callable[[Scene, Any], object]

COUNTS: tuple[Any, ...] = (4.0, float("nan"), float("inf"), True, -4, "4", None, np.float32(4), [4], 4 + 0j)
HANDLES: tuple[Any, ...] = (None, 0, "root", object(), [], PROMPT)
TEXTS: tuple[Any, ...] = (None, 0, "kv", [], b"full", object())
ARRAYS: tuple[Any, ...] = (
    *(None, 0, "slots", [1, 2], PROMPT.astype(np.float64), PROMPT.astype(np.uint8), PROMPT.astype(np.bool_)),
    *(PROMPT.reshape(2, -1), np.array(3), np.array(["a"])),
)
NO_TOKENS: tuple[Any, ...] = (
    *(None, 0, "tokens", [1, -2], [1, 2.0], [True], [2**31], PROMPT.astype(np.float64), PROMPT.astype(np.bool_)),
    *(PROMPT.reshape(2, -1), np.array(3), np.array(["a"]), -PROMPT, PROMPT + np.int64(2**32), torch.ones(2)),
)
KEYS: tuple[Any, ...] = (None, "key", PROMPT, PROMPT.tobytes(), object())
NAMESPACES: tuple[Any, ...] = ("tenant", "", 0, False, ("a", "b", "c"), {})

BY_VALUE: Mapping[str, tuple[Call, tuple[Any, ...]]] = {
    "key": (lambda scene, value: scene.cache.key(value), NO_TOKENS),
    "key namespace": (lambda scene, value: scene.cache.key(PROMPT, value), NAMESPACES),
    "length": (lambda scene, value: scene.cache.length(value), KEYS),
    "page_hashes": (lambda scene, value: scene.cache.page_hashes(value), KEYS),
    "match": (lambda scene, value: scene.cache.match(value), KEYS),
    "match chunked": (lambda scene, value: scene.cache.match(scene.key, value), (0, 1, None, "no")),
    "insert key": (lambda scene, value: scene.cache.insert(value, scene.own), KEYS),
    "insert slots": (lambda scene, value: scene.cache.insert(scene.key, value), (*ARRAYS, PROMPT)),
    "insert state": (lambda scene, value: scene.cache.insert(scene.key, scene.own, value), (*COUNTS[:6], 0, 10**30)),
    "insert priority": (
        lambda scene, value: scene.cache.insert(scene.key, scene.own, scene.state, value),
        (1.0, True, None, "1"),
    ),
    "lock": (lambda scene, value: scene.cache.lock(value), HANDLES),
    "unlock": (lambda scene, value: scene.cache.unlock(value), HANDLES),
    "evict component": (lambda scene, value: scene.cache.evict(value, PAGE), TEXTS),
    "evict": (lambda scene, value: scene.cache.evict("full", value), COUNTS),
    "allocate": (lambda scene, value: scene.cache.allocate(value), (*COUNTS, 1, PAGE + 1)),
    "free": (lambda scene, value: scene.cache.free(value), (*ARRAYS, PROMPT)),
    "release_window": (lambda scene, value: scene.cache.release_window(value), (*ARRAYS, PROMPT)),
    "free_state": (lambda scene, value: scene.cache.free_state(value), (*COUNTS, 0, 10**30)),
    "fork_state": (lambda scene, value: scene.cache.fork_state(value), HANDLES),
    "state_of": (lambda scene, value: scene.cache.state_of(value), HANDLES),
    "copy_state source": (lambda scene, value: scene.cache.copy_state(value, scene.state), (*COUNTS, 0, 10**30)),
    "copy_state target": (lambda scene, value: scene.cache.copy_state(scene.state, value), (*COUNTS, 0, 10**30)),
    "copy_loaded_state": (lambda scene, value: scene.cache.copy_loaded_state(value, 0, scene.state), HANDLES),
    "copy_loaded_state layer": (
        lambda scene, value: scene.cache.copy_loaded_state(scene.ticket, value, scene.state),
        (*COUNTS, 99),
    ),
    "copy_loaded_state target": (
        lambda scene, value: scene.cache.copy_loaded_state(scene.ticket, 0, value),
        (*COUNTS, 0, 10**30),
    ),
    "slots_to": (lambda scene, value: scene.cache.slots_to(value), HANDLES),
    "load_back": (lambda scene, value: scene.cache.load_back(value), HANDLES),
    "load_back quota": (
        lambda scene, value: scene.cache.load_back(scene.node, value),
        tuple(count for count in COUNTS if count is not None),
    ),
    "load_phase": (lambda scene, value: scene.cache.load_phase(value), HANDLES),
    "layers_done": (lambda scene, value: scene.cache.layers_done(value), HANDLES),
    "wait_layer": (lambda scene, value: scene.cache.wait_layer(value, 0), HANDLES),
    "wait_layer layer": (lambda scene, value: scene.cache.wait_layer(scene.ticket, value), (*COUNTS, 99)),
    "claim": (lambda scene, value: scene.cache.claim(value), HANDLES),
    "abandon": (lambda scene, value: scene.cache.abandon(value), HANDLES),
    "lock_host": (lambda scene, value: scene.cache.lock_host(value), HANDLES),
    "unlock_host": (lambda scene, value: scene.cache.unlock_host(value), HANDLES),
    "evict_host component": (lambda scene, value: scene.cache.evict_host(value, PAGE), TEXTS),
    "evict_host": (lambda scene, value: scene.cache.evict_host("full", value), COUNTS),
    "prefetch": (lambda scene, value: scene.cache.prefetch(value), KEYS),
    "check_prefetch": (lambda scene, value: scene.cache.check_prefetch(value), HANDLES),
    "abort_prefetch": (lambda scene, value: scene.cache.abort_prefetch(value), HANDLES),
    "requests prefetch": (lambda scene, value: scene.requests.prefetch(value), NO_TOKENS),
    "has_prefetched": (lambda scene, value: scene.requests.has_prefetched(value), HANDLES),
    "admit": (lambda scene, value: scene.requests.admit(value), NO_TOKENS),
    "admit namespace": (lambda scene, value: scene.requests.admit(PROMPT, value), NAMESPACES),
    "resume": (lambda scene, value: scene.requests.resume(value), HANDLES),
    "wait_layer of a request": (lambda scene, value: scene.requests.wait_layer(value, 0), HANDLES),
    "wait_layer of a request, layer": (lambda scene, value: scene.requests.wait_layer(scene.request, value), COUNTS),
    "extend": (lambda scene, value: scene.requests.extend(value, PROMPT), HANDLES),
    "extend tokens": (lambda scene, value: scene.requests.extend(scene.request, value), NO_TOKENS),
    "checkpoint": (lambda scene, value: scene.requests.checkpoint(value, PAGE), HANDLES),
    "checkpoint count": (lambda scene, value: scene.requests.checkpoint(scene.request, value), (*COUNTS, 10**30)),
    "finish": (lambda scene, value: scene.requests.finish(value), HANDLES),
    "abort": (lambda scene, value: scene.requests.abort(value), HANDLES),
}
"""By verb and argument: the call, and values that are wrong for every cache."""


@pytest.mark.parametrize(("call", "values"), BY_VALUE.values(), ids=BY_VALUE)
def test_a_wrong_value_is_refused(scenes: tuple[Scene, Scene], call: Call, values: tuple[Any, ...]) -> None:
    scene, _ = scenes
    for value in values:
        before, table = scene.values(), scene.request.table.tolist()
        with pytest.raises(HiCacheError):
            call(scene, value)
        assert scene.values() == before, f"{value!r} was refused, and changed the cache"
        assert scene.request.table.tolist() == table, f"{value!r} was refused, and changed the running request"


OF_ANOTHER: Mapping[str, Callable[[Scene, Scene], object]] = {
    "lock": lambda scene, other: scene.cache.lock(other.node),
    "lock the root": lambda scene, other: scene.cache.lock(other.cache.tree.radix.root),
    "unlock": lambda scene, other: scene.cache.unlock(other.receipt),
    "unlock_host a device lock": lambda scene, _: scene.cache.unlock_host(scene.receipt),
    "fork_state": lambda scene, other: scene.cache.fork_state(other.node),
    "state_of": lambda scene, other: scene.cache.state_of(other.node),
    "slots_to": lambda scene, other: scene.cache.slots_to(other.node),
    "load_back": lambda scene, other: scene.cache.load_back(other.node),
    "lock_host": lambda scene, other: scene.cache.lock_host(other.node),
    "load_phase": lambda scene, other: scene.cache.load_phase(other.ticket),
    "layers_done": lambda scene, other: scene.cache.layers_done(other.ticket),
    "wait_layer": lambda scene, other: scene.cache.wait_layer(other.ticket, 0),
    "copy_loaded_state": lambda scene, other: scene.cache.copy_loaded_state(other.ticket, 0, scene.state),
    "copy_loaded_state too early": lambda scene, _: scene.cache.copy_loaded_state(scene.ticket, 0, scene.state),
    "claim": lambda scene, other: scene.cache.claim(other.ticket),
    "claim too early": lambda scene, _: scene.cache.claim(scene.ticket),
    "abandon": lambda scene, other: scene.cache.abandon(other.ticket),
    "check_prefetch": lambda scene, other: scene.cache.check_prefetch(other.fetched),
    "abort_prefetch": lambda scene, other: scene.cache.abort_prefetch(other.fetched),
    "resume": lambda scene, other: scene.requests.resume(other.request),
    "wait_layer of a request": lambda scene, other: scene.requests.wait_layer(other.request, 0),
    "extend": lambda scene, other: scene.requests.extend(other.request, PROMPT),
    "checkpoint": lambda scene, other: scene.requests.checkpoint(other.request, PAGE),
    "finish": lambda scene, other: scene.requests.finish(other.request),
    "abort": lambda scene, other: scene.requests.abort(other.request),
    "a key of other pages": lambda scene, _: scene.cache.match(RadixKey(bytes(4 * PAGE - 4), SHARED)),
}


@pytest.mark.parametrize("call", OF_ANOTHER.values(), ids=OF_ANOTHER)
def test_what_another_cache_gave_out_is_refused(
    scenes: tuple[Scene, Scene], call: Callable[[Scene, Scene], object]
) -> None:
    before = [scene.values() for scene in scenes]
    with pytest.raises(HiCacheError):
        call(*scenes)
    assert [scene.values() for scene in scenes] == before, "it was refused, and changed a cache"


def test_a_request_that_has_ended_is_refused() -> None:
    with opened() as cache:
        requests = RequestManager(cache)
        for end in (requests.abort, requests.finish):
            request = requests.admit(PROMPT)
            assert request is not None, "there is room for a request"
            end(request)
            for verb in (requests.abort, requests.finish, requests.resume):
                with pytest.raises(HiCacheError, match="has ended"):
                    verb(request)


@pytest.mark.parametrize("field", [5, b"a", ("a",), True, "\ud800"], ids=repr)
def test_a_namespace_is_of_texts(field: Any) -> None:
    for name in ("lora", "salt", "tenant"):
        with pytest.raises(HiCacheError, match="the fields of a namespace"):
            Namespace(**{name: field})


def test_integers_of_numpy_are_counts() -> None:
    with opened() as cache:
        slots, state = cache.allocate(np.int32(2 * PAGE)), cache.allocate_state()  # type: ignore[arg-type]
        assert slots is not None, "there is room for two pages"
        cache.insert(cache.key(PROMPT[: 2 * PAGE]), slots, np.int64(state or 0), np.int8(1))  # type: ignore[arg-type]
        cache.drain()
        freed = cache.evict("full", np.uint16(PAGE)).freed["full"]  # type: ignore[arg-type]
        assert freed >= PAGE, f"expected a page to be evicted, got {freed} tokens"


FORMS: Mapping[str, Callable[[Tokens], Any]] = {
    "a list": lambda tokens: tokens.tolist(),
    "int64": lambda tokens: tokens.astype(np.int64),
    "a tensor": lambda tokens: torch.from_numpy(tokens.copy()),
    "a tensor of int64": lambda tokens: torch.tensor(tokens.tolist()),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_request_is_of_token_ids_in_any_form(form: Callable[[Tokens], Any]) -> None:
    with opened() as cache:
        requests = RequestManager(cache)
        fetched, request = requests.prefetch(form(PROMPT)), requests.admit(form(PROMPT))
        assert fetched is not None, "storage is asked for each prompt"
        assert fetched.key == cache.key(PROMPT[:-1]), f"expected the whole pages of {PROMPT}, got {fetched.key}"
        assert request is not None, "there is room for a request"
        assert requests.extend(request, form(OTHER)), "there is room for more"
        found, expected = request.tokens, np.concatenate((PROMPT, OTHER))
        assert found.dtype == np.int32, f"expected int32, got {found.dtype}"
        assert found.tolist() == expected.tolist(), f"expected {expected}, got {found}"


def test_a_request_keeps_its_tokens_when_the_caller_writes_others_to_their_memory() -> None:
    with opened() as cache:
        requests, memory = RequestManager(cache), PROMPT.copy()
        request = requests.admit(memory)
        assert request is not None, "there is room for a request"
        memory[:] = OTHER
        requests.finish(request)
        assert len(cache.match(cache.key(PROMPT)).device_indices) == len(PROMPT), "its prompt is cached"
        assert not len(cache.match(cache.key(OTHER)).device_indices), "and not what was written afterwards"
