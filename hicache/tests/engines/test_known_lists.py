"""The lists of known failures of other engines: each entry names a test that there is, by its whole id."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from hicache.engines.runs import KNOWN, ROOT
from hicache.testing.plugin.known_failures import STAGES_OF_RUNS, read_known_failures

LISTS = sorted(KNOWN.glob("*.toml"))

TREE = ("conformance", "properties", "accuracy", "--hicache-adapter", "hicache.engines.sglang.adapter:Sglang0513")
"""All tests of a tree in Python; those of models only where their packages are installed."""


def stored(backend: str, config: str = '{"directory": "{directory}"}') -> tuple[str, ...]:
    """All tests of a storage backend."""
    options = ("--hicache-backend", f"hicache.engines.{backend}", "--hicache-backend-config", config)
    return ("conformance/storage", "properties/storage", *options)


COLLECTED = {
    "sglang-*": TREE,
    "hicachefile-*": stored("sglang.storage:HiCacheFileBackend"),
    "lmcache-l2-fs-*": stored("lmcache.storage_l2:LmcacheL2Files"),
    "vllm-fs-*": stored(
        "vllm.storage:VllmFileSystemTier", '{"directory": "{directory}", "page_bytes": "{page_bytes}"}'
    ),
}
"""By the name of a list: what pytest collects for it where the engine is not installed."""


@cache
def collected(arguments: tuple[str, ...]) -> list[str]:
    """The ids of the tests that pytest finds with these arguments."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.name)
def test_an_entry_names_a_test_that_there_is(path: Path) -> None:
    for entry in read_known_failures(path):
        file, _, name = entry.id.partition("::")
        # The traces of a replay have no file.
        if name and file not in STAGES_OF_RUNS:
            function = name.partition("[")[0].partition("*")[0]
            source = (ROOT / file).read_text(encoding="utf-8")
            assert f"def {function}" in source, f"{entry.place}: no test in {file} begins with {function}"


@pytest.mark.parametrize(
    "path", [path for path in LISTS if any(map(path.match, COLLECTED))], ids=lambda path: path.name
)
def test_an_entry_covers_a_test_by_its_whole_id(path: Path) -> None:
    tests = collected(next(arguments for name, arguments in COLLECTED.items() if path.match(name)))
    suites = {test.partition("/")[0] for test in tests}
    for entry in read_known_failures(path):
        # An entry that names a clause has no test of its own.
        if "::" in entry.id and entry.suite in suites:
            begin = re.split(r"[\[*]", entry.present_id)[0]
            is_found = any(entry.covers(test, ()) for test in tests if test.startswith(begin))
            assert is_found, f"{entry.place}: expected a test of this id, found none"
