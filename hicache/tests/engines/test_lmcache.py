"""The adapters of LMCache's storage clients, with and without LMCache, and the scripts that show its defects."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hicache.config import ExecutorKind
from hicache.engines.lmcache import cpu, storage
from hicache.engines.lmcache.storage import LmcacheFiles, LmcacheRedis, lmcache_version
from hicache.engines.lmcache.storage_l2 import LmcacheL2Files
from hicache.errors import ConfigurationError
from hicache.storage.base import StorageBackend
from hicache.testing.adapter import Capability
from hicache.testing.load import load_adapter
from hicache.testing.storage.page_bytes import Sheet
from hicache.types import SHARED, Key, Namespace

RELEASE = "0.5.6"
ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "docs" / "reproductions"
KNOWN = Path(storage.__file__).parents[1] / "known"
RANK = "tp0of1.cp0of1.pp0of1"
SERVER = shutil.which("redis-server")
START_S = 30.0

IMPORTED = ("aiofile", "aiofiles", "transformers", "zmq")
"""Some of the packages that LMCache's Python code imports, and its clients in C++ do not."""

SUITE_S = 500.0
"""The longest run of the suites: LMCache's `close` sometimes never returns."""

NEEDS_LMCACHE = pytest.mark.skipif(
    lmcache_version() != RELEASE, reason=f"lmcache {RELEASE} is not installed: `tox -e lmcache-{RELEASE}` installs it"
)
NEEDS_PYTHON = pytest.mark.skipif(
    lmcache_version() != RELEASE or not all(map(importlib.util.find_spec, IMPORTED)),
    reason=f"lmcache {RELEASE} and what its Python code imports are not installed: `tox -e lmcache-{RELEASE}` does it",
)
NEEDS_SERVER = pytest.mark.skipif(
    SERVER is None, reason="redis-server, which the client for Redis needs, is not installed"
)


class FakeClient:
    """A client with LMCache's interface, over a dictionary.

    `silent`: keys of batches that are never completed. `held`: how many batches are completed at a time. `refuses`:
    whether it raises at once. `fails`: whether `set` fails.
    """

    def __init__(self, *opened: object) -> None:
        self.opened = opened
        self.pages: dict[str, bytes] = {}
        self.asked: list[tuple[str, list[str]]] = []
        self.buffers: list[memoryview] = []
        self.silent: set[str] = set()
        self.held, self.refuses, self.fails = 1, False, False
        self._event = os.eventfd(0, os.EFD_NONBLOCK)
        self._waiting: list[tuple[int, bool, str, list[bool] | None]] = []
        self._done: list[tuple[int, bool, str, list[bool] | None]] = []

    def event_fd(self) -> int:
        return self._event

    def submit_batch_exists(self, keys: list[str]) -> int:
        return self._complete("exists", keys, True, [key in self.pages for key in keys])

    def submit_batch_delete(self, keys: list[str]) -> int:
        return self._complete("delete", keys, True, [self.pages.pop(key, None) is not None for key in keys])

    def submit_batch_set(self, keys: list[str], buffers: list[memoryview]) -> int:
        self._take(keys, buffers)
        if not self.fails:
            self.pages |= {key: bytes(buffer) for key, buffer in zip(keys, buffers, strict=True)}
        return self._complete("set", keys, not self.fails, None)

    def submit_batch_get(self, keys: list[str], buffers: list[memoryview]) -> int:
        self._take(keys, buffers)
        for key, buffer in zip(keys, buffers, strict=True):
            buffer[:] = self.pages.get(key, bytes(buffer))
        return self._complete("get", keys, True, [key in self.pages for key in keys])

    def drain_completions(self) -> list[tuple[int, bool, str, list[bool] | None]]:
        os.eventfd_read(self._event)
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        os.close(self._event)

    def _take(self, keys: Sequence[str], buffers: Sequence[memoryview]) -> None:
        if self.refuses or len(keys) != len(buffers):
            raise RuntimeError("keys and buffers differ in number")
        self.buffers = list(buffers)

    def _complete(self, verb: str, keys: list[str], is_done: bool, answers: list[bool] | None) -> int:
        self.asked.append((verb, keys))
        number = len(self.asked)
        if self.silent.isdisjoint(keys):
            self._waiting.append((number, is_done, "", answers))
        if len(self._waiting) >= self.held:
            # The last one first, as nothing says in which order batches are completed.
            self._done, self._waiting = [*self._done, *reversed(self._waiting)], []
            os.eventfd_write(self._event, 1)
        return number


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[LmcacheFiles, FakeClient]]:
    """The adapter of files over a fake client, and the fake."""
    monkeypatch.setattr(storage, "lmcache_class", lambda *_: FakeClient)
    backend = LmcacheFiles("model", {"directory": str(tmp_path)})
    yield backend, backend._client
    backend.close()


@pytest.fixture
def redis(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LmcacheRedis, FakeClient]]:
    """The adapter of Redis over a fake client, and the fake."""
    monkeypatch.setattr(storage, "lmcache_class", lambda *_: FakeClient)
    backend = LmcacheRedis("model", {"host": "127.0.0.1", "port": 1, "workers": 2})
    yield backend, backend._client
    backend.close()


def kept(backend: StorageBackend, keys: Sequence[str], cuts: tuple[int, ...] = (3, 5)) -> Sheet:
    """Store pages of eight bytes under these keys."""
    sheet = Sheet([cuts] * len(keys))
    for number, _ in enumerate(keys):
        sheet.write(number, bytes([number]) * 3 + bytes([100 + number]) * 5)
    assert backend.set(keys, sheet.pages, []) == [True] * len(keys), "expected all pages to be stored"
    return sheet


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (f"kv.{RANK}/9f86", "model@01000100@0@9f86"),
        ("kv.tp1of2.cp0of1.pp0of1/9f86", "model@02010201@0@9f86"),
        ("kv.tp0of1.cp1of4.pp2of3/9f86", "model@0c090c09@0@9f86"),
        ("kv.tpall.cp0of1.pp1of2/9f86", "model@02010201@0@9f86"),
        (f"indexer.{RANK}/9f86", "model@01000100@2d95d8c4@9f86"),
        ("a/b", f"model@00000000@0@{hashlib.sha256(b'a/b').hexdigest()}"),
        ("../a", f"model@00000000@0@{hashlib.sha256(b'../a').hexdigest()}"),
    ],
)
def test_a_key_becomes_one_of_lmcache(files: tuple[LmcacheFiles, FakeClient], key: str, name: str) -> None:
    backend, fake = files
    kept(backend, [key])
    assert list(fake.pages) == [name], f"{key}: expected {name}, got {list(fake.pages)}"
    assert backend.has([key, "other"]) == [True, False], "it is looked for under the same name"


def test_pages_go_and_come_whole(files: tuple[LmcacheFiles, FakeClient]) -> None:
    backend, _ = files
    keys = ["kv/0", "kv/1"]
    source = kept(backend, keys)
    target = Sheet([(8,), (1, 0, 7), (8,)])
    assert backend.get([*keys, "kv/2"], target.pages, []) == [True, True, False], "two of three are there"
    assert [target.read(page) for page in (0, 1)] == [source.read(page) for page in (0, 1)], "the same bytes"
    assert target.has_its_guards, "nothing is written beside the pages"


def test_a_page_of_one_piece_is_not_copied(files: tuple[LmcacheFiles, FakeClient]) -> None:
    backend, fake = files
    source, target = kept(backend, ["kv/0"], (8,)), Sheet([(8,)])
    assert fake.buffers[0] is source.pages[0][0], "the client has the piece itself"
    backend.get(["kv/0"], target.pages, [])
    assert fake.buffers[0] is target.pages[0][0], "the client has the piece itself"


def test_a_batch_that_is_refused_or_fails_is_not_stored(files: tuple[LmcacheFiles, FakeClient]) -> None:
    backend, fake = files
    two, one = Sheet([(8,), (8,)]).pages, Sheet([(8,)]).pages
    assert backend.set(["kv/0", "kv/1"], one, []) == [False, False], "the client raises"
    assert backend.get(["kv/0", "kv/1"], one, []) == [False, False], "the client raises"
    fake.fails = True
    assert backend.set(["kv/0", "kv/1"], two, []) == [False, False], "the client says that the batch failed"
    assert not fake.pages, "nothing is stored"


def test_nothing_is_asked_for_no_keys(files: tuple[LmcacheFiles, FakeClient]) -> None:
    backend, fake = files
    assert backend.has([]) == [], "no answers"
    assert not fake.asked, "LMCache's clients refuse an empty batch"


def test_each_thread_gets_its_own_answer(files: tuple[LmcacheFiles, FakeClient]) -> None:
    backend, fake = files
    kept(backend, ["kv/0"])
    fake.held = 2
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(backend.has, [key]) for key in ("kv/0", "kv/1")]
        assert [one.result() for one in asked] == [[True], [False]], "both are completed at once, the last one first"


def test_what_is_never_completed_raises_and_keeps_its_memory(
    files: tuple[LmcacheFiles, FakeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, fake = files
    kept(backend, ["kv/0"])
    monkeypatch.setattr(storage, "ANSWER_S", 0.02)
    fake.silent = set(fake.pages)
    target = Sheet([(8,)])
    with pytest.raises(TimeoutError, match="has not completed"):
        backend.get(["kv/0"], target.pages, [])
    assert list(backend._lent.values()) == [[target.pages[0][0]]], "the client may still write there"


def test_clear_removes_the_files_of_its_scope(files: tuple[LmcacheFiles, FakeClient], tmp_path: Path) -> None:
    backend, fake = files
    names = ("model@0x01000100@0@9f86.data", "model-b@0x01000100@0@9f86.data", "model@0x01000100@0@77.tmp")
    for name in names:
        (tmp_path / name).write_bytes(b"page")
    kept(backend, [f"kv.{RANK}/9f86"])
    found = backend.stats()
    assert (found.objects, found.object_bytes) == (1, 4), f"one file of four bytes, got {found}"
    assert backend.clear(), "all are removed"
    assert fake.asked[-1] == ("delete", ["model@01000100@0@9f86"]), f"the client deletes, got {fake.asked[-1]}"


def test_a_folder_that_cannot_be_read_is_not_cleared(
    files: tuple[LmcacheFiles, FakeClient], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    backend, _ = files
    monkeypatch.setattr(backend, "_folder", tmp_path / "gone")
    assert backend.clear() is False, "nothing could be listed"


def test_redis_is_asked_only_for_what_is_there(redis: tuple[LmcacheRedis, FakeClient]) -> None:
    backend, fake = redis
    assert fake.opened == ("127.0.0.1", 1, 2), f"host, port and workers, got {fake.opened}"
    source = kept(backend, ["kv/1", "kv/3"])
    target = Sheet([(8,)] * 4)
    assert backend.get([f"kv/{page}" for page in range(4)], target.pages, []) == [False, True, False, True], "two"
    assert [target.read(1), target.read(3)] == [source.read(0), source.read(1)], "each in its place"
    assert [len(keys) for verb, keys in fake.asked if verb == "get"] == [2], f"two of four are read, got {fake.asked}"
    assert backend.get(["kv/0"], target.pages[:1], []) == [False], "it is not there"
    assert fake.asked[-1][0] == "exists", f"nothing is read, got {fake.asked[-1]}"
    assert backend.get(["kv/1"], target.pages, []) == [False], "one key and four targets"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b"*2\r\n$1\r\na\r\n$2\r\nbc\r\n", [b"a", b"bc"]),
        (b"*0\r\n", []),
        (b":17\r\n", 17),
        (b"$2\r\n\r\n\r\n", b"\r\n"),
    ],
)
def test_answers_of_a_server_are_read(said: bytes, expected: object) -> None:
    assert storage._read(io.BytesIO(said)) == expected, f"of {said!r}"


def test_an_error_of_a_server_is_an_error() -> None:
    with pytest.raises(OSError, match="unknown command"):
        storage._read(io.BytesIO(b"-ERR unknown command\r\n"))


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        (LmcacheFiles, {"directory": "x"}),
        (LmcacheRedis, {"host": "127.0.0.1", "port": 1}),
        (LmcacheL2Files, {"directory": "x"}),
    ],
)
def test_without_lmcache_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, backend: type[StorageBackend], options: dict[str, Any]
) -> None:
    monkeypatch.setattr(storage, "lmcache_version", lambda: None)
    with pytest.raises(ConfigurationError, match="lmcache is not installed"):
        backend("model", options)


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """The port of a new Redis server on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = int(free.getsockname()[1])
    assert SERVER is not None, "a test that takes this needs the server"
    command = [SERVER, "--bind", "127.0.0.1", "--port", str(number), "--save", "", "--dir", str(tmp_path)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", number)).close()
            except ConnectionRefusedError:
                assert server.poll() is None, "the server ended"
                assert time.monotonic() < until, f"the server does not listen after {START_S} seconds"
            else:
                break
        yield number
    finally:
        server.terminate()
        server.wait(timeout=START_S)


@NEEDS_LMCACHE
@NEEDS_SERVER
def test_the_suite_fails_on_redis_where_the_list_says(port: int) -> None:
    config = f'{{"host": "127.0.0.1", "port": {port}, "workers": 1}}'
    command = [sys.executable, "-m", "pytest", "conformance/storage", "properties/storage", "-n", "2"]
    command += ["--ignore", "conformance/storage/test_concurrency.py", "--hypothesis-seed", "0"]
    command += ["-p", "no:cacheprovider", "--hicache-backend", f"{LmcacheRedis.__module__}:LmcacheRedis"]
    command += ["--hicache-backend-config", config]
    command += ["--hicache-known-failures", str(KNOWN / f"lmcache-redis-{RELEASE}.toml")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=SUITE_S)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]


@NEEDS_LMCACHE
def test_the_clients_are_lmcaches_own(tmp_path: Path) -> None:
    backend = LmcacheFiles("model", {"directory": str(tmp_path), "workers": 1})
    kept(backend, [f"kv.{RANK}/9f86"])
    assert [file.name for file in tmp_path.iterdir()] == ["model@0x01000100@0@9f86.data"], "LMCache names the file"
    assert type(backend._client).__module__ == "lmcache.lmcache_fs", f"got {type(backend._client)}"
    backend.close()


@NEEDS_PYTHON
@pytest.mark.parametrize("direct", [False, True])
def test_the_l2_adapter_is_lmcaches_own(tmp_path: Path, direct: bool) -> None:
    backend = LmcacheL2Files("model", {"directory": str(tmp_path), "adapter": {"use_odirect": direct}})
    keys = [f"kv.{RANK}/9f86", "kv/1"]
    source = kept(backend, keys)
    assert type(backend._adapter).__name__ == "FSL2Adapter", f"got {type(backend._adapter)}"
    assert (tmp_path / "model@0x01000100@0@9f86.data").read_bytes() == source.read(0), "LMCache names the file"
    target = Sheet([(8,), (1, 0, 7), (8,)])
    assert backend.get([*keys, "kv/2"], target.pages, []) == [True, True, False], "two of three are there"
    assert [target.read(page) for page in (0, 1)] == [source.read(page) for page in (0, 1)], "the same bytes"
    assert backend.stats().object_bytes == 16, f"two files of eight bytes, got {backend.stats()}"
    assert backend.clear(), "LMCache deletes both"
    assert backend.has(keys) == [False, False], "nothing is left"
    backend.close()


@NEEDS_PYTHON
def test_the_l2_adapter_takes_only_options_that_lmcache_has(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="use_odirect"):
        LmcacheL2Files("model", {"directory": str(tmp_path), "adapter": {"use_odirect": "yes"}})


# The cache in host memory.


def test_the_adapter_of_the_cache_can_be_named_where_lmcache_is_not_installed() -> None:
    adapter = load_adapter("hicache.engines.lmcache.cpu:LmcacheCpu056")
    assert Capability.HOST in adapter.capabilities, f"expected HOST, got {adapter.capabilities}"
    assert adapter.profile == "offload", f"expected the profile offload, got {adapter.profile}"


def test_the_adapter_of_the_cache_refuses_another_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "lmcache_version", lambda: "0.1")
    with pytest.raises(ImportError, match=r"drives lmcache 0.5.6, installed is 0.1"):
        cpu.LmcacheCpu056(cpu.CONFIGURATIONS[0])


@pytest.fixture
def cache() -> Iterator[cpu.LmcacheCpu056]:
    """LMCache with room for eight chunks of four tokens, whose transfers are complete at once."""
    listed = [one for one in cpu.CONFIGURATIONS if one.page_size == 4 and one.host is not None]
    opened = cpu.LmcacheCpu056(
        next(one for one in listed if one.host is not None and one.host.executor is ExecutorKind.THREADED)
    )
    yield opened
    opened.close()


def prompt(chunk: int, namespace: Namespace = SHARED) -> Key:
    """A prompt of one chunk, and a token."""
    return Key(np.full(5, chunk, dtype=np.int32), namespace)


def serve(cache: cpu.LmcacheCpu056, key: Key) -> None:
    """Serve a request, which stores one chunk."""
    admission = cache.admit(key)
    assert admission is not None, "the engine has room for one request"
    cache.finish(admission.request)


@NEEDS_PYTHON
def test_the_cache_evicts_what_was_used_first(cache: cpu.LmcacheCpu056) -> None:
    for chunk in (*range(8), 0, 8):
        serve(cache, prompt(chunk))
    found = [cache.lookup(prompt(chunk)) for chunk in range(9)]
    assert found == [4, 0, *[4] * 7], f"all but the second are there, as the first was used again, got {found}"
    assert type(cache.cache.backend).__module__.startswith("lmcache."), f"got {type(cache.cache.backend)}"


@NEEDS_PYTHON
def test_the_cache_keeps_namespaces_apart(cache: cpu.LmcacheCpu056) -> None:
    serve(cache, prompt(0, Namespace(lora="a")))
    found = [cache.lookup(prompt(0, space)) for space in (Namespace(lora="a"), Namespace(salt="a"), SHARED)]
    assert found == [4, 0, 0], f"one of three namespaces has the prompt, got {found}"


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("lmcache_files.py", marks=NEEDS_LMCACHE),
        pytest.param("lmcache_redis.py", marks=[NEEDS_LMCACHE, NEEDS_SERVER]),
        *(
            pytest.param(name, marks=NEEDS_PYTHON)
            for name in ("lmcache_l2_files.py", "lmcache_stored_twice.py", "lmcache_local_disk.py")
        ),
    ],
)
def test_a_script_shows_what_the_page_says(script: str) -> None:
    environment = {**os.environ, **storage.ENVIRONMENT}
    command = [sys.executable, str(SCRIPTS / script)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, timeout=SUITE_S)
    assert done.stdout == shown_in_findings(script), "the page shows what the script prints"


def shown_in_findings(script: str) -> str:
    """What docs/findings/lmcache.md shows as the output of a script."""
    page = (ROOT / "docs" / "findings" / "lmcache.md").read_text(encoding="utf-8")
    _, _, after = page.partition(f"$ python docs/reproductions/{script}\n")
    assert after, f"expected the output of {script} in docs/findings/lmcache.md"
    return after.partition("```")[0]
