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
from hicache.testing.plugin.failures import OUTDATED
from hicache.testing.plugin.renamed_tests import ids_of, new_id
from hicache.testing.plugin.tags import SUITES
from hicache.testing.report.fields import RecordFields
from hicache.testing.report.run import Execution, Outcome

KINDS = ("unsupported", "bug", "future")

STAGES_OF_RUNS = ("replay", "storage")
"""The first part of the ids of what runs without pytest: replays, and runs of a storage backend."""

KNOWN_FAILURES_FORMAT = 2
"""The format of a list of known failures, stated in it as `format`. Format 1, an entry for each id, is read as well."""

_UNSTATED_FORMAT = 1
"""Of a list that states none. It stays 1 when the format changes: lists were written before formats had a number."""

_TABLES = {1: "failure", 2: "failures"}
"""The name of the tables in each format that is read."""


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """One id of a list such as this. `id` names a clause, or tests, where * matches any text.

        format = 2

        [[failures]]
        kind = "bug"                                        # or "unsupported", or "future"
        reason = "the mark of the window is lost in a split"
        link = "https://example.org/issues/7"
        ids = ["conformance/test_lock.py::test_split[*/page16/*]"]

    `place`: the file, the number of the table in it, and the id.
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
            return suite_in(self.present_id) or ""
        return "distributed_tests" if CONTRACT[self.id].tier == "ranks" else "conformance"

    @property
    def present_id(self) -> str:
        """The id, in which the name of a test that was renamed since is the new one."""
        return new_id(self.id)

    def covers(self, test: str, clauses: Collection[str]) -> bool:
        """Whether a test, given by its id and its clauses, is expected to fail. It may be listed by an earlier id."""
        if "::" not in self.id:
            return self.id in clauses
        expression = _expression(self.id)
        return any(re.fullmatch(expression, one) is not None for one in ids_of(test))

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

    A file of an unknown format is refused, with the known ones.
    """
    fields = RecordFields(str(path), "", read_table(f"@{path}"))
    written = format_of(fields)
    _refuse_other_tables(fields, written)
    entries = tuple(
        entry
        for number, table in enumerate(fields.tables(_TABLES[written]), start=1)
        for entry in _entries(f"{path}: entry {number}", table, written)
    )
    fields.refuse_unread()
    return entries


def _refuse_other_tables(fields: RecordFields, written: int) -> None:
    """Raise ConfigurationError for a list that has only tables of another format than it states."""
    form = {1: "[[failure]] with id = …", 2: "[[failures]] with ids = […]"}
    for other, name in _TABLES.items():
        if other != written and name in fields.table and _TABLES[written] not in fields.table:
            raise fields.error(name, f"is a table of format {other}; format {written} has {form[written]}")


def format_of(fields: RecordFields) -> int:
    """The format of a list. Raises ConfigurationError if it is unknown."""
    written = fields.integer("format") if "format" in fields.table else _UNSTATED_FORMAT
    if written not in _TABLES:
        raise fields.error(
            "format",
            f"is {written}, but this hicache reads {' and '.join(map(str, _TABLES))}: see docs/reference/versions.md",
        )
    return written


def _entries(place: str, fields: RecordFields, written: int) -> Iterator[KnownFailure]:
    ids = {"id": fields.text("id")} if written == 1 else {f"ids[{n}]": one for n, one in enumerate(fields.texts("ids"))}
    kind, reason, link = fields.choice("kind", KINDS), fields.text("reason"), fields.text("link")
    fields.refuse_unread()
    if not ids:
        raise fields.error("ids", "is empty; expected clauses or tests")
    if not reason.strip():
        raise fields.error("reason", "is empty; expected why the test fails")
    for name, one in ids.items():
        if one not in CONTRACT and not ("::" in one and suite_in(one) is not None):
            raise fields.error(
                name, f"is {one!r}; expected a clause, or tests such as conformance/test_lock.py::test_a*"
            )
        yield KnownFailure(f"{place} ({one})", one, kind, reason, link)


def narrower(entries: Iterable[KnownFailure], executions: Collection[Execution]) -> Iterator[str]:
    """For each entry of which tests fail and tests pass: the ids of those that fail, to be pasted in its place."""
    executed = [one for one in executions if one.outcome is not Outcome.SKIPPED]
    for entry in entries:
        covered = [one for one in executed if entry.covers(one.node_id, one.clauses)]
        passing = [one for one in covered if one.causes == (OUTDATED,)]
        failing = [one for one in covered if one.outcome is Outcome.KNOWN_FAILURE]
        if passing and failing:
            yield f"narrow {entry.place}: {len(failing)} of its tests fail and {len(passing)} pass; list these:"
            yield from (f"  {quoted(test)}," for test in test_ids(failing, executed))


def renamed(entries: Iterable[KnownFailure]) -> Iterator[str]:
    """For each entry whose test was renamed: its new id."""
    for entry in entries:
        if entry.present_id != entry.id:
            yield f"renamed {entry.place}: is {entry.present_id} now; update the list: hicache known-failures --migrate"


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
