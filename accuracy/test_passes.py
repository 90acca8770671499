"""The trained models answer as in the first pass: from every tier, with failing storage, on ranks, and in a trial."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hicache.config import read_table
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.ranks.outcome import RanksFailedError
from hicache.types import Pool, Tier

from .answers import GATES
from .cache_setup import OpenCache
from .engine.engine import Hits
from .evaluation.comparison import (
    ComparedPass,
    differences,
    missing_hits,
    missing_partial_hits,
    same_chunks,
    untested_tasks,
)
from .evaluation.documents import FOLDER
from .evaluation.evaluate import ScoredPass
from .evaluation.page import meaning, render_page
from .evaluation.passes import CacheSize, uncached_pass, zeroed_pools
from .evaluation.processes import LOST_PAGES, ask_new_process, ask_ranks, compared_ranks
from .evaluation.subject import Subject
from .evaluation.trial import Trial

QUESTIONS = 16
SIZE = CacheSize(page_size=16, chunk_tokens=64, tokens=1 << 15, states=1024)
SMALL_SIZE = replace(SIZE, tokens=1 << 12, states=64)
BASELINE = read_table(f"@{FOLDER.parent / 'baseline.toml'}")

RANK_QUESTIONS = 8
"""Questions of each task. Of the 16 requests the lost pages affect some, and not all."""

RANK_PASSES = ["first", Tier.HOST.value, Tier.STORAGE.value, LOST_PAGES]
TRIAL_PASSES = ["first", "one forward", "device", "host", "storage", "faults", "after faults"]

each_model = pytest.mark.parametrize("name", BASELINE)
each_dtype = pytest.mark.parametrize("dtype", GATES, ids=["float32", "bfloat16"])


def subject(name: str, dtype: torch.dtype, adapter_path: str) -> Subject:
    return Subject(name, tuple(BASELINE[name]), None, QUESTIONS, dtype, "cpu", False, SIZE, adapter_path)


def below_baseline(name: str, scored: ScoredPass) -> list[str]:
    """The scores that are worse than the baseline by more than one answer."""
    lost = []
    for task, measures in BASELINE[name].items():
        for measure, expected in measures.items():
            score = scored.scores[f"{task} {measure}"]
            # Fewer bits are better. Their last digits differ from machine to machine.
            worse = score - expected if measure == "bits_per_byte" else expected - score
            if worse > (1e-3 if measure == "bits_per_byte" else 1 / QUESTIONS):
                lost.append(f"{name}: {task} {measure}: expected {expected}, got {score}")
    return lost


@clause("REQ-3", "HOST-7", "FLOW-9", "FLOW-10", needs=(Capability.STORAGE,))
@each_dtype
@each_model
def test_every_tier_answers_as_the_first_pass(
    name: str, dtype: torch.dtype, adapter_path: str, open_cache: OpenCache, tmp_path: Path
) -> None:
    own = subject(name, dtype, adapter_path)
    passes = own.passes(open_cache, tmp_path)
    first = own.ask(passes)
    wrong = list(
        differences("in one forward", dtype, uncached_pass(passes.setup.model.runner, first), first, same_bytes=False)
    )
    if dtype is torch.float32:
        wrong += below_baseline(name, first)
    for tier in Tier:
        if tier is Tier.STORAGE:
            with passes.released():
                later = ask_new_process(own, tmp_path, first)
        else:
            passes.drop_above(tier)
            later = own.ask(passes)
        wrong += differences(tier.value, dtype, first, later, same_bytes=True)
        wrong += missing_hits(tier.value, tier, SIZE.page_size, later)
        same = [same_chunks(*pair) for pair in zip(first.requests, later.requests, strict=True)]
        assert all(same), (
            f"expected the same chunks in every request, so that logits are compared exactly; "
            f"{same.count(False)} of {len(same)} requests have other chunks"
        )
    assert not wrong, "REQ-3: expected the same answers to the same questions, got:\n" + "\n".join(wrong)


@clause("REQ-3", "FLOW-9", needs=(Capability.STORAGE,))
@each_model
def test_failing_storage_answers_as_the_first_pass(
    name: str, adapter_path: str, open_cache: OpenCache, tmp_path: Path
) -> None:
    own = subject(name, torch.float32, adapter_path)
    passes = own.passes(open_cache, tmp_path)
    first = own.ask(passes)
    passes.reopen_with_faults()
    faulty = own.ask(passes)
    passes.drop_above(Tier.STORAGE)
    after = own.ask(passes)
    wrong = list(differences("faults", torch.float32, first, faulty, same_bytes=False))
    wrong += missing_partial_hits("faults", SIZE.page_size, faulty)
    wrong += differences("after faults", torch.float32, first, after, same_bytes=False)
    wrong += missing_hits("after faults", Tier.STORAGE, SIZE.page_size, after)
    assert not wrong, "REQ-3: expected the same answers to the same questions, got:\n" + "\n".join(wrong)


def rank_subject(adapter_path: str) -> Subject:
    return Subject(
        "hybrid", ("recall", "running"), None, RANK_QUESTIONS, torch.float32, "cpu", False, SMALL_SIZE, adapter_path
    )


def first_of_one_rank(own: Subject, open_cache: OpenCache, folder: Path) -> ScoredPass:
    """The first pass, over a cache of one rank."""
    return own.ask(own.passes(open_cache, folder))


@clause("REQ-3", "RANK-1", "FETCH-7", needs=(Capability.STORAGE, Capability.RANKS))
def test_two_ranks_answer_as_one_alone(adapter_path: str, open_cache: OpenCache, tmp_path: Path) -> None:
    own = rank_subject(adapter_path)
    first = first_of_one_rank(own, open_cache, tmp_path)
    by_rank = ask_ranks(own, 2, first)
    assert [list(own) for own in by_rank] == [RANK_PASSES] * 2, f"expected {RANK_PASSES} of each of two ranks"
    compared = list(compared_ranks(first, by_rank, torch.float32, SMALL_SIZE.page_size))
    wrong = [problem for one in compared for problem in one.problems]
    assert not wrong, "REQ-3: expected the same answers to the same questions, got:\n" + "\n".join(wrong)


@clause()
def test_a_rank_with_other_hits_is_reported(adapter_path: str, open_cache: OpenCache, tmp_path: Path) -> None:
    first = first_of_one_rank(rank_subject(adapter_path), open_cache, tmp_path)
    other = replace(first, requests=[replace(one, hits=Hits(SMALL_SIZE.page_size, 0, 0)) for one in first.requests])
    (compared,) = compared_ranks(first, [{"first": first}, {"first": other}], torch.float32, SMALL_SIZE.page_size)
    expected = (
        f"rank 1 beside rank 0: first: request 0: expected {first.requests[0].hits}, got {other.requests[0].hits}"
    )
    assert expected in compared.problems, f"expected {expected!r}, got {compared.problems}"


@clause()
def test_the_traceback_of_another_process_is_reported(adapter_path: str, open_cache: OpenCache, tmp_path: Path) -> None:
    own = rank_subject(adapter_path)
    first = first_of_one_rank(own, open_cache, tmp_path)
    elsewhere = replace(own, adapter="hicache.testing.caches.dictionary:DictionaryAdapter")
    with pytest.raises(RanksFailedError, match=r"(?s)Traceback.*ConfigurationError: no cache of"):
        ask_new_process(elsewhere, tmp_path, first)


def trial(
    adapter_path: str,
    open_cache: OpenCache,
    folder: Path,
    documents: int,
    *,
    chats: bool,
    controls: bool,
    size: CacheSize = SMALL_SIZE,
) -> Trial:
    subject = Subject("window", ("copying",), None, documents, torch.float32, "cpu", chats, size, adapter_path)
    return Trial(subject, subject.passes(open_cache, folder), 1, controls)


def page(passes: list[ComparedPass]) -> str:
    return render_page("window", {"dtype": "float32"}, passes)


@clause("REQ-3", "FLOW-9", needs=(Capability.STORAGE,))
@pytest.mark.parametrize("chats", [False, True], ids=["plain", "chat"])
def test_a_trial_goes_through_every_pass(chats: bool, adapter_path: str, open_cache: OpenCache, tmp_path: Path) -> None:
    passes = list(trial(adapter_path, open_cache, tmp_path, 2, chats=chats, controls=False).run())
    assert [one.name for one in passes] == TRIAL_PASSES, f"expected {TRIAL_PASSES}, got {[one.name for one in passes]}"
    wrong = [problem for one in passes for problem in one.problems]
    assert not wrong, "REQ-3: expected the same answers to the same questions, got:\n" + "\n".join(wrong)
    counted = {sum(one.tokens_by_nats.values()) for one in passes}
    assert counted == {2 * 8}, f"expected 16 compared tokens, two answers of eight letters, got {counted}"
    assert passes[2].wait_share is not None, "expected a share of waiting time for prompts that were computed once"
    html = page(passes)
    assert "Every pass agrees with the first one" in html, "expected the verdict on the page"
    assert not untested_tasks(passes), f"expected hits of every task, {untested_tasks(passes)} had none"
    assert all(f"<th>{name}</th>" in html for name in TRIAL_PASSES), f"expected a row for each of {TRIAL_PASSES}"
    untold = [name for name in TRIAL_PASSES if meaning(name) not in html]
    assert not untold, f"expected the meaning of each pass on the page, {untold} lack it"


@clause(needs=(Capability.STORAGE,))
def test_a_task_whose_prompts_never_hit_does_not_agree_but_tested_nothing(
    adapter_path: str, open_cache: OpenCache, tmp_path: Path
) -> None:
    size = replace(SMALL_SIZE, page_size=256, chunk_tokens=256)
    passes = list(trial(adapter_path, open_cache, tmp_path, 1, chats=False, controls=False, size=size).run())
    hits = [one.hits.total for one in passes]
    assert not any(hits), f"expected prompts that are shorter than a page of 256 tokens, got hits of {hits}"
    assert untested_tasks(passes) == ["copying"], f"expected copying, got {untested_tasks(passes)}"
    html = page(passes)
    assert "No task was tested" in html, "expected the verdict that nothing was tested"
    assert "agrees with the first<br>" not in html, "expected no pass to agree, as none read from the cache"


@clause("REQ-3", "FLOW-9", needs=(Capability.STORAGE,))
def test_a_trial_reports_differences(adapter_path: str, open_cache: OpenCache, tmp_path: Path) -> None:
    losses = trial(adapter_path, open_cache, tmp_path, 4, chats=False, controls=False)
    running = losses.run()
    first = next(running)
    with zeroed_pools(losses.passes.setup.adapter, Pool.SWA):
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
    passes = list(trial(adapter_path, open_cache, tmp_path, 2, chats=False, controls=True).run())[len(TRIAL_PASSES) :]
    scores = {one.name: one.scores["copying exact_match"] for one in passes}
    expected = {
        f"{tier}, without {lost}": float(lost == "full") for lost in ("full", "swa") for tier in TRIAL_PASSES[2:5]
    }
    assert scores == expected, f"copying needs the window alone: expected {expected}, got {scores}"
    problems = {one.name: one.problems for one in passes if one.problems}
    without_window = {name for name in expected if name.endswith("swa")}
    assert not problems.keys() & without_window, f"expected hits and an effect of each lost window, got {problems}"
