"""Items: the ids that a shell takes unquoted, and the keys of what the plugin stores on a test."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from hicache.testing.plugin.tags import SUITES

_PACKAGE = Path(__file__).parents[2]
_FOLDERS = (_PACKAGE, *(_PACKAGE.parent / suite for suite in SUITES))
_OTHERS = re.compile(r"[^A-Za-z0-9_./:,=+%@-]+")


_MAX_LENGTH = 100
"""Of a value as its own id. pytest names a longer one by its parameter."""


DOING_FOLDER = "hicache_doing"
"""What a worker process is given: the folder in which it says what it does."""

_DOING_FOLDER = pytest.StashKey[Path]()


def doing_folder(config: pytest.Config) -> Path:
    """The folder in which the worker processes of a run say what they do. It is removed at the end."""
    if _DOING_FOLDER not in config.stash:
        folder = TemporaryDirectory(prefix="hicache-doing-", ignore_cleanup_errors=True)
        config.add_cleanup(folder.cleanup)
        config.stash[_DOING_FOLDER] = Path(folder.name)
    return config.stash[_DOING_FOLDER]


def plain_id(text: str) -> str:
    """The text with `-` for each run of other characters, and none of them at the ends."""
    if not _OTHERS.search(text):
        return text
    return _OTHERS.sub("-", text).strip("-") or "-".join(f"{ord(character):x}" for character in text)


def make_ids_plain(metafunc: pytest.Metafunc) -> None:
    """Have the parameters of a test of the suites, or of this project, named by plain ids. Other tests stay.

    Call it before any parameter is added.
    """
    test = metafunc.definition
    if test.get_closest_marker("clause") is None and not any(map(test.path.is_relative_to, _FOLDERS)):
        return
    parametrize = metafunc.parametrize

    def parametrize_plainly(
        argnames: str | Sequence[str],
        argvalues: Iterable[Any],
        indirect: bool | Sequence[str] = False,
        ids: Iterable[Any] | Callable[[Any], object] | None = None,
        **others: Any,
    ) -> None:
        parametrize(argnames, list(map(_renamed, argvalues)), indirect=indirect, ids=_plain(ids), **others)

    metafunc.parametrize = parametrize_plainly  # type: ignore[method-assign]


def _renamed(value: Any) -> Any:
    """A value of a parameter; one that pytest.param() made has its id with it."""
    given = getattr(value, "id", None) if isinstance(value, tuple) and hasattr(value, "marks") else None
    return value._replace(id=plain_id(given)) if isinstance(given, str) else value


def _plain(ids: Iterable[Any] | Callable[[Any], object] | None) -> Sequence[Any] | Callable[[Any], object]:
    if ids is None or callable(ids):
        return lambda value: _of_value(None if ids is None else ids(value), value)
    return [plain_id(one) if isinstance(one, str) else one for one in ids]


def _of_value(found: object, value: object) -> object:
    """The plain form of what an id is made of. None has pytest name the value."""
    text = getattr(value, "__name__", value) if found is None else found
    if isinstance(text, bytes):
        text = text.decode("ascii", "backslashreplace")
    if isinstance(text, re.Pattern):
        text = text.pattern
    if found is None and isinstance(text, str) and len(text) > _MAX_LENGTH:
        return None
    return plain_id(text) if isinstance(text, str) else found


FINAL_CHECK = pytest.StashKey[Callable[[], None]]()
"""A check that runs after the test has passed; a failure of it fails the test."""

STARTED_BEFORE = pytest.StashKey[int]()
"""The number of processes that were started before the test."""

KNOWN_FAILURE = pytest.StashKey[str]()
"""The position of the entry that lists a test as a known failure."""
