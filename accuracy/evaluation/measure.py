"""measure: what `hicache accuracy` runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import torch

from hicache.testing.adapter import load_adapter

from ..models.recipe import RECIPES
from .documents import DOCUMENTS
from .judged_pass import JudgedPass
from .passes import Room
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
) -> Iterator[JudgedPass]:
    """Each pass as it ends. `sizes`: of a page, of a chunk, FULL tokens and MAMBA states that there is room for."""
    subject = Subject(model, tuple(tasks), documents, getattr(torch, dtype), device, chats, Room(*sizes), adapter)
    with closing(subject.passes(load_adapter(adapter), folder)) as passes:
        yield from Trial(subject, passes, ranks, controls).run()


def own_tasks(model: str) -> list[str]:
    """What a trained model is asked when nothing is said: all that it has learnt. Empty for any other model."""
    if model not in RECIPES:
        return []
    learnt = [one.name for one in RECIPES[model].tasks]
    return [*learnt, *(name for name in DOCUMENTS if name in ("choice", "shots", "reading"))]
