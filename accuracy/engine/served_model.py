"""ServedModel: a model that was checked to continue correctly from what the pools of a cache hold."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel

from .continuation_check import check_continuation
from .model_layout import ModelLayout
from .model_runner import ModelRunner


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """`runner`: computes its forwards. `layout`: what each of its layers caches, and in which pool."""

    runner: ModelRunner
    layout: ModelLayout

    @classmethod
    def of(cls, model: PreTrainedModel) -> ServedModel:
        """Inspect and check a model. Raises RefusedFamily, with the reason, for one that the engine cannot serve."""
        runner = ModelRunner(model)
        layout = ModelLayout.of(runner)
        check_continuation(runner, layout)
        return cls(runner, layout)
