"""Hf3fsStorage: pages that any process may reuse, never the wrong bytes, and a service that is gone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from errno import EIO, ENOSPC
from pathlib import Path
from typing import Any

import pytest

from hicache.errors import ConfigurationError
from hicache.storage.hf3fs import backend as backend_module
from hicache.storage.hf3fs import fields as fields_module
from hicache.storage.hf3fs import metadata as metadata_module
from hicache.storage.hf3fs.access import TOKEN_VARIABLE
from hicache.storage.hf3fs.backend import Hf3fsStorage
from hicache.storage.hf3fs.catalogue import Catalogue
from hicache.storage.hf3fs.metadata import Asked, Namespace, Reserved
from hicache.storage.hf3fs.page_file import HEADER, Page, slot_bytes_of
from hicache.storage.hf3fs.pool_files import PoolFile
from hicache.storage.hf3fs.service import MetadataService
from hicache.storage.hf3fs.usrbio import LIBRARY
from hicache.storage.keys import Shard
from hicache.tests.storage.conftest import (
    PAGE_BYTES,
    SCOPE,
    Open,
    Serve,
    descriptors_of_this_process,
    in_pieces,
    page,
    put,
    take,
)
from hicache.tests.storage.hf3fs.usrbio_stand_in import UsrbioStandIn

OpenHere = Callable[..., Any]

SLOT_BYTES = 12_288
"""Of a page of PAGE_BYTES: whole blocks of 4 KiB."""


@pytest.fixture(params=[False, True], ids=["plain files", "stand-in of usrbio"])
def usrbio(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> bool:
    """Whether pages go through rings: those of a stand-in, which is not the library of 3FS."""
    stand_in = UsrbioStandIn(tmp_path)
    if request.param:
        monkeypatch.setitem(sys.modules, LIBRARY, stand_in)
    return bool(request.param)


@pytest.fixture
def open_here(open_in: Open, service: MetadataService, usrbio: bool) -> OpenHere:
    """Opens one more instance of the test's scope, with room for so many pages."""

    def open_one(capacity_pages: int = 4, **options: object) -> Any:
        own = {"page_bytes": PAGE_BYTES, "metadata_url": service.url, "capacity_pages": capacity_pages}
        told = {**own, **({} if usrbio else {"usrbio": False}), **options}
        return open_in("hf3fs", **told)

    return open_one


def pages_file(root: Path, capacity_pages: int = 4) -> Path:
    return root / SCOPE / f"kv.rank0.{capacity_pages}x{PAGE_BYTES}"


def own(backend: Any) -> PoolFile:
    """The file and the namespace of keys such as `a`."""
    found: PoolFile | None = backend._files.of(Shard("kv", 0))
    assert found is not None, "a pool of any name has a file here"
    return found


def before_reading(monkeypatch: pytest.MonkeyPatch, backend: Any, act: Callable[[], object]) -> None:
    """Once, when a backend knows where an object is and is about to read it, something else happens."""
    file = own(backend).file
    read = file.read

    def read_late(pages: Sequence[Page]) -> object:
        monkeypatch.setattr(file, "read", read)
        act()
        return read(pages)

    monkeypatch.setattr(file, "read", read_late)


def test_pages_lie_one_after_the_other_in_a_file_that_grows(open_here: OpenHere, tmp_path: Path) -> None:
    backend = open_here(100)
    put(backend, a=page(1), b=page(2), c=b"")
    assert [take(backend, "a"), take(backend, "b"), take(backend, "c", 0)] == [page(1), page(2), b""], "as they were"
    size = pages_file(tmp_path, 100).stat().st_size
    assert size == 2 * SLOT_BYTES + HEADER.size, f"three pages of room for a hundred, got {size} bytes"


def test_a_page_that_another_writer_reused_meanwhile_is_a_miss(
    open_here: OpenHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = open_here(1), open_here(1)
    put(mine, a=page(1))
    before_reading(monkeypatch, mine, lambda: put(theirs, b=page(2)))
    assert take(mine, "a") is None, "STORE-3: by then the page holds another object"
    assert mine.stats().misses == {"absent": 1}, f"it is gone, not damaged: {mine.stats()}"
    assert take(mine, "b") == page(2), "STORE-8: what took its place is untouched"


def test_a_page_that_is_being_overwritten_is_a_miss(open_here: OpenHere, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = open_here(1), open_here(1)
    put(mine, a=page(1))

    def overwrite_half() -> None:
        space = own(theirs).space
        ((_, where),) = theirs._metadata.reserve({space: ["b"]})[space].indices
        own(theirs).file.write([Page("b", where, [memoryview(page(2))[: PAGE_BYTES // 2]])])

    before_reading(monkeypatch, mine, overwrite_half)
    assert take(mine, "a") is None, "STORE-3: half of it is another's"
    assert mine.has(["a", "b"]) == [False, False], "STORE-10: b is not confirmed"


def test_bytes_under_another_key_are_damage(open_here: OpenHere) -> None:
    backend = open_here(1)
    put(backend, a=page(1))
    own(backend).file.write([Page("b", 0, [memoryview(page(1))])])
    assert take(backend, "a") is None, "STORE-3: the same bytes were kept under another name"
    assert backend.stats().misses == {"corrupt": 1}, f"counted with its reason: {backend.stats()}"
    assert backend.has(["a"]) == [False], "PF13: an unreadable page goes"
    assert put(backend, a=page(2)) == [True], "PF13: so it can be written anew"
    assert take(backend, "a") == page(2), "PF13: and read"


@pytest.mark.parametrize(("size", "reason"), [(PAGE_BYTES + 1, "short"), (PAGE_BYTES - 1, "long")])
def test_an_object_of_another_size_is_a_miss_and_goes(open_here: OpenHere, size: int, reason: str) -> None:
    backend = open_here()
    put(backend, a=page(1), b=page(2))
    assert take(backend, "a", size) is None, f"STORE-3: the object is not a page of {size} bytes"
    assert backend.stats().misses == {reason: 1}, f"STORE-3: counted with its reason: {backend.stats()}"
    assert backend.has(["a", "b"]) == [False, True], "it can be written anew, and its neighbour stays"


def test_a_page_that_fits_into_no_slot_is_refused(open_here: OpenHere) -> None:
    backend, size = open_here(), SLOT_BYTES - HEADER.size + 1
    assert put(backend, a=page(1, size), b=page(2, size - 1)) == [False, True], "STORE-8: one is a byte too long"
    assert backend.stats().refused == {"full": 1}, f"counted with its reason: {backend.stats()}"
    assert take(backend, "b", size - 1) == page(2, size - 1), "STORE-3: the slot is full to its last byte"


@pytest.mark.parametrize("code", [EIO, ENOSPC])
def test_a_write_that_fails_gives_its_page_back(
    open_here: OpenHere, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    backend = open_here(2)
    write = own(backend).file.write

    def fail(pages: Sequence[Page]) -> list[object]:
        failed = OSError(code, os.strerror(code))
        return [failed if one.key == "b" else write([one])[0] for one in pages]

    with monkeypatch.context() as broken:
        broken.setattr(own(backend).file, "write", fail)
        assert put(backend, a=page(1), b=page(2)) == [True, False], "STORE-4: one of them was written"
    assert backend.stats().refused == {"error": 1}, f"counted with its reason: {backend.stats()}"
    assert put(backend, c=page(3)) == [True], "STORE-4: its page is free again"
    assert backend.has(["a", "b", "c"]) == [True, False, True], "STORE-8: so nothing had to go"


def test_a_writer_that_was_too_slow_confirms_nothing(
    open_in: Open, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Reservations end at once: the next caller gets the page.
    url = serve(Catalogue(None, age_limit_s=0)).url
    told = {"page_bytes": PAGE_BYTES, "metadata_url": url, "capacity_pages": 1}
    mine, theirs = (open_in("hf3fs", **told) for _ in range(2))
    write = own(mine).file.write

    def write_late(pages: Sequence[Page]) -> object:
        assert put(theirs, b=page(2)) == [True], "the page is given to another"
        return write(pages)

    monkeypatch.setattr(own(mine).file, "write", write_late)
    assert put(mine, a=page(1)) == [False], "STORE-10: the page was not this writer's any more"
    assert mine.stats().refused == {"error": 1}, f"counted with its reason: {mine.stats()}"
    assert (mine.has(["a"]), take(mine, "b")) == ([False], None), "STORE-3: what it spoilt is found, and is not data"


def test_without_a_service_every_verb_has_an_answer(open_here: OpenHere, service: MetadataService) -> None:
    backend = open_here()
    put(backend, a=page(1))
    service.close()
    assert (put(backend, b=page(2)), take(backend, "a"), backend.has(["a"])) == ([False], None, [False]), "an answer"
    assert backend.clear() is False, "STORE-7: they are not gone"
    stats = backend.stats()
    assert (stats.refused, stats.misses, stats.objects) == ({"error": 1}, {"error": 1}, 0), f"counted so: {stats}"


def test_a_service_that_comes_later_is_used_then(open_here: OpenHere, service: MetadataService, serve: Serve) -> None:
    service.close()
    backend = open_here()
    assert put(backend, a=page(1)) == [False], "there is no service yet"
    serve(Catalogue(None), port=service.port)
    assert put(backend, a=page(1)) == [True], "now there is"
    assert take(backend, "a") == page(1), "and it knows the page"


def test_a_service_that_comes_later_with_another_capacity_is_not_used(
    open_here: OpenHere, service: MetadataService, serve: Serve
) -> None:
    service.close()
    backend, catalogue = open_here(4), Catalogue(None)
    catalogue.initialise(f"0:{SCOPE}.kv.{PAGE_BYTES}", 5)
    serve(catalogue, port=service.port)
    assert put(backend, a=page(1)) == [False], "pages of five lie elsewhere than those of four"
    assert backend.has(["a"]) == [False], "and an answer it is, though it was configured wrongly"
    assert catalogue.usage(f"0:{SCOPE}.kv.{PAGE_BYTES}").free == 5, "STORE-10: nothing was reserved"


def test_a_service_that_lost_all_costs_the_pages_and_nothing_else(
    open_here: OpenHere, service: MetadataService, serve: Serve
) -> None:
    backend = open_here()
    put(backend, a=page(1))
    service.close()
    serve(Catalogue(None), port=service.port)
    assert take(backend, "a") is None, "its place is unknown"
    assert put(backend, a=page(2)) == [True], "it is written again"
    assert take(backend, "a") == page(2), "and read"


def test_pages_of_another_size_are_kept_apart(open_here: OpenHere) -> None:
    small, large = open_here(1, page_bytes=64), open_here(1)
    put(small, a=page(1, 64))
    assert large.has(["a"]) == [False], "STORE-10: slots of another size are another namespace"
    put(large, a=page(2))
    assert (take(small, "a", 64), take(large, "a")) == (page(1, 64), page(2)), "each in its own file"


def test_a_folder_that_is_a_link_is_refused(open_here: OpenHere, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / SCOPE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="is a link"):
        open_here()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"capacity_pages": 0}, "capacity_pages"),
        ({"page_bytes": 0}, "page_bytes"),
        ({"capacity_pages": {"kv": 0}}, r"capacity_pages\.kv"),
        ({"capacity_pages": {"kv": 10**30}}, "capacity_pages"),
        ({"capacity_pages": {"mamba": 4}}, "names no 'kv'"),
        ({"metadata_url": None}, "metadata_url"),
        ({"metadata_url": "127.0.0.1:1"}, "metadata_url"),
        ({"timeout_s": -1}, "timeout_s"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"root": "/dev/null"}, "root"),
        ({"root": "nul\0"}, "root"),
        ({"root": "surrogate\ud800"}, "root"),
        ({"capacity_pages": 10**30}, "capacity_pages"),
        ({"capacity_pages": True}, "capacity_pages"),
        ({"page_bytes": 10**30}, "page_bytes"),
        ({"metadata_url": "http://a b:1"}, "metadata_url"),
        ({"metadata_url": "http://a\0:1"}, "metadata_url"),
        ({"metadata_url": "http://\ud800:1"}, "metadata_url"),
        ({"timeout_s": float("nan")}, "timeout_s"),
        ({"usrbio": 1}, "usrbio"),
        ({"metadata_file": "a"}, "nothing beside 'metadata_file'"),
        ({"metadata_url": None, "metadata_file": ""}, "metadata_file"),
        ({"metadata_url": None, "metadata_file": "nul\0"}, "metadata file"),
        ({"metadata_url": None, "metadata_file": "/dev/null/a"}, "metadata file"),
    ],
)
def test_an_option_that_cannot_be_is_named(open_here: OpenHere, options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        open_here(**options)


@pytest.mark.parametrize(("most", "slot"), [(1, 4096), (4096 - HEADER.size, 4096), (4096, 8192)])
def test_a_slot_is_whole_blocks(most: int, slot: int) -> None:
    assert slot_bytes_of(most) == slot, f"{most} bytes and a header take {slot}, got {slot_bytes_of(most)}"


TOKEN = "a-token-that-guards-nothing"  # noqa: S105 - of a service of this test


@pytest.mark.parametrize("is_named", [True, False], ids=["option", "variable"])
def test_the_token_of_the_service_is_an_option_or_a_variable(
    open_in: Open, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    with closing(MetadataService(Catalogue(None), token=TOKEN)) as service:
        service.start()
        options = {"page_bytes": PAGE_BYTES, "metadata_url": service.url, "capacity_pages": 4}
        if is_named:
            backend = open_in("hf3fs", **options, token=TOKEN)
        else:
            with pytest.raises(ConfigurationError, match="401"):
                open_in("hf3fs", **options)
            monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
            backend = open_in("hf3fs", **options)
        assert put(backend, a=page(1)) == [True], "SEC-7: who has the token is served"


@pytest.mark.parametrize("token", [TOKEN[:8], f"{TOKEN}\n", 10**20], ids=["short", "a line", "a number"])
def test_what_is_no_token_is_refused_and_not_shown(open_here: OpenHere, token: object) -> None:
    with pytest.raises(ConfigurationError, match="'token'") as told:
        open_here(token=token)
    assert str(token) not in str(told.value), f"SEC-7: no message shows a token, got {told.value}"
    assert "token" in Hf3fsStorage.SECRET_OPTIONS, "SEC-7: who shows options can tell"


def no_space(*_: object, **__: object) -> int:
    raise OSError(ENOSPC, os.strerror(ENOSPC))


def test_a_full_disk_at_the_opening_is_a_mistake_of_the_configuration(
    open_here: OpenHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = descriptors_of_this_process()
    for name in ("mkdir", "open"):
        with monkeypatch.context() as broken:
            broken.setattr(os, name, no_space)
            with pytest.raises(ConfigurationError, match=r"'root'.*No space left"):
                open_here()
    assert descriptors_of_this_process() == before, "no file stays open"


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_file_is_refused(open_here: OpenHere, tmp_path: Path, make: Callable[[Path], None]) -> None:
    pages_file(tmp_path).parent.mkdir()
    make(pages_file(tmp_path))
    before = descriptors_of_this_process()
    with pytest.raises(ConfigurationError, match="'root'"):
        open_here()
    assert descriptors_of_this_process() == before, "no file stays open"


def test_a_backend_that_is_refused_leaves_no_file_open(open_here: OpenHere) -> None:
    open_here(4)
    before = descriptors_of_this_process()
    for _ in range(3):
        with pytest.raises(ConfigurationError, match="exists with 4 pages, got 5"):
            open_here(5)
    assert len(descriptors_of_this_process()) <= len(before) + 3, "the service may still hold its ends"


def test_a_key_twice_is_there_only_if_it_was_written(open_here: OpenHere, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_here()
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwritev", no_space)
        found = backend.set(["a", "a"], [in_pieces(page(1))] * 2, ())
    assert found == [False, False], f"STORE-4: nothing was written, got {found}"
    assert backend.set(["a", "a"], [in_pieces(page(1))] * 2, ()) == [True, True], "STORE-4: now it is"
    assert take(backend, "a") == page(1), "STORE-4: and it can be read"


def test_two_keys_of_one_page_are_not_both_there(open_here: OpenHere, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_here()
    reserve = backend._metadata.reserve

    def lie(asked: Asked) -> dict[Namespace, Reserved]:
        ((space, found),) = reserve(asked).items()
        return {space: found._replace(indices=[found.indices[0]] * len(asked[space]))}

    monkeypatch.setattr(backend._metadata, "reserve", lie)
    found = backend.set(["a", "b"], [in_pieces(page(1)), in_pieces(page(2))], ())
    assert found == [True, False], f"STORE-3: a page has one key, got {found}"
    assert (take(backend, "a"), take(backend, "b")) == (page(1), None), "STORE-3: the first one has it"


def test_a_batch_of_more_keys_than_a_request_may_have_is_divided(
    open_here: OpenHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (backend_module, metadata_module, fields_module):
        monkeypatch.setattr(module, "MAX_KEYS", 3)
    backend = open_here(8)
    keys = [f"key{number}" for number in range(10)]
    contents = [page(number) for number in range(10)]
    found = backend.set(keys, [in_pieces(content) for content in contents], ())
    assert found == [True] * 8 + [False] * 2, f"STORE-8: no page of the batch goes for another, got {found}"
    assert backend.has(keys) == found, "STORE-4: what was answered is there"
    assert [take(backend, key) for key in keys] == [*contents[:8], None, None], "STORE-3: and as it was"
