"""Subject: a model, what it is asked and over which cache, all by name, so that every process opens the same."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ..engine.served_model import ServedModel
from ..models.recipe import RECIPES
from ..models.shipped import trained
from ..stage import OpenCache
from .documents import DOCUMENTS
from .passes import Passes, Room
from .scored_pass import ScoredPass
from .task_table import task
from .vocabulary import AlphabetVocabulary, TokenizerVocabulary, Vocabulary

DRAWN_DOCUMENTS = 16
"""Of each task of our own, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Subject:
    """`model`: a trained one, or of the Hugging Face Hub. `tasks`: ours, or lm-eval's.

    `documents`: of each task, at most, or None for no limit. `device`: as torch names it. `chats`: by the chat
    template. `adapter`: of the cache, as `package.module:Class`.
    """

    model: str
    tasks: tuple[str, ...]
    documents: int | None
    dtype: torch.dtype
    device: str
    chats: bool
    room: Room
    adapter: str

    def passes(self, open_cache: OpenCache, folder: Path) -> Passes:
        """The model over an empty cache, with its storage in a folder.

        Raises RefusedFamily, with the reason, for a model that no cache can answer for.
        """
        model, vocabulary = opened(self.model, self.dtype, self.device)
        # A name that is not ours is one of lm-eval's.
        count = self.documents or DRAWN_DOCUMENTS
        asked = [task(name, count) if name in DOCUMENTS else name for name in self.tasks]
        return Passes(model, vocabulary, asked, self.room, open_cache, folder)

    def ask(self, passes: Passes) -> ScoredPass:
        """All of it, over the cache as it is."""
        return passes.ask(limit=self.documents, chats=self.chats)


@lru_cache(maxsize=4)
def opened(name: str, dtype: torch.dtype, device: str) -> tuple[ServedModel, Vocabulary]:
    """A model and its vocabulary by name, opened once in a process."""
    if name in RECIPES:
        return ServedModel.of(trained(name, dtype).to(device)), AlphabetVocabulary()
    model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype).to(device).eval()
    return ServedModel.of(model), TokenizerVocabulary(AutoTokenizer.from_pretrained(name))
