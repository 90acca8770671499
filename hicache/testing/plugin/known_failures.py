"""Known failures: a TOML list, in the implementer's own repository, of the tests that are known to fail, and why."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hicache.config import read_table
from hicache.testing.contract import CONTRACT
from hicache.testing.plugin.causes import OUTDATED
from hicache.testing.plugin.tags import SUITES
from hicache.testing.report.fields import Fields
from hicache.testing.report.run import Execution, Outcome

KINDS = ("unsupported", "bug", "future")

STAGES_OF_RUNS = ("replay", "storage")
"""The first part of the ids of what runs without pytest: replays, and runs of a storage backend."""

KNOWN_FAILURES_FORMAT = 1
"""The format of a list of known failures, stated in it as `format`."""

_UNSTATED_FORMAT = 1
"""Of a list that states none. It stays 1 when the format changes: lists were written before formats had a number."""


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """One entry of a list such as this. `id` names a clause, or tests, where * matches any text.

        format = 1

        [[failure]]
        id = "conformance/test_lock.py::test_split[*/page16/*]"
        kind = "bug"                                        # or "unsupported", or "future"
        reason = "the mark of the window is lost in a split"
        link = "https://example.org/issues/7"

    `place`: the file, the number of the entry in it, and its id.
    """

    place: str
    id: str
    kind: str
    reason: str
    link: str

    @property
    def suite(self) -> str:
        """The suite that must have a test for it: distributed_tests for a clause of ranks, else conformance.

        Empty for tests in a project's own files.
        """
        if "::" in self.id:
            return suite_in(self.id) or ""
        return "distributed_tests" if CONTRACT[self.id].tier == "ranks" else "conformance"

    def covers(self, test: str, clauses: Collection[str]) -> bool:
        """Whether a test, given by its id and its clauses, is expected to fail."""
        return self.id in clauses or ("::" in self.id and re.fullmatch(_expression(self.id), test) is not None)

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}" + (f" ({self.link})" if self.link else "")


def suite_in(test: str) -> str | None:
    """The suite or the stage that the id of a test or a pattern names.

    Empty for a test in a project's own file; None for an execution without a test, such as the process of a stage.
    """
    file = test.partition("::")[0]
    folder = file.partition("/")[0]
    if file in STAGES_OF_RUNS or (folder in SUITES and "/" in file):
        return folder
    is_mistyped = "/" in file and get_close_matches(folder, SUITES, cutoff=0.75)
    return "" if file.endswith(".py") and not is_mistyped else None


def judged(
    known: Iterable[KnownFailure], test: str, clauses: Collection[str], causes: Sequence[str], reason: str
) -> tuple[Outcome, tuple[str, ...], str]:
    """The outcome, the causes and the reason of a run without pytest that passed or failed. `reason`: empty if passed.

    An entry that names the run itself and not a clause is obsolete when the run passes.
    """
    entry = next((one for one in known if one.covers(test, (*clauses, *causes))), None)
    if entry is not None and reason:
        return Outcome.KNOWN_FAILURE, tuple(causes), str(entry)
    if entry is not None and "::" in entry.id:
        return Outcome.FAILED, (OUTDATED,), outdated(entry.place)
    return Outcome.FAILED if reason else Outcome.PASSED, tuple(causes), reason


def outdated(place: str) -> str:
    """The message for a test that passes although an entry lists it. `place`: of the entry."""
    return f"listed as a known failure, but passes: remove {place}"


def read_known_failures(path: Path) -> tuple[KnownFailure, ...]:
    """Read the entries of a file. Raises ConfigurationError naming the file, the entry and the wrong field.

    A file of another format is refused, with both formats.
    """
    fields = Fields(str(path), "", read_table(f"@{path}"))
    written = fields.integer("format") if "format" in fields.table else _UNSTATED_FORMAT
    if written != KNOWN_FAILURES_FORMAT:
        raise fields.error(
            "format",
            f"is {written}, but this hicache reads {KNOWN_FAILURES_FORMAT}: see the section on versions in "
            "docs/adapters.md",
        )
    entries = tuple(_entry(str(path), number, one) for number, one in enumerate(fields.tables("failure"), start=1))
    fields.refuse_unread()
    return entries


def _entry(file: str, number: int, fields: Fields) -> KnownFailure:
    entry = KnownFailure(
        place=f"{file}: entry {number} ({fields.text('id')})",
        id=fields.text("id"),
        kind=fields.choice("kind", KINDS),
        reason=fields.text("reason"),
        link=fields.text("link"),
    )
    fields.refuse_unread()
    if entry.id not in CONTRACT and not ("::" in entry.id and suite_in(entry.id) is not None):
        raise fields.error(
            "id", f"is {entry.id!r}; expected a clause, or tests such as conformance/test_lock.py::test_a*"
        )
    if not entry.reason.strip():
        raise fields.error("reason", "is empty; expected why the test fails")
    return entry


def narrower(entries: Iterable[KnownFailure], executions: Collection[Execution]) -> Iterator[str]:
    """For each entry of which tests fail and tests pass: the ids of those that fail, to be pasted in its place."""
    executed = [one for one in executions if one.outcome is not Outcome.SKIPPED]
    for entry in entries:
        covered = [one for one in executed if entry.covers(one.node_id, one.clauses)]
        passing = [one for one in covered if one.causes == (OUTDATED,)]
        failing = [one for one in covered if one.outcome is Outcome.KNOWN_FAILURE]
        if passing and failing:
            yield f"narrow {entry.place}: {len(failing)} of its tests fail and {len(passing)} pass; list these:"
            yield from (f"  id = {quoted(test)}" for test in test_ids(failing, executed))


def test_ids(chosen: Iterable[Execution], executed: Iterable[Execution]) -> Iterator[str]:
    """The ids of tests, and one with * for a test all of whose executions are chosen."""
    chosen_ids, all_ids = _by_function(chosen), _by_function(executed)
    for function, ids in chosen_ids.items():
        if len(ids) > 1 and ids == all_ids[function]:
            yield f"{function}[*]"
        else:
            yield from ids


def _by_function(executions: Iterable[Execution]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in executions:
        found.setdefault(one.node_id.partition("[")[0], []).append(one.node_id)
    return found


def quoted(text: str) -> str:
    """A TOML string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _expression(pattern: str) -> str:
    # Not fnmatch: the brackets around a test's parameters are literal.
    return ".*".join(re.escape(part) for part in pattern.split("*"))


@contextmanager
def no_shrinking(test: Any) -> Iterator[None]:
    """Run a test without shrinking, in its own Hypothesis settings and in those made while it runs."""
    from hypothesis import Phase, settings

    phases = (Phase.explicit, Phase.reuse, Phase.generate)
    before = settings.default
    _make_default(settings(before, phases=phases))
    # This is the attribute that Hypothesis' own pytest plugin sets; there is no public way to change a decorated test.
    function = getattr(test, "__func__", test)
    own = getattr(function, "_hypothesis_internal_use_settings", None)
    if own is not None:
        function._hypothesis_internal_use_settings = settings(own, phases=phases)  # noqa: SLF001
    try:
        yield
    finally:
        _make_default(before)
        if own is not None:
            function._hypothesis_internal_use_settings = own  # noqa: SLF001


def _make_default(chosen: Any) -> None:
    from hypothesis import settings

    settings.register_profile("hicache", chosen)
    settings.load_profile("hicache")
