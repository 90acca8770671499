"""Causes of a failed test: the clauses that it found broken, or the error that ended it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType

from hicache.testing.adapter import CacheAdapter
from hicache.testing.contract import CONTRACT
from hicache.testing.plugin.evidence import RECORDER
from hicache.testing.violation import ViolationError

CAUSES = "hicache.causes"
"""The report property with the causes of a failure, as JSON."""

CRASHED = "the process of the test ended"
"""The cause of a failure without an exception: the worker process died."""

TIMED_OUT = "the test took too long"
"""The cause of a failure by a time limit: pytest ends its process, and pytest-timeout ends it with pytest.fail()."""

_TIMEOUT = "Timeout (>"
"""The start of its message."""

OUTDATED = "a known failure that passes"

FLAKY = "flaky: a test that fails and passes"
"""The cause of a failure that a repetition of the test, or of its example, did not show."""

FAILED_BY_CALL = "Failed"
"""The name of the exception of pytest.fail(). Help must come quickly, so pytest is not imported for it."""


def causes_of(raised: BaseException, clauses: Sequence[str]) -> tuple[str, ...]:
    """The causes of a failure: ids of clauses, or for an error its type and the verb of the adapter that raised it.

    What Hypothesis found to depend on more than the example is FLAKY. A law names its clause. An assertion of a test is
    about the clauses that the test names, or about the one clause whose id begins its message; where neither names one,
    it is an error. `clauses`: those that the test names.
    """
    if any(one.__name__ == "Flaky" and one.__module__ == "hypothesis.errors" for one in type(raised).__mro__):
        return (FLAKY,)
    return tuple(dict.fromkeys(cause for one in members(raised) for cause in _causes(one, clauses)))


def members(raised: BaseException) -> Iterator[BaseException]:
    """The exceptions of a group, or the exception itself."""
    # The class is not named here because Python 3.10 has no ExceptionGroup.
    for one in getattr(raised, "exceptions", (raised,)):
        yield from members(one) if hasattr(one, "exceptions") else (one,)


def to_property(causes: Iterable[str]) -> tuple[str, object]:
    """The causes as a user property of a report, which worker processes can send."""
    return CAUSES, json.dumps(list(causes))


def read_causes(properties: Iterable[tuple[str, object]]) -> tuple[str, ...]:
    """The causes in the user properties of a report."""
    return tuple(cause for name, value in properties if name == CAUSES for cause in json.loads(str(value)))


def _causes(raised: BaseException, clauses: Sequence[str]) -> tuple[str, ...]:
    chain = list(_chain(raised))
    broken = tuple(one.clause for one in chain if isinstance(one, ViolationError))
    if broken:
        return broken[:1]
    if found := getattr(raised, "causes", ()):
        # The causes that the processes of ranks reported.
        return tuple(found)
    if type(raised).__qualname__ == FAILED_BY_CALL and str(raised).startswith(_TIMEOUT):
        return (TIMED_OUT,)
    if isinstance(raised, AssertionError) or type(raised).__qualname__ == FAILED_BY_CALL:
        named = str(raised).partition(":")[0]
        return (named,) if named in CONTRACT else tuple(clauses) or (_error(raised),)
    return (_error(raised),)


def _chain(raised: BaseException) -> Iterator[BaseException]:
    """The exception, and those that it was raised from."""
    one: BaseException | None = raised
    while one is not None:
        yield one
        one = one.__cause__


def _error(raised: BaseException) -> str:
    verbs = list(_verbs(raised.__traceback__))
    return f"{type(raised).__name__} in {verbs[0]}" if verbs else f"{type(raised).__name__} in the test"


def _verbs(traceback: TracebackType | None) -> Iterator[str]:
    """The verbs of the adapter that were being called, the outermost first."""
    while traceback is not None:
        code, owner = traceback.tb_frame.f_code, traceback.tb_frame.f_locals.get("self")
        if isinstance(owner, CacheAdapter) and code.co_filename != RECORDER:
            yield f"{type(owner).__name__}.{code.co_name}"
        traceback = traceback.tb_next
