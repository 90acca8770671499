"""Subject: a model and its vocabulary by name: one of the trained ones, or of the Hugging Face Hub."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ..engine.served_model import ServedModel
from ..models.recipe import RECIPES
from ..models.shipped import trained
from .vocabulary import AlphabetVocabulary, TokenizerVocabulary, Vocabulary


def open_subject(name: str, dtype: torch.dtype, device: str) -> tuple[ServedModel, Vocabulary]:
    """The model, ready to be served. Raises RefusedFamily, with the reason, for one that no cache can answer for."""
    if name in RECIPES:
        return ServedModel.of(trained(name, dtype).to(device)), AlphabetVocabulary()
    model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype).to(device).eval()
    return ServedModel.of(model), TokenizerVocabulary(AutoTokenizer.from_pretrained(name))
