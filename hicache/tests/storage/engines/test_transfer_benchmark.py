"""The rates of Mooncake's own benchmark: they are read from its output, and its processes end."""

from __future__ import annotations

import os
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from hicache.errors import InvariantError
from hicache.tests.storage.engines import transfer_benchmark
from hicache.tests.storage.engines.engine import HOST, EngineSettings
from hicache.tests.storage.engines.transfer_benchmark import reported_rate, transfer_rates

from .test_hosts import commands_with

COMPLETED = """\
I1127 02:28:26.768998  7264 transfer_engine_bench.cpp:335] DRAM is used, numa node num: 1
I1127 02:28:28.770998  7271 transfer_engine_bench.cpp:440] Worker 0 stopped!
I1127 02:28:28.771145  7264 transfer_engine_bench.cpp:569] Test completed: duration 2.00, batch count 711, throughput \
0.745520 GB/s
I1127 02:28:28.771750  7264 transfer_metadata.cpp:616] removeSegmentDesc 127.0.0.1:16787 finish
"""
"""What release 0.3.13.post1 prints."""

VALUE_BYTES, VALUES = 64 << 10, 4


@pytest.fixture
def settings(tmp_path: Path) -> EngineSettings:
    """Those of an engine of which only the folder is used."""
    return EngineSettings(tmp_path, 1, 2, (1,), None, evicts=True, password="")


@pytest.fixture
def program(settings: EngineSettings, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in the place of the benchmark: its initiators fail, and end their target."""
    path, number, pipe = (settings.folder / name for name in ("bench", "number", "pipe"))
    os.mkfifo(pipe)
    target = f"echo $$ > {number}; echo listening on {HOST}:1; read line < {pipe}"
    initiator = f"echo refused; kill $(cat {number}); exit 1"
    path.write_text(f'#!/bin/sh\ncase "$*" in *target*) {target};; *) {initiator};; esac\n', encoding="utf-8")
    path.chmod(0o755)
    monkeypatch.setattr(transfer_benchmark, "transfer_benchmark", lambda: path)
    return path


def test_the_rate_is_read_from_the_output() -> None:
    assert reported_rate(COMPLETED) == pytest.approx(745_520_000), "bytes per second"
    assert reported_rate(COMPLETED.partition("Test completed")[0]) is None, "a run that has not ended has none"


def test_the_benchmark_writes_and_reads(settings: EngineSettings) -> None:
    if (found := transfer_benchmark.transfer_benchmark()) is None:
        pytest.skip("transfer_engine_bench is not installed: pip install 'hicache[mooncake]'")
    wrote, read = transfer_rates(settings, VALUE_BYTES, VALUES)
    assert wrote > 0, "values were written"
    assert read > 0, "values were read"
    assert f"listening on {HOST}:" in (settings.folder / "transfer_target.log").read_text(), "of the other process"
    left = [line for line in commands_with(str(found)) if f"--buffer_size={VALUE_BYTES * VALUES}" in line]
    assert not left, f"both processes have ended, got {left}"


@pytest.mark.usefixtures("program")
def test_a_benchmark_that_fails_is_an_error_with_its_output(settings: EngineSettings) -> None:
    with pytest.raises(InvariantError, match="refused"):
        transfer_rates(settings, VALUE_BYTES, VALUES)


def test_the_target_is_ended_when_the_caller_is_interrupted(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch, program: Path
) -> None:
    def interrupted(_: Path) -> str | None:
        assert commands_with(str(program)), "the target runs"
        raise KeyboardInterrupt

    monkeypatch.setattr(transfer_benchmark, "_address", interrupted)
    with pytest.raises(KeyboardInterrupt):
        transfer_rates(settings, VALUE_BYTES, VALUES)
    assert not commands_with(str(program)), "it has ended"


@pytest.mark.parametrize("found", [None, ModuleSpec("mooncake", None)], ids=["no package", "no program in it"])
def test_a_benchmark_that_is_not_installed_is_named(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch, found: ModuleSpec | None
) -> None:
    monkeypatch.setattr(transfer_benchmark, "find_spec", lambda _: found)
    with pytest.raises(InvariantError, match="transfer_engine_bench is not installed"):
        transfer_rates(settings, VALUE_BYTES, VALUES)
