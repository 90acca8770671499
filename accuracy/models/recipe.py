"""How a small model is built and trained: its layers, its tasks and the course of its lessons."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Cohere2Config, Cohere2ForCausalLM

from .alphabet import CHARACTERS
from .hybrid import HybridConfig, HybridForCausalLM
from .task import COPYING, RECALL, RUNNING, Task


@dataclass(frozen=True)
class Stage:
    """So many steps, with so many tokens of each task in each of them, in lines of the task's length."""

    steps: int
    tokens: Mapping[Task, int]
    lengths: Mapping[Task, int]


@dataclass(frozen=True)
class Recipe:
    """A model's class and configuration, and the stages of its training, which all start from `seed`."""

    model: Callable[[Any], torch.nn.Module]
    configuration: Callable[..., Any]
    settings: Mapping[str, Any]
    stages: tuple[Stage, ...]
    learning_rate: float
    seed: int

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What the model is trained on."""
        return tuple(self.stages[0].tokens)

    def untrained(self) -> Any:
        """The model as its training finds it, float32 on the CPU. Sets the seed of torch."""
        torch.manual_seed(self.seed)
        return self.model(self.configuration(**self.settings))


_SHARED = {
    "vocab_size": len(CHARACTERS),
    "hidden_size": 96,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": 16,
    "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    "initializer_range": 0.1,
    "logit_scale": 1.0,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def _stages(
    tasks: tuple[Task, ...], steps: tuple[int, ...], lengths: Mapping[Task, tuple[int, ...]]
) -> tuple[Stage, ...]:
    tokens = {task: 2048 if task is RECALL else 1024 for task in tasks}
    return tuple(
        Stage(count, tokens, {task: lengths[task][number] for task in tasks}) for number, count in enumerate(steps)
    )


RECIPES: Mapping[str, Recipe] = {
    "window": Recipe(
        model=Cohere2ForCausalLM,
        configuration=Cohere2Config,
        settings={**_SHARED, "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
        stages=_stages((RECALL, COPYING), (250, 150, 150), {RECALL: (64, 128, 256), COPYING: (64, 64, 64)}),
        learning_rate=2e-3,
        seed=0,
    ),
    "hybrid": Recipe(
        model=HybridForCausalLM,
        configuration=HybridConfig,
        settings={
            **_SHARED,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "sliding_attention", "full_attention"],
        },
        stages=_stages(
            (RECALL, COPYING, RUNNING),
            (250, 200, 200),
            {RECALL: (64, 128, 256), COPYING: (64, 64, 64), RUNNING: (16, 64, 256)},
        ),
        learning_rate=2e-3,
        seed=0,
    ),
}
"""The recipes of the models that ship, by name."""
