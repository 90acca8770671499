"""A whole trial, and the page that tells of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import Pool

from .evaluation.judged_pass import JudgedPass
from .evaluation.losing import losing
from .evaluation.page import render_page
from .evaluation.passes import Room
from .evaluation.subject import Subject
from .evaluation.trial import Trial
from .stage import OpenCache

ROOM = Room(page_size=16, chunk_tokens=64, tokens=1 << 12, states=64)
NAMES = ["first", "at once", "device", "host", "storage", "faults", "after faults"]


def trial(
    adapter_path: str, open_cache: OpenCache, folder: Path, documents: int, *, chats: bool, controls: bool
) -> Trial:
    subject = Subject("window", ("copying",), documents, torch.float32, "cpu", chats, ROOM, adapter_path)
    return Trial(subject, subject.passes(open_cache, folder), 1, controls)


def page(passes: list[JudgedPass]) -> str:
    return render_page("window", {"dtype": "float32"}, passes)


@clause("REQ-3", "FLOW-9", needs=(Capability.STORAGE,))
@pytest.mark.parametrize("chats", [False, True], ids=["plain", "chat"])
def test_a_trial_goes_through_every_pass(chats: bool, adapter_path: str, open_cache: OpenCache, tmp_path: Path) -> None:
    passes = list(trial(adapter_path, open_cache, tmp_path, 2, chats=chats, controls=False).run())
    assert [one.name for one in passes] == NAMES, f"expected {NAMES}, got {[one.name for one in passes]}"
    wrong = [problem for one in passes for problem in one.problems]
    assert not wrong, "REQ-3: the same questions, and other answers:\n" + "\n".join(wrong)
    counted = {sum(one.tokens_apart.values()) for one in passes}
    assert counted == {2 * 8}, f"two answers of eight letters are compared, got {counted}"
    assert passes[2].wait_share is not None, "the first pass waited for prompts, and the second had them cached"
    told = page(passes)
    assert "Every pass answered as the first one" in told, "expected the verdict on the page"
    assert all(f"<th>{name}</th>" in told for name in NAMES), f"expected a row of each of {NAMES}"


@clause("REQ-3", "FLOW-9", needs=(Capability.STORAGE,))
def test_a_trial_tells_what_differs(adapter_path: str, open_cache: OpenCache, tmp_path: Path) -> None:
    losses = trial(adapter_path, open_cache, tmp_path, 4, chats=False, controls=False)
    running = losses.run()
    first = next(running)
    with losing(losses.passes.stage.adapter, Pool.SWA):
        passes = [first, next(running), next(running)]
    assert passes[2].scores["copying exact_match"] == 0, f"without the window nothing is copied: {passes[2].scores}"
    told = page(passes)
    assert "copying: answers [0, 1, 2, 3] differ" in told, f"expected what differs on the page: {passes[2].problems}"


@clause("REQ-3", "FLOW-9", needs=(Capability.STORAGE,))
def test_a_trial_tells_what_each_component_carries(adapter_path: str, open_cache: OpenCache, tmp_path: Path) -> None:
    passes = list(trial(adapter_path, open_cache, tmp_path, 2, chats=False, controls=True).run())[len(NAMES) :]
    scores = {one.name: one.scores["copying exact_match"] for one in passes}
    expected = {f"{tier}, without {lost}": float(lost == "full") for lost in ("full", "swa") for tier in NAMES[2:5]}
    assert scores == expected, f"the window carries copying, and nothing else does: expected {expected}, got {scores}"
    told = {one.name: one.problems for one in passes if one.problems}
    assert not told.keys() & {name for name in expected if name.endswith("swa")}, f"each was seen, and served: {told}"
