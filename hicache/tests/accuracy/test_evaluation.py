"""An evaluation by lm-eval starts no process: by itself it starts a dozen, to describe the machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from accuracy.evaluation.passes import CacheSize
from accuracy.evaluation.subject import Subject
from hicache.config import CacheConfig
from hicache.testing.adapters.reference import ReferenceAdapter

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
