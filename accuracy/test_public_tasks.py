"""Public tasks without network: a saved model, lm-eval's files of gsm8k and mmlu, and local data in their schema."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import datasets
import pytest
import torch
import transformers
from lm_eval.tasks import TaskManager

from hicache.errors import ConfigurationError
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import Tier

from .cache_setup import OpenCache
from .evaluation import public_tasks
from .evaluation.comparison import compared, differences, missing_hits
from .evaluation.passes import CacheSize
from .evaluation.subject import Subject, opened
from .families import FAMILIES
from .public_data import QUESTIONS, SUBJECTS, write_model, write_public_data, write_task_files

CHOICES = 4
SHAPES = ("qwen3_next", "glm_moe_dsa", "deepseek_v4")
"""Architectures whose caches have states, an indexer, or windows with compressed entries."""

PASSES = ("first", "one forward", "device", "host", "storage", "faults", "after faults")
SIZE = CacheSize(page_size=16, chunk_tokens=64, tokens=1 << 12, states=64)


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model, the task files and the documents."""
    folder = tmp_path_factory.mktemp("public")
    write_public_data(folder)
    write_task_files(folder / "tasks")
    write_model(folder / "model", "qwen3")
    return folder


@pytest.fixture
def inside(public: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same as the current directory, with a cache of `datasets` of its own."""
    monkeypatch.chdir(public)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", public / "cache")
    return public


def offline(folder: Path) -> Mapping[str, str]:
    """The environment of a process that finds the adapter, and has no network and an empty cache of `datasets`."""
    own = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache")}
    return {**os.environ, **own, "COLUMNS": "200", "PYTHONPATH": os.pathsep.join(sys.path)}


@clause("REQ-3", "HOST-7", "FLOW-9", needs=(Capability.STORAGE,))
def test_the_command_asks_a_saved_model_public_tasks(public: Path, adapter_path: str) -> None:
    command = [sys.executable, "-m", "hicache", "accuracy", "--model", "model", "--tasks", "gsm8k,mmlu"]
    command += ["--include-path", "tasks", "--adapter", adapter_path]
    ended = subprocess.run(command, cwd=public, env=offline(public), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"REQ-3: expected 0, got {ended.returncode}:\n{ended.stdout}\n{ended.stderr}"
    missing = [name for name in PASSES if f"{name}: " not in ended.stdout]
    assert not missing, f"expected a line for each pass, {missing} lack one:\n{ended.stdout}"
    page = (public / "reports" / "accuracy.html").read_text(encoding="utf-8")
    unnamed = [name for name in ("gsm8k", "mmlu", *(f"mmlu_{one}" for one in SUBJECTS)) if name not in page]
    assert not unnamed, f"expected each task on the page, {unnamed} are missing"
    untold = [name for name in ("gsm8k", "mmlu", "mmlu_stem") if f"│ {name} " not in ended.stdout]
    assert not untold, f"expected the figures of each task and group, {untold} have none:\n{ended.stdout}"


@clause("REQ-3", needs=(Capability.STORAGE,))
def test_a_second_pass_computes_what_is_no_whole_page(
    inside: Path, adapter_path: str, open_cache: OpenCache, tmp_path: Path
) -> None:
    own = Subject("model", ("gsm8k", "mmlu"), inside / "tasks", None, torch.float32, "cpu", False, SIZE, adapter_path)
    passes = own.passes(open_cache, tmp_path)
    first, second = own.ask(passes), own.ask(passes)
    wrong = [*differences("second", torch.float32, first, second, same_bytes=True)]
    wrong += missing_hits("second", Tier.DEVICE, SIZE.page_size, second)
    assert not wrong, "REQ-3: expected the same answers to the same questions, got:\n" + "\n".join(wrong)
    asked = QUESTIONS + CHOICES * QUESTIONS * len(SUBJECTS)
    assert len(first.requests) == asked, f"expected {asked} requests, one for each choice, got {len(first.requests)}"
    forwards = [sum(len(request.ends) for request in one.requests) for one in (first, second)]
    pairs = zip(first.requests, second.requests, strict=True)
    cached = sum(end <= later.hits.total for one, later in pairs for end in one.ends)
    assert forwards[0] - forwards[1] == cached > 0, (
        f"REQ-3: expected {cached} forwards less than the {forwards[0]} of the first pass, got {forwards[1]}"
    )
    figures = compared("second", first, second, wrong).parts
    subjects = [figures[f"mmlu_{subject}"].hits.device for subject in SUBJECTS]
    assert figures["mmlu"].hits.device == sum(subjects) > 0, f"expected the sum of {subjects}, got {figures['mmlu']}"
    total = figures["gsm8k"].hits.device + figures["mmlu"].hits.device
    assert total == second.hits.device, f"expected {second.hits.device} hit tokens in all tasks, got {total}"


@pytest.fixture(params=["written", "cached"])
def task_files(request: pytest.FixtureRequest, public: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The task files, with the documents that are written here, or those that an earlier download has left."""
    if request.param == "written":
        request.getfixturevalue("inside")
    else:
        monkeypatch.chdir(tmp_path)
        for settings in ("huggingface_hub.constants", "datasets.config"):
            monkeypatch.setattr(f"{settings}.HF_HUB_OFFLINE", True)
    return public / "tasks"


@clause("REQ-3", "HOST-7", "FLOW-9", needs=(Capability.STORAGE, Capability.SIDECARS))
@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_answers_public_tasks_from_storage_as_in_the_first_pass(
    shape: str, task_files: Path, adapter_path: str, open_cache: OpenCache, tmp_path: Path
) -> None:
    if not FAMILIES[shape].is_known:
        pytest.skip(f"transformers {transformers.__version__} has no {shape}")
    write_model(tmp_path / "model", shape)
    model = str(tmp_path / "model")
    own = Subject(model, ("gsm8k", "mmlu"), task_files, QUESTIONS, torch.float32, "cpu", False, SIZE, adapter_path)
    try:
        passes = own.passes(open_cache, tmp_path / "pages")
    except OSError as error:
        pytest.skip(
            f"gsm8k and mmlu are not in the local cache of data sets, {datasets.config.HF_DATASETS_CACHE}: {error}"
        )
    first = own.ask(passes)
    passes.drop_above(Tier.STORAGE)
    later = own.ask(passes)
    wrong = [*differences(shape, torch.float32, first, later, same_bytes=True)]
    wrong += missing_hits(shape, Tier.STORAGE, SIZE.page_size, later)
    assert not wrong, "REQ-3: expected the same answers to the same questions, got:\n" + "\n".join(wrong)
    assert later.hits.storage, f"expected prompts that are longer than a page, got {later.hits}"


@clause("REQ-3", needs=(Capability.STORAGE,))
def test_an_answer_is_what_was_generated_and_not_what_a_filter_left(
    inside: Path, adapter_path: str, open_cache: OpenCache, tmp_path: Path
) -> None:
    own = Subject("model", ("gsm8k",), inside / "tasks", None, torch.float32, "cpu", False, SIZE, adapter_path)
    passes = own.passes(open_cache, tmp_path)
    answered = own.ask(passes)
    _, vocabulary = opened(own.model, own.dtype, own.device)
    generated = [vocabulary.decode(one.tokens[one.reusable_tokens + 1 :].tolist()) for one in answered.requests]
    answers = answered.answers["gsm8k"]
    assert len(answers) == QUESTIONS, f"expected an answer to each of {QUESTIONS} questions, got {answers}"
    assert all(map(str.startswith, answers, generated)), f"expected the texts {generated}, got {answers}"


def test_a_task_that_is_in_no_file_is_refused(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The files of lm-eval take seconds to read: here are none.
    files = partial(TaskManager, include_defaults=False)
    monkeypatch.setattr(public_tasks, "_task_files", lambda folder: files(include_path=folder))
    with pytest.raises(ConfigurationError, match=r"no task or group 'gsm9k' in .*tasks or in lm-eval"):
        public_tasks.load_public_tasks(["gsm9k"], public / "tasks")
    with pytest.raises(ConfigurationError, match="no task or group 'gsm8k' in lm-eval"):
        public_tasks.load_public_tasks(["gsm8k"], None)
