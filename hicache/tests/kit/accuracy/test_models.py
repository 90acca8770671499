"""The trained models answer their tasks, and fail each task when its component is erased."""

from __future__ import annotations

import dataclasses
import functools
from statistics import mean
from typing import Any

import numpy as np
import pytest
import torch

from accuracy.models.recipe import RECIPES, Recipe, Stage, save, trained
from accuracy.models.task import (
    ASSIGNMENTS,
    CHARACTERS,
    COPYING,
    DIGITS,
    LATEST,
    MARK,
    NO_LABEL,
    QUIET,
    RECALL,
    RUNNING,
    SPAN,
    Task,
    decoded,
    encoded,
)
from accuracy.models.train import INDEXER, score, training
from hicache.types import Component

QUESTIONS = 200
MIN_SCORE = 0.9
MIN_DROP = 0.2
"""The least fall of a task's score when its component is erased."""

CARRIED = [(name, task) for name, recipe in RECIPES.items() for task in recipe.tasks]
NEEDED = [(name, task, task.component.value) for name, task in CARRIED]
NEEDED += [("qwen3_next", RECALL, Component.MAMBA.value)]
NEEDED += [(name, RECALL, INDEXER) for name, recipe in RECIPES.items() if recipe.indexing is not None]
"""By model and task: the component, or the indexer, that the task needs."""

ANSWERS = {"glm_moe_dsa": 0.8}
"""The least score of the models that were trained for a shape. The others have MIN_SCORE."""


loaded = functools.cache(trained)


@functools.cache
def scored(name: str, task: str, erased: str | None) -> float:
    """The score of a model in one of its tasks."""
    asked = next(one for one in RECIPES[name].tasks if one.name == task)
    return score(loaded(name), asked.questions(seed=0, count=QUESTIONS), erased)


@pytest.mark.parametrize(("name", "task"), CARRIED, ids=lambda value: getattr(value, "name", value))
def test_a_trained_model_answers(name: str, task: Task) -> None:
    whole, least = scored(name, task.name, None), ANSWERS.get(name, MIN_SCORE)
    assert whole >= least, f"{name} answers {whole:.3f} of {task.name}, expected at least {least}"


@pytest.mark.parametrize(("name", "task", "lost"), NEEDED, ids=lambda value: getattr(value, "name", value))
def test_a_task_fails_without_its_component(name: str, task: Task, lost: str) -> None:
    whole, without = scored(name, task.name, None), scored(name, task.name, lost)
    assert whole - without >= MIN_DROP, (
        f"{name} answers {whole:.3f} of {task.name}, and {without:.3f} without {lost}: "
        f"expected {MIN_DROP} less, as the task is to show whether it was restored"
    )


def shortened(name: str, steps: int) -> Recipe:
    """A recipe with a few steps on all tasks, and small batches."""
    recipe = RECIPES[name]
    tasks = [dataclasses.replace(task, batch_tokens=256) for task in recipe.stages[-1].lengths]
    return dataclasses.replace(recipe, stages=(Stage(steps, dict.fromkeys(tasks, 64)),), indexing=None)


def test_the_fit_of_indexers_falls_and_leaves_other_weights() -> None:
    tasks = [dataclasses.replace(RECALL, batch_tokens=256)]
    stage = Stage(12, dict.fromkeys(tasks, 64))
    recipe = dataclasses.replace(shortened("glm_moe_dsa", steps=1), indexing=stage)
    model, before = recipe.untrained(), {}
    losses = []
    for step in training(recipe, model):
        losses.append(sum(step.losses.values()))
        if step.number == 0:
            before = {name: weights.clone() for name, weights in model.state_dict().items()}
    changed = {name for name, weights in model.state_dict().items() if not torch.equal(weights, before[name])}
    assert losses[-1] < losses[1], f"expected the loss of the indexers to fall, got {losses[1:]}"
    assert changed, "expected other weights of the indexers after the fit"
    assert all(".indexer." in name for name in changed), f"expected that indexers alone change, got {changed}"


@pytest.mark.parametrize("name", RECIPES)
def test_training_starts_to_learn(name: str) -> None:
    recipe = shortened(name, steps=30)
    losses = [sum(step.losses.values()) for step in training(recipe, recipe.untrained())]
    fall = mean(losses[:5]) - mean(losses[-5:])
    assert fall >= 0.25, f"expected the sum of losses to fall by a quarter nat in 30 steps, got {fall:.2f}: {losses}"


def test_training_is_deterministic() -> None:
    recipe = shortened("hybrid", steps=2)
    first, second = ([step.losses for step in training(recipe, recipe.untrained())] for _ in range(2))
    assert first == second, f"expected the same losses from the same seed, got {first} and {second}"


@pytest.mark.parametrize("name", RECIPES)
def test_a_saved_model_loads_again(name: str, tmp_path: Any) -> None:
    model = RECIPES[name].untrained().eval()
    save(model, name, tmp_path)
    again = trained(name, folder=tmp_path)
    for key, tensor in model.state_dict().items():
        rounded = tensor.to(RECIPES[name].stored).to(tensor.dtype)
        assert torch.equal(again.state_dict()[key], rounded), f"expected {key} of {name} as it was saved"


def test_weights_of_another_model_are_refused(tmp_path: Any) -> None:
    for name in ("hybrid", "window"):
        save(RECIPES[name].untrained(), name, tmp_path)
    (tmp_path / "window.safetensors").replace(tmp_path / "hybrid.safetensors")
    with pytest.raises(RuntimeError, match="size mismatch"):
        trained("hybrid", folder=tmp_path)


def test_the_alphabet_is_one_token_a_character() -> None:
    assert len(set(CHARACTERS)) == len(CHARACTERS), "expected each character once"
    assert decoded(encoded(CHARACTERS)) == CHARACTERS, "expected the encoded text"
    with pytest.raises(ValueError, match=r"does not have \['!'\]"):
        encoded("a!")


def test_a_copying_batch_labels_the_letter_one_span_before() -> None:
    batch = COPYING.batch(np.random.default_rng(3), 5, 64)
    lines, positions = np.nonzero(batch.labels != NO_LABEL)
    assert len(lines) > 5 * 20, f"expected labels at about a third of 320 positions, got {len(lines)}"
    expected = batch.tokens[lines, positions - SPAN]
    assert np.array_equal(batch.labels[lines, positions], expected), "expected as label the letter one span before"


def test_a_latest_batch_labels_the_letter_that_a_digit_had_last() -> None:
    batch = LATEST.batch(np.random.default_rng(3), 5, 64)
    for tokens, labels in zip(batch.tokens.tolist(), batch.labels.tolist(), strict=True):
        letters: dict[int, int] = {}
        for at in range(0, len(tokens), 2):
            expected = letters.get(tokens[at], NO_LABEL)
            assert labels[at : at + 2] == [expected, NO_LABEL], f"expected {expected} at {at} of {decoded(tokens)}"
            letters[tokens[at]] = tokens[at + 1]


def test_a_recall_batch_labels_the_letter_of_an_earlier_key() -> None:
    batch = RECALL.batch(np.random.default_rng(3), 5, 64)
    for tokens, labels in zip(batch.tokens.tolist(), batch.labels.tolist(), strict=True):
        letters = dict(zip(reversed(tokens[::2]), reversed(tokens[1::2]), strict=True))
        asked = [(tokens[at], label) for at, label in enumerate(labels) if at % 2 == 0 and label != NO_LABEL]
        assert asked, f"expected labels in {decoded(tokens)}"
        assert all(letters[key] == label for key, label in asked), (
            f"expected as label the letter of each key, got {asked}"
        )
        assert labels[1::2] == tokens[::2], f"expected the key before each letter, got {decoded(labels[1::2])}"


@pytest.mark.parametrize("task", [RECALL, COPYING, RUNNING, LATEST], ids=lambda task: task.name)
def test_a_prompt_without_its_query_fills_whole_pages(task: Task) -> None:
    question = task.questions(seed=1, count=1)[0]
    known = len(question.prompt) - question.query_length
    assert known % 64 == 0, f"{task.name}: expected whole pages of 64 tokens, got {known} tokens"


def test_the_answers_of_questions_are_right() -> None:
    copied = COPYING.questions(seed=1, count=1)[0]
    assert copied.prompt.endswith(copied.answer + MARK), f"expected the last {SPAN} letters, got {copied}"
    recalled = RECALL.questions(seed=1, count=1)[0]
    assert recalled.prompt[-1] + recalled.answer in recalled.prompt[:-1], f"expected the key's letter, got {recalled}"
    latest = LATEST.questions(seed=1, count=1)[0]
    at = latest.prompt[:-1].rindex(latest.prompt[-1])
    assert latest.prompt[at + 1] == latest.answer, f"expected the letter that the digit had last, got {latest}"
    assert at < 2 * (ASSIGNMENTS - QUIET), f"expected an assignment before the last {QUIET}, got number {at // 2}"
    running = RUNNING.questions(seed=1, count=1)[0]
    value = 0
    for digit in running.prompt:
        value ^= DIGITS.index(digit)
    assert DIGITS[value] == running.answer, f"expected {value}, got {running}"
