"""The adapters of mini-sglang and nano-vllm: without a checkout, and on the engines where one is named."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from hicache.engines.interface import release_of
from hicache.engines.small.engine_calls import VARIABLE, EngineCalls
from hicache.errors import ConfigurationError
from hicache.testing.adapter import Capability
from hicache.testing.configurations import standard_configurations
from hicache.testing.load import load_adapter
from hicache.testing.plugin.options import ENGINE_SOURCE

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Engine:
    """An adapter, and the package of the engine."""

    adapter: str
    package: str


MINI = Engine("hicache.engines.small.mini_sglang:MiniSglang", "minisgl")
NANO = Engine("hicache.engines.small.nano_vllm:NanoVllm", "nanovllm")
ANY_ORDER = Engine("hicache.engines.small.nano_vllm:NanoVllmAnyOrder", "nanovllm")
EVERY_ENGINE = pytest.mark.parametrize("engine", [MINI, NANO], ids=["mini-sglang", "nano-vllm"])


def open_one(engine: Engine) -> object:
    """Open the adapter with its first configuration."""
    adapter = load_adapter(engine.adapter)
    listed = adapter.configurations() or standard_configurations(adapter.capabilities)
    return adapter(listed[0])


@EVERY_ENGINE
def test_without_a_source_the_error_names_the_option(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENGINE_SOURCE.variable, raising=False)
    with pytest.raises(ImportError, match=f"{engine.package} is not installed: .*--engine-source"):
        open_one(engine)


@EVERY_ENGINE
def test_what_an_engine_does_not_have_is_refused(engine: Engine) -> None:
    adapter = load_adapter(engine.adapter)
    for config in standard_configurations(frozenset(Capability)):
        if config.components != ("full",) or config.bigram:
            with pytest.raises(ConfigurationError):
                adapter(config)


class Counter:
    """An engine with one method, one property and one method that raises."""

    total = 0

    def add(self, numbers: object, *, twice: bool) -> int:
        """Add up numbers."""
        self.total += 2 if twice else 1
        return self.total

    def fail(self) -> None:
        """Raise."""
        raise ValueError("no")


def test_calls_are_written_in_the_terms_of_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "calls.txt"
    monkeypatch.setenv(VARIABLE, str(path))
    path.write_text("of an engine before\n", encoding="utf-8")
    calls = EngineCalls()
    engine = Counter()
    watched = calls.watch(engine, "counter")
    assert watched.add(np.arange(3), twice=True) == 2, "the method is called"
    watched.total = 5
    assert engine.total == watched.total == 5, "a field is read from the engine and written to it"
    watched.add(calls.name(object(), "seq"), twice=False)
    with pytest.raises(ValueError, match="no"):
        watched.fail()
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines == [
        "counter.add([0, 1, 2], twice=True)  # 2",
        "counter.add(seq1, twice=False)  # 6",
        "counter.fail()  # raises ValueError: no",
    ], lines


def test_nothing_is_written_or_wrapped_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    engine, calls = Counter(), EngineCalls()
    assert calls.watch(engine, "counter") is engine, "expected the engine itself"
    calls.note("a line")
    assert calls.told(None) == "None", "a value is shown"


def searched(engine: Engine, seed: int, calls: Path) -> str:
    """The output of the machine of requests with the quick profile; `calls` gets the calls of the smallest example."""
    if release_of(engine.package) is None:
        pytest.skip(f"needs the engine: {ENGINE_SOURCE.variable} names no source tree with {engine.package}")
    test = "properties/test_machines.py::test_any_mix_of_requests[full]"
    options = [
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "--hypothesis-profile",
        "hicache-quick",
        f"--hypothesis-seed={seed}",
    ]
    command = [sys.executable, "-m", "pytest", test, *options, "--hicache-adapter", engine.adapter]
    environment = os.environ | {VARIABLE: str(calls)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, env=environment)
    assert done.returncode == 1, f"expected the search to fail, got {done.returncode}:\n{done.stdout[-2000:]}"
    return done.stdout


@pytest.mark.parametrize(
    ("engine", "clause", "call"),
    [
        (MINI, "POOL-1", "manager.cache_req(req2, finished=False)"),
        (NANO, "EVICT-1", "manager.allocate("),
        (ANY_ORDER, "MATCH-1", "manager.hash_blocks(seq2)"),
    ],
    ids=["a-page-freed-in-a-table", "blank-blocks-behind-cached-ones", "a-lost-duplicate"],
)
def test_a_defect_of_an_engine_is_found(engine: Engine, clause: str, call: str, tmp_path: Path) -> None:
    calls = tmp_path / "calls.txt"
    output = searched(engine, 0, calls)
    assert f"ViolationError: {clause}:" in output, f"expected {clause}, got:\n{output[-3000:]}"
    steps = [line for line in output.splitlines() if line.startswith("E ") and "state." in line]
    assert len(steps) <= 12, f"expected ten steps, the opening and the end at most, got {steps}"
    assert call in calls.read_text(encoding="utf-8"), f"expected {call} among the calls of the smallest example"
