"""Known failures: the list of tests that are known to fail, an earlier run as a baseline, and tests renamed since."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hicache.config import read_table
from hicache.errors import ConfigurationError
from hicache.testing.adapter import INTERFACE_VERSION
from hicache.testing.contract import CONTRACT, CONTRACT_VERSION
from hicache.testing.laws import CHECKED_AFTER_EACH_VERB
from hicache.testing.plugin.failures import STALE
from hicache.testing.plugin.tags import SUITES
from hicache.testing.report.fields import RecordFields
from hicache.testing.report.run import LISTED_FLAKY, Execution, Outcome, RunRecord, Versions, read_run

KINDS = ("bug", "unsupported", "beyond", "future")

STAGES_OF_RUNS = ("replay", "storage")
"""The first part of the ids of what runs without pytest: replays, and runs of a storage backend."""

KNOWN_FAILURES_FORMAT = 2
"""The format of a list of known failures, stated in it as `format`. Format 1, an entry for each id, is read as well."""

VERSIONS = Versions(INTERFACE_VERSION, CONTRACT_VERSION, KNOWN_FAILURES_FORMAT)
"""Of all that an adapter's author writes against, as this hicache has them; each run records them."""

_UNSTATED_FORMAT = 1
"""Of a list that states none. It stays 1 when the format changes: lists were written before formats had a number."""

_TABLES = {1: "failure", 2: "failures"}
"""The name of the tables in each format that is read."""


# Tests that were renamed: lists and baselines with an old id still match.


def read_renames(path: Path) -> dict[str, str]:
    """The new ids of tests by their old ids. Raises ConfigurationError for a file without them."""
    fields = RecordFields(str(path), "", read_table(path))
    found = fields.texts_by_name("renamed")
    fields.refuse_unread()
    return found


RENAMED: Mapping[str, str] = read_renames(Path(__file__).with_name("renamed_tests.toml"))
"""The table that ships: the new ids of renamed tests by their old ones."""


def new_id(test: str) -> str:
    """The present id of a test, or of a pattern that names one test function. Any other text is returned unchanged."""
    return next(_substitutions(test, RENAMED.items()), test)


def ids_of(test: str) -> tuple[str, ...]:
    """The present id of a test, and those that it had before."""
    return (test, *_substitutions(test, ((new, old) for old, new in RENAMED.items())))


def _substitutions(test: str, rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    return (found for row in rows if (found := _substituted(test, *row)) is not None)


def _substituted(test: str, source: str, target: str) -> str | None:
    """The test with the target's text in the place of the source's, or None if its id is not that of the source."""
    before, star, after = source.partition("*")
    if star and test == f"{before.removesuffix('[')}*":
        return target
    rest = test.removeprefix(before)
    if rest == test:
        return None
    if not star:
        return target + rest if rest in ("", "*") or rest.startswith("[") else None
    # The last * of a pattern may also stand for the end of the source.
    if not rest.endswith((after, "*")):
        return None
    start, _, end = target.partition("*")
    return start + rest.removesuffix(after) + (end if rest.endswith(after) else "")


# The list: TOML in the implementer's own repository.


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """One id of a list such as this. `id` names a clause, or tests, where * matches any text.

        format = 2

        [[failures]]
        kind = "bug"                                        # or "unsupported", "beyond", "future"
        reason = "the mark of the window is lost in a split"
        link = "https://example.org/issues/7"
        ids = ["conformance/test_lock.py::test_split[*/page16/*]"]

    `place`: the file, the number of the table in it, and the id. `flaky`: the test fails in some runs; with
    `flaky = true` in the table it may also pass.
    """

    place: str
    id: str
    kind: str
    reason: str
    link: str
    flaky: bool

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
        flaky = LISTED_FLAKY if self.flaky else ""
        return f"{flaky}{self.kind}: {self.reason}" + (f" ({self.link})" if self.link else "")


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

    An entry that names the run itself and not a clause is obsolete when the run passes, unless it is flaky.
    """
    entry = next((one for one in known if one.covers(test, (*clauses, *causes))), None)
    if entry is not None and reason:
        return outcome_of_known(str(entry)), tuple(causes), str(entry)
    if entry is not None and entry.flaky:
        return Outcome.PASSED, (), str(entry)
    if entry is not None and "::" in entry.id:
        return Outcome.FAILED, (STALE,), stale_entry(entry.place)
    return Outcome.FAILED if reason else Outcome.PASSED, tuple(causes), reason


def outcome_of_known(entry: str) -> Outcome:
    """The outcome of a failure that an entry lists. What a cache does beyond the contract is none."""
    return Outcome.PASSED if entry.removeprefix("reason: ").startswith("beyond: ") else Outcome.KNOWN_FAILURE


def stale_entry(place: str) -> str:
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
    flaky = written != 1 and fields.flag("flaky")
    fields.refuse_unread()
    if not ids:
        raise fields.error("ids", "is empty; expected clauses or tests")
    if not reason.strip():
        raise fields.error("reason", "is empty; expected why the test fails")
    if flaky and kind == "beyond":
        raise fields.error("flaky", "is true in an entry of the kind beyond, whose failures count as passed")
    for name, one in ids.items():
        if flaky and one in CONTRACT:
            raise fields.error(name, f"is {one!r}; expected tests: a flaky entry covers no clause")
        if one not in CONTRACT and not ("::" in one and suite_in(one) is not None):
            raise fields.error(
                name, f"is {one!r}; expected a clause, or tests such as conformance/test_lock.py::test_a*"
            )
        yield KnownFailure(f"{place} ({one})", one, kind, reason, link, flaky)


def narrower(entries: Iterable[KnownFailure], executions: Collection[Execution]) -> Iterator[str]:
    """For each entry of which tests fail and tests pass: the ids of those that fail, to be pasted in its place."""
    executed = [one for one in executions if one.outcome is not Outcome.SKIPPED]
    for entry in entries:
        covered = [one for one in executed if entry.covers(one.node_id, one.clauses)]
        passing = [one for one in covered if one.causes == (STALE,)]
        failing = [one for one in covered if one.outcome is Outcome.KNOWN_FAILURE or one.is_beyond]
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


# A baseline: what failed in an earlier run does not count, so that only new failures do.

FAILED_BEFORE = "failed before"
"""How the reason of a failure that the baseline has begins."""

_FAILURES = (Outcome.FAILED, Outcome.KNOWN_FAILURE)
_MAX_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Baseline:
    """What an earlier run executed and what failed in it.

    `name`: the file, and when the run began. `causes`: of each failed test, known or not, by its id. `executed`: ids of
    all tests that were not skipped. Ids are the present ones. `laws`: those that were found broken. The driver checks a
    law after each verb, so chance decides which of the tests with drawn operations meets it first.
    """

    name: str
    implementation: str
    causes: Mapping[str, frozenset[str]]
    executed: frozenset[str]
    laws: frozenset[str]

    def has(self, test: str, causes: Collection[str]) -> bool:
        """Whether the earlier run had this failure.

        The test failed before for these causes, or it was executed before and its causes are laws that were broken.
        """
        if not causes or test not in self.executed:
            return False
        return self.laws.issuperset(causes) or self.causes.get(test, frozenset()).issuperset(causes)

    def summary(self, executions: Iterable[Execution]) -> Iterator[str]:
        """What a run says of the baseline: how many tests failed before, and which failed then and pass now."""
        done = list(executions)
        before = sum(one.reason.partition("\n")[0].endswith(self.reason) for one in done)
        passed = [one for one in done if one.outcome is Outcome.PASSED and not one.is_listed_flaky]
        fixed = [one.node_id for one in passed if one.node_id in self.causes]
        yield f"baseline {self.name}: {before} failed before, {len(fixed)} fixed"
        for test in fixed[:_MAX_SHOWN]:
            yield f"  fixed: {test}"
        if len(fixed) > _MAX_SHOWN:
            yield f"  and {len(fixed) - _MAX_SHOWN} more"

    @property
    def reason(self) -> str:
        """Why a failure that the baseline has does not count."""
        return f"{FAILED_BEFORE}: {self.name}"


def read_baseline(path: Path, implementation: str, profile: str) -> tuple[Baseline, str]:
    """Read a `run.json`, or that of a report folder, for a run of this implementation. Also returns a warning or "".

    Raises ConfigurationError if the file cannot be read, or if its run has another version of the contract or of the
    adapter interface, or another profile: its tests do not mean the same. A run of another adapter is a warning.
    """
    file = path / "run.json" if path.is_dir() else path
    record = read_run(file)
    for name, theirs, ours in _meanings(record, profile):
        if theirs != ours:
            raise ConfigurationError(f"{file}: the {name} of the baseline is {theirs}, but that of this run is {ours}")
    other = record.implementation != implementation
    warning = f"baseline {file}: is a run of {record.implementation}, not of {implementation}" if other else ""
    return _baseline(f"{file} of {record.started}", record), warning


def _meanings(record: RunRecord, profile: str) -> Iterator[tuple[str, object, object]]:
    yield "contract version", record.versions.contract, VERSIONS.contract
    yield "adapter interface version", record.versions.interface, VERSIONS.interface
    yield "profile", record.profile, profile


def _baseline(name: str, record: RunRecord) -> Baseline:
    failed = [one for one in record.executions if one.outcome in _FAILURES]
    return Baseline(
        name=name,
        implementation=record.implementation,
        causes={new_id(one.node_id): frozenset(one.causes) for one in failed},
        executed=frozenset(new_id(one.node_id) for one in record.executions if one.outcome is not Outcome.SKIPPED),
        laws=frozenset(cause for one in failed for cause in one.causes if cause in CHECKED_AFTER_EACH_VERB),
    )


# Searches.


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
