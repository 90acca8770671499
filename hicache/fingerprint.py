"""fingerprint_of_model: a digest of what decides the KV of a model, for `StorageConfig.model_fingerprint`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from hicache.config import read_table
from hicache.errors import ConfigurationError

NEUTRAL = frozenset(
    {
        *("_commit_hash", "_name_or_path", "transformers_version"),
        *("output_attentions", "output_hidden_states", "return_dict", "torchscript", "use_cache"),
    }
)
"""The keys of a configuration that do not change KV: where it is from, and what a call returns."""

FILE = "config.json"


def fingerprint_of_model(
    config: Mapping[str, Any] | str | PathLike[str],
    *,
    revision: str,
    dtype: str | None = None,
    quantization: str | None = None,
) -> str:
    """64 hex digits for a model, which differ from those of a model with other KV for the same tokens.

    `config`: the model's configuration, as in Hugging Face's `config.json`: a mapping, the path of the file, or that of
    its folder. Every key counts, such as those of RoPE, also one that is not known here; NEUTRAL has the exceptions.
    `revision`: names exactly these weights, such as the commit of a repository. `dtype`: of the computation, by default
    that of the configuration. `quantization`: what the engine does to the weights beyond the configuration.
    Raises ConfigurationError, with the file, for a file that cannot be read, for a value that JSON does not have, and
    for an empty revision.
    """
    table = config if isinstance(config, Mapping) else _read(Path(config))
    given: object = revision
    if not isinstance(given, str) or not given:
        raise ConfigurationError(f"revision must be a text that names the weights, got {given!r}")
    counted = {str(key): value for key, value in table.items() if key not in {*NEUTRAL, "dtype", "torch_dtype"}}
    own_dtype = dtype or table.get("dtype") or table.get("torch_dtype")
    meaning = {
        "config": counted,
        "dtype": None if own_dtype is None else str(own_dtype).removeprefix("torch."),
        "quantization": quantization,
        "revision": revision,
    }
    try:
        text = json.dumps(meaning, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"the configuration of a model has JSON's values alone: {error}") from error
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: Path) -> Mapping[str, Any]:
    return read_table(f"@{path / FILE if path.is_dir() else path}")
