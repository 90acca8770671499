"""A job for the CI of SGLang or vLLM in one file: the quick verdict of hicache on the prefix caches of the engine.

Copy it into the repository of the engine, install a pinned hicache beside the engine (docs/ci.md), and run one of

    python3 test_hicache.py
    PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 pytest test_hicache.py

A failure that the list has does not count. Any other fails the job, and so does an entry whose test passes.
HICACHE_RUNS=100 repeats the verdict, and counts the runs that fail. On a sound engine each of them is a false alarm.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CORES = {
    "sglang": {
        "hicache.engines.sglang:Checkout": "sglang-0.5.23.toml",
        "hicache.engines.sglang:CheckoutRust": "sglang-0.5.23.toml",
    },
    "vllm": {"hicache.engines.vllm:Checkout": "vllm-0.33.0.toml"},
}
"""By package, the adapters and the list of known failures of each. `Checkout` fits the source that is installed."""

LISTS = "engines/known"
"""The folder of the lists in the pinned hicache. An absolute path names a folder of the engine's own repository."""

OPTIONS = ("--require", "nothing", "--timeout", "600")
RUNS = int(os.environ.get("HICACHE_RUNS", "1"))


def verify(adapter: str, known: str, report: Path) -> int:
    """Verify a cache, and require that the run saw it work. Returns the exit code of `hicache verify`."""
    package = importlib.util.find_spec("hicache")
    assert package is not None, "hicache is not installed"
    assert package.origin is not None, "hicache has no files"
    words = ["--adapter", adapter, "--known-failures", str(Path(package.origin).parent / LISTS / known)]
    command = [sys.executable, "-m", "hicache", "verify", *words, "--report", str(report), *OPTIONS]
    code = subprocess.run(command, check=False).returncode  # noqa: S603 - this file makes the command
    assert (report / "run.json").exists(), f"{adapter}: hicache verify ended with {code} and left no report"
    run = json.loads((report / "run.json").read_text(encoding="ascii"))
    needed = {"hits": "", "evictions": "", "bytes read back": "BYTES", "loads": "HOST"}
    missing = [
        name
        for name, capability in needed.items()
        if int(run["environment"].get(name, 0)) == 0 and (not capability or capability in run["capabilities"])
    ]
    assert not missing, f"{adapter}: the run saw no {', no '.join(missing)}"
    return code


def hit_lengths(report: Path) -> list[int]:
    """How many tokens each prompt of the generated trace found on the device; none if it was not replayed."""
    replay = report / "replay.json"
    lengths: list[int] = (
        json.loads(replay.read_text(encoding="ascii"))["hit_lengths"]["device"] if replay.exists() else []
    )
    return lengths


def difference(hits: dict[str, list[int]]) -> str:
    """The first prompt whose hit differs between two caches; empty if none does, as far as both replays go."""
    (name, own), *others = hits.items()
    for other, theirs in others:
        for number, (expected, found) in enumerate(zip(own, theirs, strict=False)):
            if expected != found:
                return f"prompt {number}: {name} hit {expected} tokens, and {other} {found}"
    return ""


class TestPrefixCaches(unittest.TestCase):
    """Each cache of the engine that is installed."""

    def test_each_cache(self) -> None:
        """No run may fail: one fails for a failure that is not listed, and for an obsolete entry of the list.

        All caches of the engine must hit the same tokens in the replay of the same trace.
        """
        hits: dict[str, list[int]] = {}
        engine = next((name for name in CORES if importlib.util.find_spec(name) is not None), None)
        if engine is None:
            self.skipTest(f"none of these is installed: {', '.join(CORES)}")
        for adapter, known in CORES[engine].items():
            with self.subTest(adapter), tempfile.TemporaryDirectory() as folder:
                codes = [verify(adapter, known, Path(folder)) for _ in range(RUNS)]
                hits[adapter] = hit_lengths(Path(folder))
                failed = RUNS - codes.count(0)
                print(f"{adapter}: {failed} of {RUNS} runs failed", flush=True)
                assert not failed, f"exit codes of hicache verify: {codes}"
        found = difference(hits) if hits else ""
        assert not found, found


if __name__ == "__main__":
    unittest.main(verbosity=2)
