"""measure: what `hicache accuracy` runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from hicache.testing.adapter import CacheAdapter

from ..models.recipe import RECIPES
from .documents import DOCUMENTS
from .judged_pass import JudgedPass
from .passes import Passes, Room
from .subject import open_subject
from .task_table import task
from .trial import Trial

DRAWN_DOCUMENTS = 16
"""Of each task of our own, unless told otherwise."""


def measure(  # noqa: PLR0913 - one keyword for each choice
    adapter: type[CacheAdapter],
    *,
    model: str,
    tasks: Sequence[str],
    documents: int | None,
    dtype: str,
    device: str,
    sizes: Sequence[int],
    chats: bool,
    folder: Path,
) -> Iterator[JudgedPass]:
    """Each pass as it ends. `sizes`: of a page, of a chunk, FULL tokens and MAMBA states that there is room for."""
    served, vocabulary = open_subject(model, getattr(torch, dtype), device)
    room = Room(*sizes)
    # A name that is not ours is one of lm-eval's.
    asked = [task(name, documents or DRAWN_DOCUMENTS) if name in DOCUMENTS else name for name in tasks]
    passes = Passes(served, vocabulary, asked, room, adapter, folder)
    try:
        yield from Trial(passes, room.page_size, documents, chats).run()
    finally:
        passes.stage.adapter.close()


def own_tasks(model: str) -> list[str]:
    """What a trained model is asked when nothing is said: all that it has learnt. Empty for any other model."""
    if model not in RECIPES:
        return []
    learnt = [one.name for one in RECIPES[model].tasks]
    return [*learnt, *(name for name in DOCUMENTS if name in ("choice", "shots", "reading"))]
