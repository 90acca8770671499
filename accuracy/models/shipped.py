"""Load and save the trained models: their weights and configurations in the folder `weights`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from .recipe import RECIPES

WEIGHTS = Path(__file__).parent / "weights"

_TIED, _EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"


def trained(name: str, dtype: torch.dtype = torch.float32, folder: Path = WEIGHTS) -> Any:
    """A trained model on the CPU, in evaluation mode.

    Raises:
        KeyError: no recipe has that name.
        RuntimeError: the names or shapes of the file's tensors are not those of the model.
    """
    recipe = RECIPES[name]
    configuration = recipe.configuration(**json.loads((folder / f"{name}.json").read_text(encoding="utf-8")))
    model = recipe.model(configuration)
    tensors = load_file(folder / f"{name}.safetensors")
    model.load_state_dict({**tensors, _TIED: tensors[_EMBEDDINGS]})
    return model.to(dtype).eval()


def save(model: Any, name: str, folder: Path = WEIGHTS) -> None:
    """Write a model's weights, float32, and its configuration. The head is tied to the embeddings and not written."""
    folder.mkdir(exist_ok=True)
    tensors = {key: tensor.contiguous() for key, tensor in model.state_dict().items() if key != _TIED}
    save_file(tensors, folder / f"{name}.safetensors")
    settings = json.dumps(dict(RECIPES[name].settings), indent=2)
    (folder / f"{name}.json").write_text(settings + "\n", encoding="utf-8")
