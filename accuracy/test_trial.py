"""A complete trial, and its report page."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import Pool

from .cache_setup import OpenCache
from .evaluation.comparison import ComparedPass
from .evaluation.passes import CacheSize, zeroed_pool
from .evaluation.subject import Subject
from .evaluation.trial import Trial, render_page

SIZE = CacheSize(page_size=16, chunk_tokens=64, tokens=1 << 12, states=64)
NAMES = ["first", "one forward", "device", "host", "storage", "faults", "after faults"]


def trial(
    adapter_path: str, open_cache: OpenCache, folder: Path, documents: int, *, chats: bool, controls: bool
) -> Trial:
    subject = Subject("window", ("copying",), documents, torch.float32, "cpu", chats, SIZE, adapter_path)
    return Trial(subject, subject.passes(open_cache, folder), 1, controls)


def page(passes: list[ComparedPass]) -> str:
    return render_page("window", {"dtype": "float32"}, passes)


@clause("REQ-3", "FLOW-9", needs=(Capability.STORAGE,))
@pytest.mark.parametrize("chats", [False, True], ids=["plain", "chat"])
def test_a_trial_goes_through_every_pass(chats: bool, adapter_path: str, open_cache: OpenCache, tmp_path: Path) -> None:
    passes = list(trial(adapter_path, open_cache, tmp_path, 2, chats=chats, controls=False).run())
    assert [one.name for one in passes] == NAMES, f"expected {NAMES}, got {[one.name for one in passes]}"
    wrong = [problem for one in passes for problem in one.problems]
    assert not wrong, "REQ-3: expected the same answers to the same questions, got:\n" + "\n".join(wrong)
    counted = {sum(one.tokens_by_nats.values()) for one in passes}
    assert counted == {2 * 8}, f"expected 16 compared tokens, two answers of eight letters, got {counted}"
    assert passes[2].wait_share is not None, "expected a share of waiting time for prompts that were computed once"
    html = page(passes)
    assert "Every pass agrees with the first one" in html, "expected the verdict on the page"
    assert all(f"<th>{name}</th>" in html for name in NAMES), f"expected a row for each of {NAMES}"


@clause("REQ-3", "FLOW-9", needs=(Capability.STORAGE,))
def test_a_trial_reports_differences(adapter_path: str, open_cache: OpenCache, tmp_path: Path) -> None:
    losses = trial(adapter_path, open_cache, tmp_path, 4, chats=False, controls=False)
    running = losses.run()
    first = next(running)
    with zeroed_pool(losses.passes.setup.adapter, Pool.SWA):
        passes = [first, next(running), next(running)]
    score = passes[2].scores["copying exact_match"]
    assert score == 0, f"expected the score 0 for copying without the window, got {score}"
    html = page(passes)
    expected = "copying: answers [0, 1, 2, 3] differ"
    assert expected in html, f"expected {expected!r} on the page, got the problems {passes[2].problems}"


@clause("REQ-3", "FLOW-9", needs=(Capability.STORAGE,))
def test_a_trial_reports_which_component_each_task_needs(
    adapter_path: str, open_cache: OpenCache, tmp_path: Path
) -> None:
    passes = list(trial(adapter_path, open_cache, tmp_path, 2, chats=False, controls=True).run())[len(NAMES) :]
    scores = {one.name: one.scores["copying exact_match"] for one in passes}
    expected = {f"{tier}, without {lost}": float(lost == "full") for lost in ("full", "swa") for tier in NAMES[2:5]}
    assert scores == expected, f"copying needs the window alone: expected {expected}, got {scores}"
    problems = {one.name: one.problems for one in passes if one.problems}
    without_window = {name for name in expected if name.endswith("swa")}
    assert not problems.keys() & without_window, f"expected hits and an effect of each lost window, got {problems}"
