"""The census finds every tensor with a row for each slot, and holds an adapter to what it declares."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch

from hicache.errors import ConfigurationError
from hicache.testing.adapter import CacheAdapter
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.census import SlotTensor, find_slot_tensors
from hicache.tests.proof.changed_source import Change
from hicache.tests.proof.forked_runs import ForkServer
from hicache.tests.proof.mutant_table import BY_SLUG
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


class ExpertsDeclared(ReferenceAdapter):
    """Says that it loses the experts."""

    not_restored: ClassVar[Mapping[str, Tier]] = {"pools.experts.*": Tier.HOST}


class DraftsDeclared(ReferenceAdapter):
    """Says that it has drafts on the host and not in storage."""

    not_restored: ClassVar[Mapping[str, Tier]] = {"pools.draft.*": Tier.STORAGE}


class RestoresMore(ReferenceAdapter):
    """Restores a pool that it declares as lost."""

    not_restored: ClassVar[Mapping[str, Tier]] = {"pools.draft.*": Tier.HOST}


class NamesNoRoots(ReferenceAdapter):
    """Shows nothing to the census."""

    def slot_roots(self) -> Mapping[str, object]:
        return {}


EXPERTS, DRAFTS = BY_SLUG["routed-experts-are-lost"], BY_SLUG["drafts-are-not-read-from-storage"]
OF_DRAFTS = BY_SLUG["a-compressed-index-is-lost"].test
"""On the host, in the configuration that has a draft model."""


@pytest.mark.parametrize(
    ("adapter", "changes", "test", "told"),
    [
        (ExpertsDeclared, EXPERTS.changes, EXPERTS.test, ""),
        (DraftsDeclared, DRAFTS.changes, OF_DRAFTS, ""),
        (DraftsDeclared, DRAFTS.changes, DRAFTS.test, ""),
        (RestoresMore, (), OF_DRAFTS, r"rows than before in \[\]; declared .* \['pools\.draft\.raw\.0'\]"),
        (NamesNoRoots, (), OF_DRAFTS, r"HOST-10: expected tensors of each component"),
    ],
)
def test_an_adapter_is_held_to_what_it_declares(
    fork_server: ForkServer, adapter: type[CacheAdapter], changes: tuple[Change, ...], test: str, told: str
) -> None:
    run = fork_server.run(changes, test, "--hicache-adapter", f"{adapter.__module__}:{adapter.__name__}")
    if told:
        assert re.search(told, "\n".join(run.reasons)), f"{adapter.__name__}: expected {told}, got {run}"
    else:
        assert (run.passed, run.reasons) == (1, []), f"{adapter.__name__}: {run}"
