"""Each example runs in an empty folder, and prints what it promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from hicache.tests.front.child import ROOT, run_python

EXAMPLES = {
    "smallest.py": [
        "1100 tokens: 0 from the cache, 1100 to compute",
        "1200 tokens: 992 from the cache, 208 to compute",
    ],
    "hybrid_three_tiers.py": [
        "device: the same bytes: True",
        "evicted from the device: {'full': 512, 'swa': 512, 'mamba': 1}",
        "host: the same bytes: True",
        "tokens prefetched from storage: 512",
        "storage: the same bytes: True",
    ],
    "own_tensors.py": [
        "evicted from the device: {'full': 160}",
        "loaded back: 160 tokens",
        "the same bytes in the engine's tensor: True",
    ],
}
RANKS = "ranks_torchrun.py"
MAX_LINES = 79


def _expect(printed: str, expected: list[str]) -> None:
    missing = [line for line in expected if line not in printed.splitlines()]
    assert not missing, f"expected {missing}, the example printed:\n{printed}"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    _expect(run_python(tmp_path, "-W", "error", str(ROOT / "examples" / name)), EXAMPLES[name])
    assert not list(tmp_path.iterdir()), f"{name} left {list(tmp_path.iterdir())}"


def test_the_example_of_ranks_runs(tmp_path: Path) -> None:
    # --standalone: any free port, so that runs at the same time do not meet.
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    printed = run_python(tmp_path, *torchrun, str(ROOT / "examples" / RANKS))
    _expect(printed, ["loaded back: 160 tokens, host capacity: 2048 tokens", "2 ranks agree: True"])


def test_every_example_is_run_short_and_says_how_to_run_it() -> None:
    found = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "examples").iterdir() if path.is_file()}
    assert found.keys() == {*EXAMPLES, RANKS}, f"examples/ has {sorted(found)}, tests run {sorted([*EXAMPLES, RANKS])}"
    for name, text in found.items():
        lines = len(text.splitlines())
        assert lines <= MAX_LINES, f"{name} has {lines} lines, at most {MAX_LINES}"
        assert f"examples/{name}`." in text.partition('"""\n')[0], f"{name}: its docstring does not say how to run it"
