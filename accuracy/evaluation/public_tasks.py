"""Public tasks: load tasks and groups of lm-eval by name, once for all passes of a process."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from lm_eval.tasks import TaskManager

from hicache.errors import ConfigurationError


def load_public_tasks(names: Sequence[str], include_path: Path | None) -> list[Any]:
    """The tasks and groups of these names, with their documents, as `simple_evaluate` takes them.

    `include_path`: a folder of task files, which is searched first. Without network the documents come from the cache
    of `datasets`, or from a folder that has the name of the data set, relative to the current directory.
    Raises ConfigurationError for an unknown name, and OSError where the documents of a task are not found.
    """
    # lm-eval warns of each task whose documents are not downloaded.
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    return [loaded for name in names for loaded in _load(name, include_path)]


def _load(name: str, include_path: Path | None) -> list[Any]:
    """The group of this name, the task of this name, or all tasks with this tag."""
    loaded = _manager(name, include_path).load([name])
    return [loaded["groups"][name]] if name in loaded["groups"] else list(loaded["tasks"].values())


def _manager(name: str, include_path: Path | None) -> TaskManager:
    """The manager that knows a task. lm-eval has thousands of task files: they are read only if a name needs them."""
    if include_path is not None and name in _task_files(include_path).all_tasks:
        return _task_files(include_path)
    if name not in _task_files(None).all_tasks:
        place = "lm-eval" if include_path is None else f"{include_path} or in lm-eval"
        raise ConfigurationError(f"no task or group {name!r} in {place}")
    return _task_files(None)


@lru_cache(maxsize=2)
def _task_files(include_path: Path | None) -> TaskManager:
    """The files of a folder, or those of lm-eval."""
    return TaskManager(include_path=include_path, include_defaults=include_path is None)
