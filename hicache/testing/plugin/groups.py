"""Groups: reports every failure of an exception group, as Hypothesis raises several failures of one test as a group."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import pytest


def tell_each(report: pytest.TestReport, call: pytest.CallInfo[None]) -> None:
    """Replace a group's message by the messages of all its exceptions, with their notes, which hold the steps."""
    crash = getattr(report.longrepr, "reprcrash", None)
    raised = None if call.excinfo is None else call.excinfo.value
    if crash is not None and raised is not None and hasattr(raised, "exceptions"):
        failures = ["".join(traceback.format_exception_only(type(one), one)).rstrip() for one in _members(raised)]
        crash.message = "\n\n".join([f"{len(failures)} failures in one test", *failures])


def _members(raised: BaseException) -> Iterator[BaseException]:
    # The class is not named here because Python 3.10 has no ExceptionGroup.
    for one in getattr(raised, "exceptions", ()):
        yield from _members(one) if hasattr(one, "exceptions") else (one,)
