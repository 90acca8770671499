"""Which frames a traceback shows: those of the test and of the cache, not those of the kit between them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from traceback import StackSummary, TracebackException, walk_tb
from types import FrameType
from typing import TYPE_CHECKING

from hicache.testing.plugin.causes import FAILED_BY_CALL, members
from hicache.testing.plugin.tags import place_in_suite, suite_of

if TYPE_CHECKING:
    import pytest

_HIDE = "__tracebackhide__"
"""pytest hides the frames of a module with this variable; if it is a function, those for which it returns True."""

_KIT = "hicache.testing"
_CACHES = tuple(f"{_KIT}.{name}" for name in ("adapter", "caches", "templates"))
"""Modules of the kit whose frames are those of a cache."""


def shows_all(config: pytest.Config) -> bool:
    """Whether the user asked for all frames: by --full-trace, or by a style that is not the default one."""
    return bool(config.getoption("fulltrace", False)) or config.getoption("tbstyle", "auto") in ("long", "native")


@contextmanager
def hidden_frames(raised: BaseException, test: Path, root: Path) -> Iterator[None]:
    """Hide the frames of the kit, of the helper modules of the test's suite and of Hypothesis while a report is made.

    `test`: the file of the test. `root`: the root folder of the run. An error that such a frame raised itself, other
    than by a check, hides nothing.
    """
    suite = _suite_folder(test, root)

    def hides(excinfo: pytest.ExceptionInfo[BaseException] | None) -> bool:
        if excinfo is None:
            return False
        is_check = isinstance(excinfo.value, AssertionError) or type(excinfo.value).__qualname__ == FAILED_BY_CALL
        *_, last = (frame for frame, _ in walk_tb(excinfo.value.__traceback__))
        return is_check or not _is_of_kit(last, suite)

    hidden = [one.f_globals for one in _frames(raised) if _is_of_kit(one, suite) and _HIDE not in one.f_globals]
    for names in hidden:
        names[_HIDE] = hides
    try:
        yield
    finally:
        for names in hidden:
            names.pop(_HIDE, None)


def format_visible(raised: BaseException) -> Iterator[str]:
    """The traceback as text. Of a failed check, without the frames of the kit."""
    told = TracebackException.from_exception(raised)
    if isinstance(raised, AssertionError):
        frames = zip(walk_tb(raised.__traceback__), told.stack, strict=True)
        told.stack = StackSummary.from_list([line for (frame, _), line in frames if not _is_of_kit(frame, None)])
    yield from told.format()


def _suite_folder(test: Path, root: Path) -> Path | None:
    """The folder of the suite that a test is in; None where it is in none."""
    return test.parents[len(place_in_suite(test, root).parts) - 2] if suite_of(test, root) else None


def _frames(raised: BaseException) -> Iterator[FrameType]:
    """The frames of an exception, of the members of a group, and of what each was raised from."""
    for member in members(raised):
        one: BaseException | None = member
        while one is not None:
            yield from (frame for frame, _ in walk_tb(one.__traceback__))
            one = one.__cause__ or one.__context__


def _is_of_kit(frame: FrameType, suite: Path | None) -> bool:
    return _is_kit_file(frame.f_code.co_filename, frame.f_globals.get("__name__", ""), suite)


@cache
def _is_kit_file(file: str, module: str, suite: Path | None) -> bool:
    # By its file: the function that it makes of a test has no module.
    search = getattr(sys.modules.get("hypothesis"), "__file__", None)
    if search and Path(search).parent in Path(file).parents:
        return True
    if f"{module}.".startswith(f"{_KIT}."):
        return not any(f"{module}.".startswith(f"{name}.") for name in _CACHES)
    return suite is not None and suite in Path(file).parents and not Path(file).name.startswith("test_")
