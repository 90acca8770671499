"""Wrappers: each adds what it is for to any backend, and changes nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import pytest

from hicache.errors import ConfigurationError, InvariantError
from hicache.storage.base import Pieces, PoolQuery, StorageBackend
from hicache.storage.memory import MemoryStorage
from hicache.storage.registry import open_backend
from hicache.storage.wrappers import BOUNDS_S, AuditedStorage, Fault, FaultyStorage, MeteredStorage, StorageWrapper
from hicache.types import HitPolicy

from .conftest import PAGE_BYTES, SCOPE, Open, in_pieces, keys_of, page, put, take

WRAPPERS = ("audited", "faulty", "metered")
INNER: Mapping[str, Mapping[str, Any]] = {"file": {}, "slotfile": {"capacity_slots": 8}}


def wrapped(name: str, **options: Any) -> Any:
    """A wrapper around a memory backend."""
    return open_backend(name, SCOPE, {"inner": MemoryStorage(SCOPE, {}), **options})


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_is_opened_by_name_and_does_what_its_inner_does(name: str) -> None:
    backend = open_backend(name, SCOPE, {"inner": "memory", "inner_options": {"capacity_bytes": 2 * PAGE_BYTES}})
    backend.register([])
    assert put(backend, a=page(1), b=page(2), c=page(3)) == [True, True, False], "the inner backend has room for two"
    assert backend.has(["a", "b", "c"]) == [True, True, False], "and keeps what it said"
    assert take(backend, "b") == page(2), "and gives what it has"
    query = PoolQuery(["a"], HitPolicy.ALL_PAGES, 0)
    assert backend.exists(["b"], [query], ()) == 1, "a prefix of one page is there in both pools"
    assert backend.stats().written == 2, f"the inner backend's own count: {backend.stats()}"
    assert backend.clear(), "the inner backend can remove all"
    assert backend.has(["a", "b"]) == [False, False], "STORE-7: and did"
    backend.close()


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "'inner': got nothing"),
        ({"inner": "nowhere"}, "'nowhere' is unknown"),
        ({"inner": "memory", "inner_options": 1}, "'inner_options': got <secret> (int)"),
        ({"inner": "memory", "inner_options": {"x": 1}}, "'memory' has no option 'x'"),
        ({"inner": "memory", "x": 1}, "has no option 'x'"),
    ],
)
def test_options_that_cannot_be_are_named(name: str, options: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        open_backend(name, SCOPE, options)
    assert said in str(raised.value), f"CONF-4: expected {said!r} in {raised.value}"


@pytest.mark.parametrize(
    "options", [{"error": 1.5}, {"error": True}, {"torn": float("nan")}, {"seed": -1}, {"delay_s": -1}, {"pause": 1}]
)
def test_a_fault_that_cannot_be_is_named(options: Mapping[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ConfigurationError, match=f"'faulty', option '{name}'"):
        wrapped("faulty", **options)


class Liar(StorageWrapper):
    """Gives zeros, and calls them an object."""

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        for piece in targets[0]:
            piece[:] = bytes(len(piece))
        return [True] * len(keys)


def audited(inner: StorageBackend) -> AuditedStorage:
    return AuditedStorage(SCOPE, {"inner": inner})


def test_the_audit_finds_wrong_bytes() -> None:
    backend = audited(Liar(SCOPE, {"inner": "memory"}))
    put(backend, a=page(1))
    with pytest.raises(InvariantError, match="STORE-3: get answered True for a with checksum"):
        take(backend, "a")


def test_the_audit_judges_what_was_given_since_the_last_clear() -> None:
    inner = MemoryStorage(SCOPE, {})
    put(inner, b=page(2))
    backend = audited(inner)
    put(backend, a=page(1))
    assert (take(backend, "a"), take(backend, "b")) == (page(1), page(2)), "what was there before is not judged"
    assert backend.audited == 1, f"one page was compared, not {backend.audited}"
    backend.clear()
    put(inner, a=page(1))
    take(backend, "a")
    assert backend.audited == 1, "what was given before a clear is of no interest"


def test_the_audit_counts_answers() -> None:
    class Silent(StorageWrapper):
        def has(self, keys: Sequence[str]) -> list[bool]:
            return []

    with pytest.raises(InvariantError, match="has gave 0 answers for 1 keys"):
        audited(Silent(SCOPE, {"inner": "memory"})).has(["a"])


def test_meters_count_calls_pages_bytes_and_seconds() -> None:
    clock = count(0.0, 0.5)
    backend = MeteredStorage(SCOPE, {"inner": "memory", "clock": lambda: next(clock)})
    put(backend, a=page(1), b=page(2))
    take(backend, "a")
    take(backend, "c")
    backend.has(["a", "c"])
    backend.exists(["a", "b", "c"], (), ())
    meters = backend.meters()
    seen = {verb: (meter.calls, meter.pages, meter.pages_done, meter.bytes_done) for verb, meter in meters.items()}
    assert seen == {
        "set": (1, 2, 2, 2 * PAGE_BYTES),
        "get": (2, 2, 1, PAGE_BYTES),
        "has": (1, 2, 1, 0),
        "exists": (1, 3, 2, 0),
    }, "CONF-5: what each verb was asked, and what came of it"
    assert meters["get"].seconds == 1.0, f"two calls of half a second each: {meters['get']}"
    expected = tuple([2 * (bound == 1.0) for bound in (*BOUNDS_S, None)])
    assert meters["get"].calls_within == expected, f"both longer than 0.1 s and not than 1 s: {meters['get']}"


def test_an_error_is_an_answer() -> None:
    backend = wrapped("faulty", error=1)
    assert (put(backend, a=page(1)), backend.has(["a"]), take(backend, "a")) == ([False], [False], None), "all fails"
    assert not backend.clear(), "clear too"
    assert backend.injected[Fault.ERROR] == 4, f"four calls failed: {backend.injected}"
    assert backend.inner.stats().written == 0, "and the inner backend was not asked"


def test_a_short_read_leaves_no_data() -> None:
    backend, target = wrapped("faulty", short=1), bytearray(PAGE_BYTES)
    put(backend, a=page(1))
    assert backend.get(["a"], [in_pieces(target)], ()) == [False], "STORE-3: a read that ended early is a miss"
    assert target != page(1), "and who believes it otherwise has other bytes"


@pytest.mark.parametrize("inner", INNER)
def test_a_torn_write_is_found_by_the_backend(inner: str, open_in: Open) -> None:
    within = open_in(inner, **INNER[inner])
    backend = FaultyStorage(SCOPE, {"inner": within, "torn": 1})
    assert put(backend, a=page(1)) == [False], "STORE-4: it was not written whole"
    assert within.has(["a"]) == [True], "what was written is there"
    assert take(backend, "a") is None, "STORE-4: and is not an object"
    assert within.stats().misses == {"short": 1}, f"STORE-3: counted with its reason: {within.stats()}"
    assert put(within, a=page(1)) == [True], "PF13: it can be written anew"
    assert take(within, "a") == page(1), "PF13: and read"


def test_an_object_can_go_after_it_was_there() -> None:
    backend = wrapped("faulty", gone=1)
    put(backend, a=page(1))
    assert backend.has(["a"]) == [True], "it is there"
    assert take(backend, "a") is None, "FETCH-4: and gone when it is read"
    assert backend.has(["a"]) == [False], "it is not reported any more"
    put(backend, a=page(1))
    assert take(backend, "a") == page(1), "until it is set again"


def test_of_a_part_of_a_batch_the_first_pages_are_done() -> None:
    backend, keys = wrapped("faulty", partial=1, seed=3), keys_of(8)
    answers = backend.set(keys, [in_pieces(page(number)) for number in range(8)], ())
    done = sum(answers)
    assert answers == [True] * done + [False] * (8 - done), f"STORE-3: the first of a batch, got {answers}"
    assert 0 < done < 8, f"this seed does a part of it, not {done}"
    assert backend.has(keys) == answers, "STORE-3: an answer is what is there"


def test_a_slow_call_takes_its_pause() -> None:
    pauses: list[float] = []
    backend = wrapped("faulty", slow=1, delay_s=0.25, pause=pauses.append)
    put(backend, a=page(1))
    take(backend, "a")
    assert pauses == [0.25, 0.25], f"one pause for each call, got {pauses}"


def faults_of(seed: int) -> list[list[bool]]:
    backend = wrapped("faulty", seed=seed, error=0.2, short=0.2, torn=0.2, gone=0.2, partial=0.2)
    keys, targets = keys_of(4), [in_pieces(bytearray(PAGE_BYTES)) for _ in range(4)]
    sources = [in_pieces(page(number)) for number in range(4)]
    return [
        answers
        for _ in range(20)
        for answers in (backend.set(keys, sources, ()), backend.has(keys), backend.get(keys, targets, ()))
    ]


def test_a_seed_decides_the_faults() -> None:
    assert faults_of(1) == faults_of(1), "the same seed, the same answers"
    assert faults_of(1) != faults_of(2), "another seed, others"


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("seed", range(5))
def test_no_fault_gives_wrong_bytes(inner: str, seed: int, open_in: Open) -> None:
    rates = dict.fromkeys([fault.value for fault in Fault if fault is not Fault.SLOW], 0.2)
    faulty = {"inner": open_in(inner, **INNER[inner]), "seed": seed, **rates}
    backend = audited(FaultyStorage(SCOPE, faulty))
    keys, contents = keys_of(12), [page(number) for number in range(12)]
    for _ in range(20):
        backend.set(keys, [in_pieces(content) for content in contents], ())
        targets = [bytearray(PAGE_BYTES) for _ in keys]
        answers = backend.get(keys, [in_pieces(target) for target in targets], ())
        for answer, target, content in zip(answers, targets, contents, strict=True):
            assert not answer or target == content, f"STORE-3: seed {seed}, a page came back with other bytes"
    assert backend.audited, "some pages did come back"
