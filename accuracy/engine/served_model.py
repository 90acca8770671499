"""ServedModel: a model that was looked at, and goes on rightly from what the pools of a cache can keep."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel

from .model_layout import ModelLayout
from .model_runner import ModelRunner
from .proof import prove


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """`runner`: its forwards. `layout`: what each of its layers keeps, and where."""

    runner: ModelRunner
    layout: ModelLayout

    @classmethod
    def of(cls, model: PreTrainedModel) -> ServedModel:
        """Look at a model. Raises RefusedFamily, with the reason, for one that no cache can answer for."""
        runner = ModelRunner(model)
        layout = ModelLayout.of(runner)
        prove(runner, layout)
        return cls(runner, layout)
