"""UsrbioFile over a stand-in of the library: rings that are short, fail or do not end lose no page of another."""

from __future__ import annotations

import sys
from collections.abc import Callable
from errno import EIO, ENOSPC
from pathlib import Path
from typing import Any

import pytest

from hicache.errors import ConfigurationError
from hicache.storage.hf3fs.service import MetadataService
from hicache.storage.hf3fs.usrbio import ENTRIES, LIBRARY
from hicache.tests.storage.conftest import PAGE_BYTES, Open, in_pieces, page, put, take
from hicache.tests.storage.hf3fs.usrbio_stand_in import UsrbioStandIn

OpenHere = Callable[..., Any]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> UsrbioStandIn:
    """A stand-in of the library, which is found in its place."""
    found = UsrbioStandIn(tmp_path)
    monkeypatch.setitem(sys.modules, LIBRARY, found)
    return found


@pytest.fixture
def open_here(open_in: Open, service: MetadataService) -> OpenHere:
    """Opens one more instance."""

    def open_one(**options: object) -> Any:
        own = {"page_bytes": PAGE_BYTES, "metadata_url": service.url, "capacity_pages": 64}
        return open_in("hf3fs", **{**own, **options})

    return open_one


def test_rings_are_used_by_default_where_3fs_is(open_here: OpenHere, stand_in: UsrbioStandIn) -> None:
    backend = open_here()
    put(backend, a=page(1))
    assert (take(backend, "a"), stand_in.submissions) == (page(1), [1, 1]), "a write and a read went through a ring"
    backend.close()
    assert not stand_in.registered, f"expected no file to stay registered, got {stand_in.registered}"


def test_plain_files_are_used_where_3fs_is_not(
    open_here: OpenHere, stand_in: UsrbioStandIn, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = str(tmp_path_factory.mktemp("elsewhere"))
    for options in ({"root": elsewhere}, {"usrbio": False}):
        backend = open_here(**options)
        put(backend, **{f"{len(options)}a": page(1)})
    assert stand_in.submissions == [], "no ring was requested or available"
    with pytest.raises(ConfigurationError, match=r"'usrbio'.*is not installed, or .* is not on 3FS"):
        open_here(root=elsewhere, usrbio=True)


def test_a_library_that_is_missing_is_named(open_here: OpenHere) -> None:
    with pytest.raises(ConfigurationError, match=r"'usrbio'.*hf3fs_py_usrbio is not installed"):
        open_here(usrbio=True)


def test_pages_are_submitted_together(open_here: OpenHere, stand_in: UsrbioStandIn) -> None:
    backend = open_here()
    contents = {f"key{number}": page(number) for number in range(2 * ENTRIES + 3)}
    assert all(put(backend, **contents)), "STORE-3: there is room for all"
    assert stand_in.submissions == [ENTRIES, ENTRIES, 3], f"expected full rings, got {stand_in.submissions}"
    targets = [bytearray(PAGE_BYTES) for _ in contents]
    answers = backend.get(list(contents), [in_pieces(target) for target in targets], ())
    assert answers == [True] * len(contents), f"STORE-3: expected all pages, got {answers}"
    found = [bytes(target) for target in targets]
    assert found == list(contents.values()), "STORE-3: results come in another order: expected each page's own bytes"


def test_a_short_move_is_a_miss_and_no_page(open_here: OpenHere, stand_in: UsrbioStandIn) -> None:
    backend = open_here()
    stand_in.most_bytes = PAGE_BYTES // 2
    assert put(backend, a=page(1)) == [False], "STORE-4: a part of it was written"
    stand_in.most_bytes = 1 << 62
    assert put(backend, a=page(1)) == [True], "STORE-4: its page is free again"
    stand_in.most_bytes = PAGE_BYTES // 2
    assert take(backend, "a") is None, "STORE-3: a part of it was read"
    assert backend.stats().misses == {"short": 1}, f"STORE-3: counted with its reason, got {backend.stats()}"


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("code", [EIO, ENOSPC])
def test_a_submission_that_fails_is_an_answer(open_here: OpenHere, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, "the daemon is gone")

    backend = open_here()
    with monkeypatch.context() as broken:
        broken.setattr("hicache.tests.storage.hf3fs.usrbio_stand_in.IoRing.submit", fail)
        assert put(backend, a=page(1)) == [False], "STORE-12: an answer"
    assert put(backend, a=page(1)) == [False], "STORE-4: moves may be under way in its memory: expected no other use"
    assert backend.stats().refused == {"error": 2}, f"STORE-3: counted with its reason, got {backend.stats()}"
    assert open_here().set(["a"], [in_pieces(page(1))], ()) == [True], "STORE-4: another instance has its own ring"
    assert take(backend, "a") == page(1), "STORE-3: the ring for reads is another one"


def test_a_move_that_does_not_end_ends_the_use_of_its_ring(open_here: OpenHere, stand_in: UsrbioStandIn) -> None:
    backend = open_here()
    put(backend, a=page(1), b=page(2))
    stand_in.lost = 1
    targets = [bytearray(PAGE_BYTES) for _ in range(2)]
    answers = backend.get(["a", "b"], [in_pieces(target) for target in targets], ())
    assert answers == [True, False], f"STORE-3: the second one did not end, got {answers}"
    stand_in.lost = 0
    assert take(backend, "a") is None, "STORE-13: the move may still end, in memory that is used for another page"
    assert take(open_here(), "b") == page(2), "STORE-4: the page is there"


def test_a_move_that_ends_late_writes_to_no_memory_of_the_caller(open_here: OpenHere, stand_in: UsrbioStandIn) -> None:
    backend = open_here()
    memory = bytearray(2 * PAGE_BYTES)
    regions = [memoryview(memory)[begin:][:PAGE_BYTES] for begin in (0, PAGE_BYTES)]
    assert backend.register([memoryview(memory)]) is True, "STORE-16: the bytes of a ring are copied within the call"
    put(backend, a=page(1), b=page(2))
    stand_in.lost = 2
    assert backend.get(["a", "b"], [[region] for region in regions], ()) == [False, False], "STORE-3: none ended"
    memory[:] = bytes(len(memory))
    late = sum(ring.end_late() for ring in stand_in.rings)
    assert late == 2, f"both moves end when their call has returned, got {late}"
    assert not any(memory), "STORE-16: the memory is another's by then, and was written"


def test_a_ring_that_cannot_be_made_leaves_nothing_open(
    open_here: OpenHere, stand_in: UsrbioStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(ENOSPC, "no room for a ring")

    monkeypatch.setattr(stand_in, "make_ioring", fail)
    with pytest.raises(ConfigurationError, match="no room for a ring"):
        open_here()
    assert not stand_in.registered, f"expected no file to stay registered, got {stand_in.registered}"
    left = [name for name in stand_in.memories if (Path("/dev/shm") / name).exists()]  # noqa: S108 - where it is
    assert len(stand_in.memories) == 1, f"expected one to be made before the ring, got {stand_in.memories}"
    assert not left, f"expected no shared memory to be left, got {left}"
