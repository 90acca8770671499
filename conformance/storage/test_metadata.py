"""STORE-10: the metadata service of 3FS separates pools, and shows only confirmed pages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hicache.errors import ConfigurationError
from hicache.storage.hf3fs.catalogue import Catalogue
from hicache.storage.hf3fs.service import MetadataService
from hicache.testing.contract import clause

from .metadata import Metadata

LEGACY = {"0": {"num_pages": 4, "free_pages": [0, 1], "key_to_index": [["a", 3], ["b", 2]]}}
"""The file format from before namespaces, with one list of pages for each rank."""


@contextmanager
def served(file: Path) -> Iterator[Metadata]:
    """A running service that stores its catalogue in a file."""
    catalogue = Catalogue(file)
    service = MetadataService(catalogue)
    service.start()
    try:
        yield Metadata(str(service.host), service.port)
    finally:
        service.close()
        catalogue.close()


@clause("STORE-10")
def test_the_pools_of_a_rank_are_separate(metadata: Metadata) -> None:
    kv, mamba = metadata.of(0, "kv"), metadata.of(0, "mamba")
    kv.initialise(3)
    mamba.initialise(2)
    kv.keep("a", "b")
    assert mamba.exist("a", "b") == [False, False], "STORE-10: the pages of another pool are out of sight"
    mamba.keep("a", "c")
    assert (kv.find("a", "b", "c"), mamba.find("a", "b", "c")) == ([2, 1, None], [1, None, 0]), (
        "STORE-10: each pool has its own pages, from its last one on"
    )
    mamba.keep("d")
    assert kv.exist("a", "b") == [True, True], "STORE-10: a pool makes room in itself"
    mamba.ask("clear")
    assert kv.exist("a", "b") == [True, True], "STORE-10: a pool is cleared alone"
    assert mamba.exist("a", "c", "d") == [False] * 3, "STORE-10: and that one is empty"


@clause("STORE-10")
def test_ranks_are_separate(metadata: Metadata) -> None:
    first, second = metadata.of(0, "kv"), metadata.of(1, "kv")
    first.initialise(2)
    assert second.ask("exists", keys=["a"]).status == 404, "STORE-10: another rank has no pages yet"
    second.initialise(2)
    first.keep("a")
    assert second.exist("a") == [False], "STORE-10: the pages of another rank are out of sight"


@clause("STORE-10")
def test_a_request_without_a_namespace_means_kv(metadata: Metadata) -> None:
    unnamed = metadata.of(0, None)
    unnamed.initialise(2)
    unnamed.keep("a")
    assert metadata.of(0, "kv").exist("a") == [True], "STORE-10: without a name it is kv"


@clause("STORE-10")
def test_a_page_is_not_visible_before_it_is_confirmed(metadata: Metadata) -> None:
    metadata.initialise(3)
    assert metadata.reserve("a", "b") == [[False, 2], [False, 1]], "STORE-10: two pages to write"
    assert metadata.exist("a", "b") == [False, False], (
        "STORE-10: the pages are not confirmed: expected none to be visible"
    )
    assert metadata.find("a", "b") == [None, None], "STORE-10: the pages are not confirmed: expected none to be visible"
    assert metadata.confirm(("a", 2), released=(1,)) == 204, "STORE-10: one was written, and the other was not"
    assert metadata.exist("a", "b") == [True, False], "STORE-10: one was written, and the other was not"
    assert metadata.find("a", "b") == [2, None], "STORE-10: one was written, and the other was not"
    assert metadata.reserve("a", "c") == [[True, 2], [False, 1]], "STORE-10: what was not written is free again"


@clause("STORE-10")
def test_no_page_is_reserved_twice(metadata: Metadata) -> None:
    metadata.initialise(4)
    metadata.keep("a")
    pages = [page for _, page in (*metadata.reserve("b", "c"), *metadata.reserve("d", "e"), *metadata.reserve("f"))]
    taken = [page for page in pages if page >= 0]
    assert sorted(taken) == [0, 1, 2, 3], f"STORE-10: four pages for four keys, and none for the others: got {pages}"
    assert metadata.exist("a") == [False], "STORE-10: the page of a was handed out, so that it is a's no more"
    assert metadata.confirm(("a", 3)) == 409, "STORE-10: the page is not reserved for a: expected status 409"
    assert metadata.confirm(released=(3, 3)) == 409, "STORE-10: a page can be given back once"


@clause("STORE-10")
def test_a_batch_does_not_evict_its_own_keys(metadata: Metadata) -> None:
    metadata.initialise(3)
    metadata.keep("a", "b")
    found = metadata.reserve("a", "c", "d", "e")
    assert found[0] == [True, 2], f"STORE-10: a is there, got {found}"
    assert sorted(page for _, page in found) == [-1, 0, 1, 2], f"STORE-10: a page has one key at a time, got {found}"
    assert metadata.find("a") == [2], "STORE-10: expected the page that the batch returned for a"


@clause("STORE-10")
@pytest.mark.usefixtures("metadata")
def test_a_file_without_namespaces_is_read_as_kv(tmp_path: Path) -> None:
    file = tmp_path / "metadata.json"
    file.write_text(json.dumps(LEGACY))
    with served(file) as old:
        assert old.of(0, "kv").find("a", "b", "c") == [3, 2, None], "STORE-10: the pages of rank 0 are those of its kv"
        assert old.of(0, "mamba").ask("exists", keys=["a"]).status == 404, "STORE-10: it knew no other pool"
        assert old.reserve("c", "d") == [[False, 1], [False, 0]], "STORE-10: what was free is free"
    assert list(json.loads(file.read_text())) == ["0:kv"], "STORE-10: it is written with its namespace"


@clause("STORE-10")
@pytest.mark.usefixtures("metadata")
def test_only_confirmed_pages_are_visible_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "metadata.json"
    with served(file) as first:
        first.of(0, "mamba").initialise(2)
        first.initialise(3)
        first.keep("a", "b", "c")
        first.keep("d")
        (page,) = [page for _, page in first.reserve("e")]
    with served(file) as second:
        assert second.exist("a", "b", "c", "d", "e") == [False, False, True, True, False], (
            "STORE-10: a and b made room, and e was not confirmed"
        )
        assert second.of(0, "mamba").exist("a") == [False], "STORE-10: the other pool is there, and empty"
        others = [found for _, found in second.reserve("f", "g", "h")]
        assert page not in others, f"STORE-10: page {page} is being written, and was handed out again: {others}"
        assert second.confirm(("e", page)) == 204, "STORE-10: who was writing it can confirm it"
        assert second.find("e") == [page], "STORE-10: now it is visible"


@clause("STORE-10")
@pytest.mark.usefixtures("metadata")
@pytest.mark.parametrize("content", ["{broken", "[]", '{"0": {}}', '{"x": {}}', ""])
def test_a_file_that_cannot_be_read_is_refused_and_unchanged(tmp_path: Path, content: str) -> None:
    file = tmp_path / "metadata.json"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=re.escape(str(file))):
        Catalogue(file)
    assert file.read_text() == content, f"STORE-10: nothing is known of its pages, so that it stays, got {content}"
