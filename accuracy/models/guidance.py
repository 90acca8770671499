"""Guidance: what the training of a model adds to its labels: the token that an attention layer reads, and indexers.

A layer learns to find a letter by its key late, and suddenly. It learns it early when the loss also names the token
that has the answer. The selection of an indexer has no gradient: while a model is trained, each of its layers attends
to everything. At the end its indexers are fitted to what their layers attend to, as in DeepSeek's warm-up of DSA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from .task import NO_LABEL, Batch

EVERYTHING = 1 << 20
"""How many tokens an indexer selects while a model is trained."""

GUIDE_WEIGHT = 0.3
"""The share of the guidance in the loss."""

LEAST_SHARE = 1e-6


@dataclass(frozen=True)
class Guide:
    """`layer`: the attention layer that is guided, counted without those with states. `rate`: tokens of its entries."""

    layer: int
    rate: int


@dataclass
class Attention:
    """The attention layers of a model while it is trained, each over all tokens.

    `weights`: by layer, those of the last forward: [lines, heads, tokens, read]. `losses`: of its indexers.
    """

    weights: dict[int, torch.Tensor] = field(default_factory=dict)
    losses: list[torch.Tensor] = field(default_factory=list)


def guidance_loss(guide: Guide, attention: Attention, batch: Batch) -> torch.Tensor:
    """The negative logarithm of the attention from each label's position to what it is to read, on average."""
    rows, positions = np.nonzero(batch.read != NO_LABEL)
    read = batch.read[rows, positions]
    weights = attention.weights[guide.layer]
    if guide.rate > 1:
        read = read // guide.rate
        # An entry is read after its last token.
        whole = (positions + 1) // guide.rate > read
        rows, positions, read = rows[whole], positions[whole], read[whole]
        weights = weights[..., -(batch.tokens.shape[1] // guide.rate) :]
    return -(weights[rows, :, positions, read].mean(1) + LEAST_SHARE).log().mean() * GUIDE_WEIGHT


def indexer_of(attention: torch.nn.Module) -> Any:
    """The indexer of an attention layer: of its tokens, or of the entries of its compressor. None without one."""
    return getattr(attention, "indexer", None) or getattr(getattr(attention, "compressor", None), "indexer", None)


def attention_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The attention layers of a model, in order. Layers with states have another name."""
    return [module for name, module in model.named_modules() if name.endswith("self_attn")]


def indexers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """All indexers of a model."""
    return [found for layer in attention_layers(model) if (found := indexer_of(layer)) is not None]


@contextmanager
def watched(model: Any) -> Iterator[Attention]:
    """Every layer attends to everything, and its weights are kept, until the context ends."""
    attention, usual = Attention(), model.config._attn_implementation  # transformers has no public name
    model.set_attn_implementation("eager")  # the others return no weights
    with ExitStack() as stack:
        stack.callback(model.set_attn_implementation, usual)
        for number, layer in enumerate(attention_layers(model)):
            ranked, indexer = _RankedScores(), indexer_of(layer)
            if indexer is not None:
                stack.enter_context(patch.object(indexer, "index_topk", EVERYTHING))
                stack.enter_context(patch.object(indexer, "forward", _with_gradient(indexer, ranked)))
            stack.callback(layer.register_forward_hook(_keep(number, ranked, attention)).remove)
        yield attention


class _RankedScores(TorchFunctionMode):
    """Keeps what `Tensor.topk` is called on."""

    scores: torch.Tensor | None = None

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.topk:
            self.scores = args[0]
        return function(*args, **(kwargs or {}))


def _with_gradient(indexer: Any, ranked: _RankedScores) -> Callable[..., Any]:
    """The forward of an indexer, which trains the indexer alone and nothing below it."""
    plain = type(indexer).forward
    plain = getattr(plain, "__wrapped__", plain)  # GLM's is without gradient

    def forward(*args: Any, **options: Any) -> Any:
        detached = [one.detach() if isinstance(one, torch.Tensor) else one for one in args]
        with ranked:
            return plain(indexer, *detached, **options)

    return forward


def _keep(number: int, ranked: _RankedScores, attention: Attention) -> Callable[..., None]:
    def keep(_: Any, __: Any, output: Any) -> None:
        attention.weights[number] = output[1]
        if (scores := ranked.scores) is not None:
            read = output[1].detach()[..., -scores.shape[-1] :].mean(1)
            attention.losses.append(-torch.where(read > 0, read * scores.log_softmax(-1), 0).sum(-1).mean())

    return keep
