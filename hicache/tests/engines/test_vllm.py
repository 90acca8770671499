"""The adapters of vLLM's caches and storage, with and without vLLM, and the scripts that show defects of vLLM alone."""

from __future__ import annotations

import hashlib
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from hicache.config import ExecutorKind
from hicache.engines.interface import release_of
from hicache.engines.vllm import adapter as vllm
from hicache.engines.vllm import connector, offload, simple_offload, tiering
from hicache.engines.vllm.imports import prepare_vllm
from hicache.engines.vllm.storage import Rank, VllmFileSystemTier, _block, _rank
from hicache.errors import ConfigurationError
from hicache.testing.adapter import Capability
from hicache.testing.load import load_adapter
from hicache.testing.storage.page_bytes import Sheet
from hicache.types import SHARED, Key, Pool, TransferKind

ADAPTER = "hicache.engines.vllm.adapter:Vllm0330"
OFFLOAD = "hicache.engines.vllm.offload:VllmOffload0330"
ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "docs" / "reproductions"
RANK = "tp0of1.cp0of1.pp0of1"
CHUNK = 4096

NEEDS_VLLM = pytest.mark.skipif(
    release_of("vllm") != vllm.Vllm0330.version,
    reason=f"vllm {vllm.Vllm0330.version} is not installed: `tox -e vllm-{vllm.Vllm0330.version}` installs it",
)


def test_an_adapter_can_be_named_where_vllm_is_not_installed() -> None:
    adapter = load_adapter(ADAPTER)
    assert Capability.REQUESTS in adapter.capabilities, f"expected REQUESTS, got {adapter.capabilities}"
    assert adapter.profile == "blocks", f"expected the profile blocks, got {adapter.profile}"


def test_an_adapter_refuses_another_release() -> None:
    if release_of("vllm") == vllm.Vllm0330.version:
        pytest.skip(f"vllm {vllm.Vllm0330.version}, which the adapter drives, is the one that is installed")
    with pytest.raises(ImportError, match="vllm"):
        load_adapter(ADAPTER)(vllm.CONFIGURATIONS[0])
    assert "vllm" not in sys.modules, "expected no package of vLLM after the refusal"


def test_the_configurations_have_names_of_their_own() -> None:
    names = [config.name for config in vllm.CONFIGURATIONS]
    assert len(set(names)) == len(names), f"expected different names, got {names}"


@NEEDS_VLLM
def test_the_manager_is_vllms_own_and_no_stub() -> None:
    prepare_vllm()
    adapter = vllm.Vllm0330(vllm.CONFIGURATIONS[0])
    for module in ("v1.core.kv_cache_manager", "v1.core.block_pool", "v1.request", "utils.hashing"):
        file = sys.modules[f"vllm.{module}"].__file__
        assert file is not None, f"vllm.{module} is a stub"
        assert Path(file).is_file(), f"expected vllm.{module} to be read from a file, got {file}"
    assert adapter.sizes()["full"].free == vllm.CONFIGURATIONS[0].capacity_tokens["full"], "expected an empty cache"


# The cache in host memory.


def test_the_adapter_of_offloading_can_be_named_where_vllm_is_not_installed() -> None:
    adapter = load_adapter(OFFLOAD)
    assert Capability.HOST in adapter.capabilities, f"expected HOST, got {adapter.capabilities}"
    assert adapter.profile == "offload", f"expected the profile offload, got {adapter.profile}"


def test_the_adapter_of_offloading_refuses_another_release() -> None:
    if release_of("vllm") == vllm.Vllm0330.version:
        pytest.skip(f"vllm {vllm.Vllm0330.version}, which the adapter drives, is the one that is installed")
    with pytest.raises(ImportError, match="vllm"):
        load_adapter(OFFLOAD)(offload.CONFIGURATIONS[0])


def chunk_cache(adapter: type[offload.VllmOffload0330], *, is_stepped: bool = False) -> offload.VllmOffload0330:
    """A cache with room for eight chunks of four tokens, its transfers stepped or complete at once."""
    executor = ExecutorKind.STEPPED if is_stepped else ExecutorKind.THREADED
    listed = [one for one in offload.CONFIGURATIONS if one.page_size == 4 and one.host is not None]
    return adapter(next(one for one in listed if one.host is not None and one.host.executor is executor))


def prompt(chunk: int) -> Key:
    """A prompt of one chunk."""
    return Key(np.full(4, chunk, dtype=np.int32), SHARED)


def serve(cache: offload.VllmOffload0330, chunk: int) -> None:
    """Serve a request for a prompt of one chunk."""
    admission = cache.admit(prompt(chunk))
    assert admission is not None, "the engine has room for one request"
    cache.finish(admission.request)


@NEEDS_VLLM
def test_the_cache_in_host_memory_is_vllms_own_and_no_stub() -> None:
    cache = chunk_cache(offload.VllmOffload0330)
    module = sys.modules[type(cache.cache.manager).__module__]
    assert module.__file__ is not None, f"{module.__name__} is a stub"
    assert module.__name__ == "vllm.v1.kv_offload.cpu.manager", f"got {module.__name__}"
    assert Path(module.__file__).is_file(), f"expected a file, got {module.__file__}"


@NEEDS_VLLM
@pytest.mark.parametrize(
    ("adapter", "kept"), [(offload.VllmOffload0330, 0), (offload.VllmOffloadArc0330, 4)], ids=["lru", "arc"]
)
def test_each_policy_has_its_own_order(adapter: type[offload.VllmOffload0330], kept: int) -> None:
    cache = chunk_cache(adapter)
    for chunk in (0, 0, *range(1, 9)):
        serve(cache, chunk)
    found = cache.lookup(prompt(0))
    assert found == kept, f"used twice, before eight others: expected {kept} tokens, got {found}"


@NEEDS_VLLM
@pytest.mark.parametrize("adapter", [offload.VllmOffload0330, offload.VllmOffloadArc0330], ids=["lru", "arc"])
def test_a_chunk_stays_while_it_is_loaded(adapter: type[offload.VllmOffload0330]) -> None:
    cache = chunk_cache(adapter, is_stepped=True)
    serve(cache, 0)
    cache.drain()
    loading = cache.admit(prompt(0))
    assert loading is not None, "the engine has room for two requests"
    for chunk in range(1, 9):
        serve(cache, chunk)
        for transfer in cache.pending():
            if transfer.kind is TransferKind.BACKUP:
                cache.complete(transfer.ticket)
        cache.step()
    found = [cache.lookup(prompt(chunk)) for chunk in (0, 1)]
    assert found == [4, 0], f"the chunk that is loaded stays, and the one after it goes, got {found}"


@NEEDS_VLLM
def test_a_store_that_failed_is_not_found() -> None:
    cache = chunk_cache(offload.VllmOffload0330, is_stepped=True)
    serve(cache, 0)
    (store,) = cache.pending()
    cache.fail(store.ticket, 0)
    cache.step()
    assert cache.lookup(prompt(0)) == 0, "nothing arrived"
    free = cache.host_sizes()["full"].free
    assert free == 32, f"expected all 32 slots to be free again, got {free}"


# The connectors of host memory.


def connected(adapter: type[connector.VllmConnector0330]) -> connector.VllmConnector0330:
    """A connector with stepped transfers, twelve blocks of four tokens, and eight such chunks on the host."""
    listed = [one for one in adapter.configurations() or () if one.page_size == 4 and one.host is not None]
    return adapter(next(one for one in listed if one.host is not None and one.host.executor is ExecutorKind.STEPPED))


CONNECTORS = [connector.VllmConnector0330, simple_offload.VllmSimpleOffload0330, tiering.VllmTiering0330]


@pytest.mark.parametrize("adapter", CONNECTORS)
def test_a_connector_can_be_named_where_vllm_is_not_installed(adapter: type[connector.VllmConnector0330]) -> None:
    assert load_adapter(f"{adapter.__module__}:{adapter.__name__}") is adapter, f"expected {adapter}"
    if release_of("vllm") != adapter.version:
        with pytest.raises(ImportError, match="vllm"):
            connected(adapter)


@NEEDS_VLLM
def test_the_schedulers_of_the_connectors_are_vllms_own_and_no_stubs() -> None:
    for adapter in CONNECTORS:
        cache = connected(adapter).cache
        for part in (cache.connector, cache.blocks):
            file = sys.modules[type(part).__module__].__file__
            assert file is not None, f"{type(part)} is a stub"
            assert Path(file).is_file(), f"expected {type(part)} to be read from a file, got {file}"


def computed(cache: connector.VllmConnector0330, chunk: int) -> None:
    """A request for a prompt of one chunk is computed and ends; its store is pending."""
    admission = cache.admit(prompt(chunk))
    assert admission is not None, "the engine has room for one request"
    cache.write(Pool.KV, admission.table, 0, np.full((4, 8), chunk, dtype=np.uint8))
    cache.finish(admission.request)


@NEEDS_VLLM
def test_who_takes_a_block_that_is_being_stored_finds_the_store_complete() -> None:
    cache = connected(connector.VllmConnector0330)
    computed(cache, 1)
    assert [one.units_done for one in cache.pending()] == [0], "the store has not begun"
    every = cache.admit(Key(np.arange(48, dtype=np.int32), SHARED))
    assert every is not None, "a block that is being stored is free"
    assert not cache.pending(), f"expected the store to be complete before its block is used, got {cache.pending()}"
    [chunk] = cache.cache.chunks()
    assert chunk.slots is not None, "the chunk is on the host"
    assert (cache.read_host(Pool.KV, chunk.slots, 0) == 1).all(), "the copy has the bytes of the first request"


@NEEDS_VLLM
def test_a_block_that_is_being_stored_stays_with_the_simple_scheduler() -> None:
    cache = connected(simple_offload.VllmSimpleOffload0330)
    computed(cache, 1)
    assert cache.admit(Key(np.arange(48, dtype=np.int32), SHARED)) is None, "eleven blocks are free"
    cache.drain()
    assert cache.lookup(prompt(1)) == 4, "the prompt is on the host"


@NEEDS_VLLM
@pytest.mark.parametrize("adapter", CONNECTORS)
def test_a_request_that_ends_while_it_loads_keeps_its_blocks(adapter: type[connector.VllmConnector0330]) -> None:
    cache = connected(adapter)
    computed(cache, 1)
    cache.drain()
    loading = cache.admit(Key(np.concatenate((prompt(1).tokens, [2])), SHARED))
    assert loading is not None, "the engine has room"
    assert loading.loading, "the first chunk is on the host"
    cache.abort(loading.request)
    assert cache.sizes()["full"].free == 40, f"two of twelve blocks are kept, got {cache.sizes()}"
    cache.drain()
    assert cache.sizes()["full"].free == 48, f"all blocks are free, got {cache.sizes()}"


@NEEDS_VLLM
def test_what_left_the_host_comes_back_from_the_tier_below() -> None:
    cache = connected(tiering.VllmTiering0330)
    for chunk in range(1, 13):
        computed(cache, chunk)
        cache.drain()
    views = cache.cache.chunks()
    below = [one for one in views if one.slots is None]
    assert (len(views), len(below)) == (12, 4), f"eight of twelve chunks are on the host, got {views}"
    assert all(one.is_stored for one in views), "the tier below has each chunk"
    again = cache.admit(prompt(1))
    assert again is not None, "the engine has room"
    assert again.loading, "the chunk was moved to the host, and is being loaded"
    cache.drain()
    assert (cache.read(Pool.KV, again.table, 0) == 1).all(), "the first request wrote ones"


@NEEDS_VLLM
def test_the_tiering_manager_is_vllms_own_and_no_stub() -> None:
    manager = connected(tiering.VllmTiering0330).cache.connector.manager
    assert type(manager).__module__ == "vllm.v1.kv_offload.tiering.manager", f"got {type(manager).__module__}"
    [tier] = manager.secondary_tiers
    assert type(tier).__mro__[1].__module__ == "vllm.v1.kv_offload.tiering.base", f"got {type(tier).__mro__}"


@NEEDS_VLLM
def test_the_script_shows_a_block_that_is_removed_and_found(capsys: pytest.CaptureFixture[str]) -> None:
    prepare_vllm()
    runpy.run_path(str(SCRIPTS / "vllm_removed_event.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    stored, again, removed = (line.split()[1] for line in lines if line.startswith("  ") and "," not in line)
    assert stored == again == removed, f"expected one hash, stored twice and removed once, got {lines}"
    assert lines[-1] == "a third request finds 4 of the tokens [1, 2, 3, 4]", f"got {lines[-1]!r}"


# The storage tier in files.


def keys(count: int, rank: str = RANK) -> list[str]:
    """The keys of some pages, as a cache makes them."""
    return [f"kv.{rank}/{hashlib.sha256(bytes([number])).hexdigest()}" for number in range(count)]


def filled(count: int, page_bytes: int = CHUNK) -> Sheet:
    """Memory with pages that differ."""
    sheet = Sheet([(page_bytes,)] * count)
    for number in range(count):
        sheet.write(number, bytes([number + 1]) * page_bytes)
    return sheet


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[VllmFileSystemTier]:
    """The tier of a model, in an empty folder."""
    with closing(VllmFileSystemTier("model", {"directory": str(tmp_path), "page_bytes": CHUNK})) as opened:
        yield opened


def test_a_tier_says_what_is_missing(tmp_path: Path) -> None:
    if release_of("vllm") == VllmFileSystemTier.version:
        pytest.skip(f"vllm {VllmFileSystemTier.version}, which the adapter drives, is the one that is installed")
    with pytest.raises(ConfigurationError, match="vllm"):
        VllmFileSystemTier("model", {"directory": str(tmp_path), "page_bytes": CHUNK})


def test_a_key_of_a_cache_is_a_hash_in_the_group_of_its_pool() -> None:
    page = "9f" * 32
    found = [_block(f"{pool}.{RANK}/{page}") for pool in ("kv", "swa", "mamba", "indexer")]
    assert found == [(bytes.fromhex(page), group) for group in range(4)], f"one hash in four groups, got {found}"


@pytest.mark.parametrize(
    "key", ["kv/0", f"kv.{RANK}/9f", f"other.{RANK}/{'9f' * 32}", f"kv.{RANK}/{'9F' * 32}", "../a"]
)
def test_a_key_of_another_form_becomes_a_digest(key: str) -> None:
    assert _block(key) == (hashlib.sha256(key.encode()).digest(), 0), f"{key} is hashed, got {_block(key)}"
    assert _rank(key) == Rank(), f"{key} is of the only rank, got {_rank(key)}"


@pytest.mark.parametrize(
    ("rank", "number"),
    [(RANK, 0), ("tp1of2.cp0of1.pp0of1", 1), ("tp0of2.cp1of2.pp0of1", 2), ("tp1of2.cp1of2.pp1of2", 7)],
)
def test_a_rank_has_its_number_in_the_mesh(rank: str, number: int) -> None:
    found = _rank(keys(1, rank)[0])
    assert found.number == number, f"{rank}: expected worker {number}, got {found}"


@NEEDS_VLLM
def test_a_page_is_a_file_named_by_its_hash(tier: VllmFileSystemTier) -> None:
    first, second = keys(1)[0], keys(1, "tp1of2.cp0of1.pp0of1")[0]
    for key in (first, second):
        assert tier.set([key], filled(1, 1000).pages, []) == [True], f"{key} finds room"
    names = [[path.stem for path in one.folder.rglob("*.bin")] for one in tier.tiers.values()]
    assert names == [[first[-64:]]] * 2, f"each rank has a file of its own, named by the hash, got {names}"
    folders = [one.folder.name[-3:] for one in tier.tiers.values()]
    assert folders == ["_r0", "_r1"], f"expected the folders of two ranks, got {folders}"
    assert tier.stats().object_bytes == 2 * CHUNK, f"each has a whole chunk for its page, got {tier.stats()}"


@NEEDS_VLLM
def test_the_page_after_a_short_one_is_missed_once_and_the_short_one_is_removed(tier: VllmFileSystemTier) -> None:
    pages, target = keys(3), filled(3)
    assert tier.set(pages, filled(3).pages, []) == [True] * 3, "three pages find room"
    [short] = next(iter(tier.tiers.values())).folder.rglob(f"{pages[1][-64:]}.bin")
    os.truncate(short, CHUNK // 2)
    assert tier.has(pages) == [True] * 3, "a lookup asks only whether there is a file"
    assert tier.get(pages, target.pages, []) == [True, False, False], "a load ends at the page that is too short"
    assert tier.has(pages) == [True, False, True], "the short page is removed, and the one after it stays"
    assert tier.set(pages, filled(3).pages, []) == [True] * 3, "it can be written again"
    assert tier.get(pages, target.pages, []) == [True] * 3, "and read"


@NEEDS_VLLM
def test_what_a_tier_has_no_words_for(tier: VllmFileSystemTier) -> None:
    assert tier.set(keys(1), filled(1, CHUNK + 1).pages, []) == [False], "a larger page has no room in a chunk"
    assert tier.get(keys(1), filled(1, CHUNK + 1).pages, []) == [False], "nor can it be read"
    assert not tier.clear(), "a tier cannot remove a page"
    with pytest.raises(ValueError, match="one rank"):
        tier.has([*keys(1), *keys(1, "tp1of2.cp0of1.pp0of1")])


def shown(script: str) -> list[str]:
    """The lines that a script prints, in a process of its own, since it forks."""
    code = (
        "import runpy, sys; from hicache.engines.vllm.imports import prepare_vllm; prepare_vllm(); "
        "runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    command = [sys.executable, "-c", code, str(SCRIPTS / script)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@NEEDS_VLLM
def test_the_script_shows_blocks_of_others_that_are_stored_after_a_reset() -> None:
    lines = shown("vllm_offload_reset.py")
    told = [*told_output("a request gets the blocks that left"), *told_output("no event tells")]
    assert lines == told, f"docs/findings/vllm.md shows other lines: {lines}"
    (others, stored), own = (numbers(line) for line in lines[2:4]), numbers(lines[7])
    assert set(others) & set(stored), f"expected blocks of the second request to be stored, got {stored}"
    assert len(set(own)) < len(own), f"expected a block twice in a job, got {own}"
    assert lines[8].endswith("KeyError: 5"), f"got {lines[8]!r}"


@NEEDS_VLLM
def test_the_script_shows_two_copies_on_the_host_of_which_one_is_removed() -> None:
    lines = shown("vllm_simple_removed_event.py")
    hashes = [line.split("'")[1] for line in lines if "Block" in line]
    assert hashes[0] == hashes[1] == hashes[2], f"expected one hash, stored twice and removed once, got {lines}"
    assert lines[-1] == "a third request finds 4 of the tokens [1, 2, 3, 4] on the host", f"got {lines[-1]!r}"


@NEEDS_VLLM
def test_the_script_shows_a_request_that_waits_for_ever() -> None:
    lines = shown("vllm_tiering_never_ends.py")
    assert lines == told_output("the CPU has room for"), f"docs/findings/vllm.md shows other lines: {lines}"
    waiting = [line.split()[3] for line in lines if line.endswith("would wait on")]
    assert waiting == ["5", "3"], f"a request of 5 chunks and one of 3 wait forever, got {lines}"


def told_output(first: str) -> list[str]:
    """What docs/findings/vllm.md shows as the output of a script that begins so."""
    page = (ROOT / "docs" / "findings" / "vllm.md").read_text(encoding="utf-8")
    return f"{first}{page.partition(f'```{chr(10)}{first}')[2].partition(f'{chr(10)}```')[0]}".splitlines()


def numbers(line: str) -> list[int]:
    """The numbers in the lists of a line."""
    return [int(one) for found in re.findall(r"\[([^]]*)\]", line) for one in found.split(",")]


@NEEDS_VLLM
def test_the_script_shows_a_longer_page_that_is_read_in_another_layout() -> None:
    lines = shown("vllm_fs_other_layout.py")
    first, second = lines[0].partition("[")[2].rstrip("]").split(", ")
    assert first == second, f"expected one folder for two layouts, got {lines[0]}"
    assert lines[2].endswith("HIT"), f"expected the page to be found, got {lines}"
    assert lines[3] == "it is loaded: [True] and has 4096 of the bytes", f"got {lines}"


@NEEDS_VLLM
def test_the_script_shows_writers_that_lose_pages_by_the_names_of_their_files() -> None:
    lines = shown("vllm_fs_temporary_names.py")
    assert ".tmp" in lines[1], f"expected the file of a killed writer, got {lines}"
    assert lines[2:4] == ["  started again, job 0: ['lost']", "  started again, job 1: ['stored']"], f"got {lines}"
    # When two writers meet depends on timing: in a page, or in the one after it.
    assert sorted(lines[5:7]) == ["  left, job 0: ['lost']", "  right, job 0: ['lost']"], f"got {lines}"
    assert lines[7] != "pages that are there: 2 of 2", f"expected both writers to lose a page, got {lines}"
