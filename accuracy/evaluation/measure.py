"""measure: run the passes of `hicache accuracy`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import torch

from hicache.testing.adapter import load_adapter

from ..models.recipe import RECIPES
from .compared_pass import ComparedPass
from .documents import DOCUMENTS
from .passes import CacheSize
from .subject import Subject
from .trial import Trial


def measure(  # noqa: PLR0913 - one keyword for each choice
    adapter: str,
    *,
    model: str,
    tasks: Sequence[str],
    documents: int | None,
    dtype: str,
    device: str,
    sizes: Sequence[int],
    chats: bool,
    ranks: int,
    controls: bool,
    folder: Path,
) -> Iterator[ComparedPass]:
    """Yield each pass when it has ended. `sizes`: tokens of a page and of a chunk, capacity of FULL and of MAMBA."""
    subject = Subject(model, tuple(tasks), documents, getattr(torch, dtype), device, chats, CacheSize(*sizes), adapter)
    with closing(subject.passes(load_adapter(adapter), folder)) as passes:
        yield from Trial(subject, passes, ranks, controls).run()


def own_tasks(model: str) -> list[str]:
    """The default tasks of a trained model: all that it was trained on, and their variants. Empty for other models."""
    if model not in RECIPES:
        return []
    learnt = [one.name for one in RECIPES[model].tasks]
    return [*learnt, *(name for name in DOCUMENTS if name in ("choice", "shots", "reading"))]
