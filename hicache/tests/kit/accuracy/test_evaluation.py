"""An evaluation by lm-eval starts no process: by itself it starts a dozen, to describe the machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from accuracy.evaluation.paired import Gate, PairedAnswers, falls, false_alarms, is_loss, smallest_loss
from accuracy.evaluation.passes import CacheSize
from accuracy.evaluation.subject import Subject
from hicache.config import CacheConfig
from hicache.testing.caches.reference import ReferenceAdapter

ADAPTER = f"{ReferenceAdapter.__module__}:{ReferenceAdapter.__name__}"


def test_an_evaluation_starts_no_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[ReferenceAdapter] = []

    def open_cache(config: CacheConfig) -> ReferenceAdapter:
        opened.append(ReferenceAdapter(config))
        return opened[-1]

    size = CacheSize(page_size=16, chunk_tokens=64, tokens=1 << 12, states=64)
    own = Subject("window", ("copying",), None, 1, torch.float32, "cpu", False, size, ADAPTER)
    passes = own.passes(open_cache, tmp_path)
    started: list[object] = []

    def refuse(words: object, **_: object) -> None:
        started.append(words)
        raise FileNotFoundError(words)

    monkeypatch.setattr(subprocess, "Popen", refuse)
    scored = own.ask(passes)
    for cache in opened:
        cache.close()
    assert scored.scores, "expected a score of the task"
    assert not started, f"expected no process, started {started}"


GATES: dict[str, tuple[Gate, int]] = {
    "the score falls by 0.2": (falls, 16),
    "exact test of the paired answers": (is_loss, 16),
    "the same, with more questions": (is_loss, 100),
}


@pytest.mark.parametrize("name", GATES)
def test_the_page_has_the_false_alarms_and_the_smallest_loss_of_each_gate(name: str) -> None:
    page = (Path(__file__).parents[4] / "docs" / "accuracy.md").read_text(encoding="utf-8")
    gate, questions = GATES[name]
    alarms, loss = false_alarms(gate, questions), smallest_loss(gate, questions)
    row = f"| {name} | {questions} | {100 * alarms:.1f} % | {loss} answers |"
    assert row in page, f"expected the row {row} in docs/accuracy.md"


@pytest.mark.parametrize(
    ("first", "later", "expected"),
    [
        ([True] * 10, [False] * 10, True),
        ([True] * 9, [False] * 9, False),
        ([True] * 12 + [False], [False] * 12 + [True], False),
        ([True] * 14 + [False], [False] * 14 + [True], True),
        ([False] * 16, [True] * 16, False),
        ([True, False] * 8, [True, False] * 8, False),
    ],
    ids=["ten lost", "nine lost", "12 of 13", "14 of 15", "gained", "equal"],
)
def test_a_loss_is_what_chance_hardly_gives(first: list[bool], later: list[bool], expected: bool) -> None:
    paired = PairedAnswers.of(first, later)
    assert is_loss(paired) == expected, f"expected {expected} for {paired}"
