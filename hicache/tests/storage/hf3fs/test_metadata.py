"""PageMetadata: one suite for its two implementations, over HTTP and in the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import pytest

from hicache.errors import ConfigurationError
from hicache.storage.hf3fs import fields as fields_module
from hicache.storage.hf3fs import metadata as metadata_module
from hicache.storage.hf3fs.catalogue import Catalogue
from hicache.storage.hf3fs.client import MetadataClient
from hicache.storage.hf3fs.local import LocalMetadata
from hicache.storage.hf3fs.metadata import Namespace, PageMetadata, Reserved, Written
from hicache.storage.hf3fs.service import MetadataService
from hicache.tests.storage.conftest import full_disk

KV, STATES, OTHER_RANK = Namespace(0, "kv", 3), Namespace(0, "mamba", 2), Namespace(1, "kv", 3)

OpenMetadata: TypeAlias = Callable[[], PageMetadata]


@pytest.fixture(params=["http", "local"])
def open_metadata(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenMetadata]:
    """Opens one more instance of the same metadata."""
    if request.param == "local":
        yield lambda: LocalMetadata(tmp_path / "metadata.json")
        return
    with closing(Catalogue(tmp_path / "metadata.json")) as catalogue, closing(MetadataService(catalogue)) as service:
        service.start()
        yield lambda: MetadataClient(service.url, 30.0)


@pytest.fixture
def metadata(open_metadata: OpenMetadata) -> Iterator[PageMetadata]:
    """One instance, that has asked nothing yet."""
    with closing(open_metadata()) as opened:
        yield opened


def keep(metadata: PageMetadata, space: Namespace, *keys: str) -> Reserved:
    """Reserve and confirm a page for each key."""
    found = metadata.reserve({space: keys})[space]
    written = [(key, page) for key, (is_there, page) in zip(keys, found.indices, strict=True) if not is_there and page]
    refused = metadata.confirm({space: Written(written, [], found.reservation)})
    assert refused == {space: set()}, f"STORE-14: expected all pages to be confirmed, got {refused}"
    return found


def test_a_namespace_that_is_not_known_is_created(metadata: PageMetadata) -> None:
    found = metadata.reserve({KV: ["a"]})[KV]
    assert (found.indices, found.evicted) == ([(False, 2)], 0), f"STORE-10: expected its last page, got {found}"
    refused = metadata.confirm({KV: Written([("a", 2)], [1], found.reservation)})
    assert refused == {KV: {1}}, f"STORE-14: page 1 was not reserved, got {refused}"
    assert metadata.exist({KV: ["a", "b"]}) == {KV: [True, False]}, "STORE-10: a is confirmed"
    assert metadata.find({KV: ["b", "a"]}) == {KV: [None, 2]}, "STORE-10: a has page 2"
    indices = metadata.reserve({KV: ["a", "b", "c", "d"]})[KV].indices
    assert indices == [(True, 2), (False, 1), (False, 0), (False, None)], f"STORE-8: no room for d, got {indices}"
    assert metadata.confirmed([KV]) == [1], "STORE-10: one key has a page"
    metadata.remove({KV: ["a"]})
    assert metadata.find({KV: ["a"]}) == {KV: [None]}, "STORE-3: a was removed"


def test_namespaces_are_asked_for_together_and_are_apart(metadata: PageMetadata) -> None:
    spaces = (KV, STATES, OTHER_RANK)
    metadata.initialise(spaces)
    found = metadata.reserve({space: ["a", space.name] for space in spaces})
    told = {space: Written([("a", space.num_pages - 1)], [], one.reservation) for space, one in found.items()}
    assert metadata.confirm(told) == {space: set() for space in spaces}, "STORE-14: each by its own reservation"
    assert metadata.find({space: ["b", "a"] for space in spaces}) == {
        KV: [None, 2],
        STATES: [None, 1],
        OTHER_RANK: [None, 2],
    }, "STORE-15: expected a page in each namespace"
    keep(metadata, STATES, "b", "c")
    metadata.clear([STATES])
    assert metadata.confirmed(spaces) == [1, 0, 1], "STORE-15: expected one namespace to be emptied alone"


def test_a_reservation_of_another_call_confirms_nothing(metadata: PageMetadata) -> None:
    first, second = metadata.reserve({KV: ["a"]})[KV], metadata.reserve({KV: ["b"]})[KV]
    refused = metadata.confirm({KV: Written([("b", 1)], [], first.reservation)})
    assert refused == {KV: {1}}, f"STORE-14: expected page 1 to be refused, got {refused}"
    assert metadata.confirm({KV: Written([], [1], second.reservation)}) == {KV: set()}, "STORE-14: its own is released"


def test_the_least_recently_used_key_is_evicted_and_counted(metadata: PageMetadata) -> None:
    keep(metadata, STATES, "a")
    keep(metadata, KV, "a", "b")
    metadata.find({KV: ["a"]})
    found = keep(metadata, KV, "c", "d")
    assert found.evicted == 1, f"STORE-8: three pages for four keys: expected one eviction, got {found}"
    there = metadata.exist({KV: ["a", "b"], STATES: ["a"]})
    assert there == {KV: [True, False], STATES: [True]}, f"STORE-15: b was used least recently, got {there}"


def test_namespaces_that_nobody_created_are_empty(metadata: PageMetadata) -> None:
    metadata.clear([KV, STATES])
    assert metadata.confirmed([KV, STATES]) == [0, 0], "STORE-7: nothing is stored"
    assert metadata.exist({}) == {}, "STORE-15: nothing was asked for"


def test_another_number_of_pages_is_refused(metadata: PageMetadata, open_metadata: OpenMetadata) -> None:
    metadata.initialise([KV])
    with closing(open_metadata()) as other:
        with pytest.raises(ConfigurationError, match="0:kv exists with 3 pages, got 4"):
            other.initialise([STATES, KV._replace(num_pages=4)])
        with pytest.raises(OSError, match="0:kv exists with 3 pages, got 4"):
            other.exist({KV._replace(num_pages=4): ["a"]})


def test_instances_share_what_is_stored(metadata: PageMetadata, open_metadata: OpenMetadata) -> None:
    keep(metadata, KV, "a")
    with closing(open_metadata()) as other:
        assert other.exist({KV: ["a"]}) == {KV: [True]}, "STORE-4: another instance stored it"
        metadata.close()
        keep(other, KV, "b")
    with closing(open_metadata()) as again:
        assert again.exist({KV: ["a", "b"]}) == {KV: [True, True]}, "STORE-4: a close keeps what is stored"


def test_any_number_of_keys_is_divided(metadata: PageMetadata, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (metadata_module, fields_module):
        monkeypatch.setattr(module, "MAX_KEYS", 3)
    keep(metadata, KV, "a", "b")
    keep(metadata, STATES, "a")
    keys = [*"vwxyzab"]
    there = metadata.exist({KV: keys, STATES: keys})
    assert there == {KV: [False] * 5 + [True] * 2, STATES: [False] * 5 + [True, False]}, f"STORE-10: got {there}"
    metadata.remove({KV: keys, STATES: keys})
    assert metadata.confirmed([KV, STATES]) == [0, 0], "STORE-10: expected all keys to be removed"


def test_a_file_that_cannot_be_written_is_an_operating_error(tmp_path: Path) -> None:
    with closing(LocalMetadata(tmp_path / "metadata.json")) as metadata:
        metadata.initialise([KV])
        with full_disk(0), pytest.raises(metadata_module.MetadataError, match=r"503 .*metadata\.json: .*disk"):
            metadata.reserve({KV: ["a"]})
        assert metadata.reserve({KV: ["b"]})[KV].indices[0][0] is False, "STORE-12: it can be written again"


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "metadata.json"
    with closing(Catalogue(file)), pytest.raises(ConfigurationError, match="cannot be used"):
        LocalMetadata(file)
    with closing(LocalMetadata(file)) as metadata:
        assert metadata.exist({KV: ["a"]}) == {KV: [False]}, "STORE-4: the other one has ended"
