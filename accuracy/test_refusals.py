"""The families that the engine refuses: the error has the reason, and a defect of transformers is reproduced."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from hicache.testing.contract import clause

from .answers import check_close, prompt
from .engine.model_layout import RefusedFamily
from .engine.model_runner import ModelRunner
from .engine.served_model import ServedModel
from .families import BUG, REFUSALS

STOP, LENGTH = 32, 64


def _defects() -> Iterator[object]:
    for name, refusal in REFUSALS.items():
        if refusal.kind == BUG:
            mark = pytest.mark.xfail(raises=AssertionError, reason=f"{refusal.kind}: {refusal.reason}")
            yield pytest.param(name, id=name, marks=mark)


@clause("REQ-3")
@pytest.mark.parametrize("family", REFUSALS)
def test_an_unsupported_family_is_refused_with_its_reason(family: str) -> None:
    refusal = REFUSALS[family]
    model = refusal.family.open(torch.float32, "cpu")
    with pytest.raises(RefusedFamily) as refused:
        ServedModel.of(model)
    assert refused.value.model_type == refusal.family.model_type, f"expected its name, got {refused.value}"
    assert refusal.reason in refused.value.reason, f"expected {refusal.reason!r} in {refused.value.reason!r}"


@clause()
@pytest.mark.parametrize("family", list(_defects()))
def test_the_library_continues_correctly_from_its_own_cache(family: str) -> None:
    runner = ModelRunner(REFUSALS[family].family.open(torch.float32, "cpu"))
    tokens, other, cache = prompt(1, LENGTH), prompt(2, LENGTH), runner.new_cache()
    runner.forward(tokens[:STOP], 0, cache)
    # Another request is computed in between: it overwrites state that transformers keeps outside the cache.
    runner.forward(other, 0, runner.new_cache())
    check_close(
        f"{family} after {STOP} tokens",
        torch.float32,
        runner.forward(tokens, 0, None)[STOP:],
        runner.forward(tokens[STOP:], STOP, cache),
    )
