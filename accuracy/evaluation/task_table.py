"""The tasks of our own: their YAML, beside this file, with the documents that are drawn for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset

from hicache.config import read_table

from .documents import DOCUMENTS

FOLDER = Path(__file__).parent / "tasks"


def task(name: str, count: int) -> Mapping[str, Any]:
    """A task as lm-eval takes it, with so many documents. Raises KeyError for one that there is not."""
    documents = DOCUMENTS[name](count)

    def data(**_options: Any) -> dict[str, Any]:
        return {split: Dataset.from_list(lines) for split, lines in documents.items()}

    return {**read_table(f"@{FOLDER / f'{name}.yaml'}"), "custom_dataset": data}
