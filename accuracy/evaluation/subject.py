"""Subject: a model, its tasks and its cache, all by name, so that every process opens the same."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ..cache_setup import OpenCache
from ..engine.served_model import ServedModel
from ..models.recipe import RECIPES, trained
from .documents import DOCUMENTS, task
from .evaluate import ScoredPass
from .passes import CacheSize, Passes
from .public_tasks import load_public_tasks
from .vocabulary import AlphabetVocabulary, TokenizerVocabulary, Vocabulary

DEFAULT_DOCUMENTS = 16
"""How many documents each task of this suite has by default."""


@dataclass(frozen=True, slots=True)
class Subject:
    """`model`: a trained model of this suite, a folder of a saved model, or a name of the Hugging Face Hub.

    `tasks`: of this suite, or of lm-eval. `include_path`: a folder of task files, searched before those of lm-eval.
    `documents`: the most documents of each task, None for no limit. `device`: a device of torch. `chats`: whether
    prompts are formatted by the chat template. `adapter`: of the cache, as `package.module:Class`. `batch_size`: how
    many requests one forward may compute.
    """

    model: str
    tasks: tuple[str, ...]
    include_path: Path | None
    documents: int | None
    dtype: torch.dtype
    device: str
    chats: bool
    size: CacheSize
    adapter: str
    batch_size: int = 1

    def passes(self, open_cache: OpenCache, folder: Path) -> Passes:
        """The passes of the model over an empty cache, with its storage in a folder.

        Raises RefusedFamily, with the reason, for a model that the engine cannot serve, ConfigurationError for an
        unknown task, and OSError for a model or documents that are not found.
        """
        model, vocabulary = opened(self.model, self.dtype, self.device)
        count = self.documents or DEFAULT_DOCUMENTS
        tasks = [task(name, count) for name in self.tasks if name in DOCUMENTS]
        tasks += load_public_tasks([name for name in self.tasks if name not in DOCUMENTS], self.include_path)
        return Passes(model, vocabulary, tasks, self.size, open_cache, folder)

    def ask(self, passes: Passes) -> ScoredPass:
        """Evaluate all tasks over the cache in its current state."""
        return passes.ask(limit=self.documents, chats=self.chats, batch_size=self.batch_size)


@lru_cache(maxsize=4)
def opened(name: str, dtype: torch.dtype, device: str) -> tuple[ServedModel, Vocabulary]:
    """A model and its vocabulary by name, cached in the process."""
    if name in RECIPES:
        return ServedModel.of(trained(name, dtype).to(device)), AlphabetVocabulary()
    model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype).to(device).eval()
    return ServedModel.of(model), TokenizerVocabulary(AutoTokenizer.from_pretrained(name))
