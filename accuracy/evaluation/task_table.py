"""The tasks of this suite: their YAML, in the folder `tasks`, with documents that are drawn from a seed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset

from hicache.config import read_table

from .documents import DOCUMENTS

FOLDER = Path(__file__).parent / "tasks"


def task(name: str, count: int) -> Mapping[str, Any]:
    """A task in lm-eval's form, with `count` documents. Raises KeyError for an unknown task."""
    documents = DOCUMENTS[name](count)

    def data(**_options: Any) -> dict[str, Any]:
        return {split: Dataset.from_list(lines) for split, lines in documents.items()}

    return {**read_table(f"@{FOLDER / f'{name}.yaml'}"), "custom_dataset": data}
