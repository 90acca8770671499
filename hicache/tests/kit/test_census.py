"""The census finds every tensor with a row for each slot, and holds an adapter to what it declares."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch

from hicache.cli.stage import suite_folder
from hicache.errors import ConfigurationError
from hicache.testing.adapter import CacheAdapter
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.census import SlotTensor, find_slot_tensors
from hicache.testing.report import Outcome
from hicache.tests.kit.suite_runs import run_recorded
from hicache.tests.proof.mutants.census import FROM_HOST, FROM_STORAGE, THREE, TWO, DraftsNotRead, ExpertsLost
from hicache.types import Tier

PAGE = 4
COUNTS = {"full": 40, "swa": 24, "mamba": 7}


def found(axes: Mapping[str, int] | None = None, **roots: object) -> dict[str, SlotTensor]:
    return {one.path: one for one in find_slot_tensors(roots, COUNTS, PAGE, axes or {})}


def test_tensors_are_found_in_attributes_mappings_and_lists() -> None:
    engine = SimpleNamespace(
        kv=[torch.zeros(40, 2), torch.zeros(40, 2)],
        beside={"scales": torch.zeros(40, dtype=torch.float16), "experts": np.zeros((40, 3), dtype=np.int16)},
        window=SimpleNamespace(kv=torch.zeros(24, 2)),
        states=(torch.zeros(7, 8),),
        weights=torch.zeros(41, 2),
        name="engine",
    )
    engine.itself = engine
    seen = {path: one.component for path, one in found(engine=engine).items()}
    full = ("kv.0", "kv.1", "beside.scales", "beside.experts")
    expected = {f"engine.{name}": "full" for name in full} | {"engine.window.kv": "swa", "engine.states.0": "mamba"}
    assert seen == expected, f"expected {expected}, got {seen}"


@pytest.mark.parametrize(("length", "tokens"), [(40, 1), (20, 2), (10, 4)])
def test_a_row_may_have_the_slots_of_a_page_or_a_part_of_it(length: int, tokens: int) -> None:
    one = found(index=torch.arange(length, dtype=torch.uint8))["index"]
    assert (one.component, one.tokens_per_row) == ("full", tokens), f"expected {tokens} slots in a row, got {one}"
    page = one.read(np.arange(4, 8))
    assert page == bytes(range(4 // tokens, 8 // tokens)), f"expected the rows of the second page, got {page!r}"


def test_a_row_has_no_more_slots_than_a_page() -> None:
    assert not found(index=torch.zeros(5)), "expected none: rows of eight slots are longer than a page of four"


def test_another_axis_is_declared() -> None:
    pair = torch.zeros(2, 10, 4)
    assert not found(kv=pair), "expected none: the first axis has two rows"
    one = found({"k?": 1}, kv=pair)["kv"]
    assert one.rows.shape == (10, 2, 4), f"expected the axis of the slots first, got {one.rows.shape}"
    one.fill(0)
    assert pair[1].any(), "expected the tensor itself to be filled, in all its parts"


def test_memory_that_two_names_have_is_one_tensor() -> None:
    kv = torch.zeros(40, 2)
    assert [*found(kv=kv, array=kv.numpy(), view=kv.view(torch.uint8))] == ["kv"], "expected the first name alone"


def test_a_length_that_fits_two_components_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"kv has 6 rows, which fits \['full', 'swa'\]"):
        find_slot_tensors({"kv": torch.zeros(6)}, {"full": 12, "swa": 24}, PAGE, {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16, torch.uint8, torch.bool])
def test_every_turn_gives_every_row_other_bytes(dtype: torch.dtype) -> None:
    one, turns = found(kv=torch.zeros(40, 64, dtype=dtype))["kv"], []
    for turn in (0, 1, 0):
        one.fill(turn)
        turns.append([one.read(np.array([slot])) for slot in range(40)])
    assert turns[0] == turns[2], "expected the same bytes in the same turn"
    assert len({*turns[0], *turns[1]}) == 80, "expected other bytes in each row and turn"


class ExpertsDeclared(ExpertsLost):
    """Loses the experts, and says so."""

    not_restored: ClassVar[Mapping[str, Tier]] = {"pools.experts.*": Tier.HOST}


class DraftsDeclared(DraftsNotRead):
    """Has drafts on the host and not in storage, and says so."""

    not_restored: ClassVar[Mapping[str, Tier]] = {"pools.draft.*": Tier.STORAGE}


class RestoresMore(ReferenceAdapter):
    """Restores a pool that it declares as lost."""

    not_restored: ClassVar[Mapping[str, Tier]] = {"pools.draft.*": Tier.HOST}


class NamesNoRoots(ReferenceAdapter):
    """Shows nothing to the census."""

    def slot_roots(self) -> Mapping[str, object]:
        return {}


IN_STORAGE = f"{FROM_STORAGE}[{TWO}/ScriptedStorage-wait_complete-stepped]"


@pytest.mark.parametrize(
    ("adapter", "test", "told"),
    [
        (ExpertsDeclared, f"{FROM_HOST}[{THREE}]", ""),
        (DraftsDeclared, f"{FROM_HOST}[{TWO}]", ""),
        (DraftsDeclared, IN_STORAGE, ""),
        (RestoresMore, f"{FROM_HOST}[{TWO}]", r"rows than before in \[\]; declared .* \['pools\.draft\.raw\.0'\]"),
        (NamesNoRoots, f"{FROM_HOST}[{TWO}]", r"HOST-10: expected tensors of each component"),
    ],
)
def test_an_adapter_is_held_to_what_it_declares(
    pytester: pytest.Pytester, adapter: type[CacheAdapter], test: str, told: str
) -> None:
    path = f"{adapter.__module__}:{adapter.__name__}"
    record = run_recorded(pytester, str(suite_folder("conformance") / test), "--hicache-adapter", path)
    (one,) = record.executions
    assert (one.outcome is Outcome.FAILED) == bool(told), f"{adapter.__name__}: {one.outcome}: {one.reason}"
    assert re.search(told, one.reason), f"{adapter.__name__}: expected {told}, got {one.reason}"
