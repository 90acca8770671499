"""RunRecord: what a run of the suites executed and found, its file `run.json`, and the merge of several runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path

from hicache.config import read_table
from hicache.errors import ConfigurationError
from hicache.testing.levels import Level
from hicache.testing.report.fields import RecordFields
from hicache.testing.report.redaction import without_secrets

SCHEMA_VERSION = 3
"""Increased when a field of `run.json` is added, removed or changes its meaning.

Version 1 has no `versions`, and versions 1 and 2 no `collectives`.
"""


class Outcome(str, Enum):
    """How one execution of one test ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    KNOWN_FAILURE = "known_failure"


_WITH_COLLECTIVES = 3
"""The first schema whose executions say on which backends ranks were seen in a collective."""

COMMIT = "commit"
"""The name in the environment of a run for the commit of hicache, if it ran from a checkout."""

NOT_WHOLE = "levels not run whole"
"""The name in the environment of a run for the levels of which a part was left out: by -k, by -x, by --only."""

WITNESSES = ("hits", "loads", "evictions", "bytes read back")
"""The names in the environment of a run for what its tests saw the cache do, each with a number."""

LISTED_FLAKY = "flaky "
"""How the reason of an execution begins that a list of known failures has as flaky."""

NO_PROFILE = "none"
"""The profile of a run on a storage backend."""


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the cache: the verb, its arguments, and what it returned or raised."""

    verb: str
    arguments: str
    answer: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a failure.

    `steps`: the last calls, oldest first. `before`, `after`: the tree before and after the last call, or empty.
    `traceback`: the frames of the adapter and of what it called, or empty.
    """

    steps: tuple[Step, ...]
    before: str
    after: str
    traceback: str


NO_EVIDENCE = Evidence((), "", "", "")


@dataclass(frozen=True, slots=True)
class Execution:
    """One test that ran, or was skipped, in one configuration.

    `clauses`: ids of the clauses that the test checks. `configuration`: its short name, or empty.
    `causes`: of a failure, known or not: ids of the clauses that were found broken, also by a law that the test does
    not name; or names of errors, such as `KeyError in MyAdapter.match`.
    `reason`: the message of a failure, or why the test was skipped, or empty. For a known failure, for what passed
    beyond the contract, and for a listed flaky test: on the first line the entry of the list, then the message.
    `lacks`: capabilities that the test needs and the adapter does not declare. `evidence`: of a failure. `replay`: the
    command that runs exactly this execution again. `operations`: calls of the cache under test. `processes`: those that
    the process of the test started. `collectives`: the backends of torch.distributed on which two ranks or more of the
    test were seen in a collective, such as `nccl`.
    """

    node_id: str
    suite: str
    clauses: tuple[str, ...]
    configuration: str
    outcome: Outcome
    causes: tuple[str, ...]
    reason: str
    lacks: tuple[str, ...]
    evidence: Evidence
    replay: str
    duration_s: float
    operations: int
    processes: int = 0
    collectives: tuple[str, ...] = ()

    @property
    def is_beyond(self) -> bool:
        """Whether the cache does more than the test asks, as a list says: it counts as passed."""
        return self.outcome is Outcome.PASSED and bool(self.reason) and not self.is_listed_flaky

    @property
    def is_listed_flaky(self) -> bool:
        """Whether a list has it as a test that fails in some runs: it may pass or fail."""
        return self.outcome in (Outcome.PASSED, Outcome.KNOWN_FAILURE) and self.reason.startswith(LISTED_FLAKY)


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of the kit that made a run. `known_failures`: of the format of their list."""

    interface: int
    contract: int
    known_failures: int

    @property
    def named(self) -> Mapping[str, str]:
        """Each version by the name that reports give it."""
        return {
            "adapter interface": str(self.interface),
            "contract": str(self.contract),
            "format of known failures": str(self.known_failures),
        }


_UNNUMBERED = Versions(1, 1, 1)
"""Those of a run of schema 1. What had no number then counts as version 1."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run.

    `implementation`: path of the adapter. `started`: ISO 8601. `profile`: the design of the cache, or NO_PROFILE.
    `capabilities`: names of those declared.
    """

    schema_version: int
    versions: Versions
    implementation: str
    started: str
    environment: Mapping[str, str]
    profile: str
    capabilities: tuple[str, ...]
    executions: tuple[Execution, ...]


def levels_not_whole(record: RunRecord) -> frozenset[Level]:
    """The levels of which the run left a part out."""
    names = record.environment.get(NOT_WHOLE, "").split(", ")
    return frozenset(level for level in Level if level.value in names)


def leaving_out(record: RunRecord, levels: Iterable[Level]) -> RunRecord:
    """The record of a run that left out a part of these levels too."""
    left = levels_not_whole(record) | set(levels)
    names = ", ".join(level.value for level in Level if level in left)
    return replace(record, environment={**record.environment, NOT_WHOLE: names}) if names else record


def witnesses(record: RunRecord) -> str:
    """What the tests of a run saw the cache do, in words; empty for a run that did not count it."""
    found = [(int(record.environment[name]), name) for name in WITNESSES if name in record.environment]
    return f"witnesses: {', '.join(f'{count:,} {name}' for count, name in found)}" if found else ""


def first_line(text: str) -> str:
    """The first line that is not blank, or an empty string."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def counted(number: int, noun: str) -> str:
    """The number with its noun, in the plural unless it is 1: `1 test`, `2,000 tests`, `3 processes`."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def flaky_counts(executions: Iterable[Execution]) -> str:
    """How many tests that are listed as flaky passed and failed; empty if none was executed."""
    outcomes = [one.outcome for one in executions if one.is_listed_flaky]
    passed = outcomes.count(Outcome.PASSED)
    return f"listed as flaky: {passed} passed, {len(outcomes) - passed} failed" if outcomes else ""


def write_run(record: RunRecord, path: Path) -> None:
    """Write the record without secrets, as ASCII JSON, so that a message may contain any character.

    The file is there as a whole or not at all: a process may be killed while it writes.
    """
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(asdict(without_secrets(record)), indent=1) + "\n", encoding="ascii")
    draft.replace(path)


def read_run(path: Path) -> RunRecord:
    """Read a record, also one of an earlier schema.

    Raises ConfigurationError naming the file and the field that is missing, unknown or wrong.
    """
    fields = RecordFields(str(path), "", read_table(f"@{path}"))
    schema = fields.integer("schema_version")
    if not 1 <= schema <= SCHEMA_VERSION:
        raise fields.error("schema_version", f"is {schema}, but this release reads 1 to {SCHEMA_VERSION}")
    record = RunRecord(
        schema_version=SCHEMA_VERSION,
        versions=_UNNUMBERED if schema == 1 else _versions(fields.fields("versions")),
        implementation=fields.text("implementation"),
        started=fields.text("started"),
        environment=fields.texts_by_name("environment"),
        profile="tree" if schema == 1 else fields.text("profile"),
        capabilities=fields.texts("capabilities"),
        executions=tuple(_execution(one, schema) for one in fields.tables("executions")),
    )
    fields.refuse_unread()
    return record


def _versions(fields: RecordFields) -> Versions:
    versions = Versions(fields.integer("interface"), fields.integer("contract"), fields.integer("known_failures"))
    fields.refuse_unread()
    return versions


def _execution(fields: RecordFields, schema: int) -> Execution:
    clauses = fields.texts("clauses")
    outcome = Outcome(fields.choice("outcome", [outcome.value for outcome in Outcome]))
    # Schema 1 did not record what a failure found broken. Then it counts for the clauses of the test.
    old_causes = clauses if outcome in (Outcome.FAILED, Outcome.KNOWN_FAILURE) else ()
    execution = Execution(
        node_id=fields.text("node_id"),
        suite=fields.text("suite"),
        clauses=clauses,
        configuration=fields.text("configuration"),
        outcome=outcome,
        causes=old_causes if schema == 1 else fields.texts("causes"),
        reason=fields.text("reason"),
        lacks=() if schema == 1 else fields.texts("lacks"),
        evidence=NO_EVIDENCE if schema == 1 else _evidence(fields.fields("evidence")),
        replay=fields.text("replay"),
        duration_s=fields.number("duration_s"),
        operations=fields.integer("operations"),
        processes=0 if schema == 1 else fields.integer("processes"),
        collectives=fields.texts("collectives") if schema >= _WITH_COLLECTIVES else (),
    )
    fields.refuse_unread()
    return execution


def _evidence(fields: RecordFields) -> Evidence:
    evidence = Evidence(
        steps=tuple(_step(one) for one in fields.tables("steps")),
        before=fields.text("before"),
        after=fields.text("after"),
        traceback=fields.text("traceback"),
    )
    fields.refuse_unread()
    return evidence


def _step(fields: RecordFields) -> Step:
    step = Step(fields.text("verb"), fields.text("arguments"), fields.text("answer"))
    fields.refuse_unread()
    return step


def merge_runs(records: Sequence[RunRecord]) -> RunRecord:
    """Merge runs of one implementation, such as one for each suite. The start is that of the earliest one.

    Raises ConfigurationError if there is no run, if the runs are of different implementations or were made with
    different versions of the kit, or if two runs have the same execution.
    """
    if not records:
        raise ConfigurationError("there is no run to merge")
    implementations = {(record.implementation, record.capabilities) for record in records}
    if len(implementations) > 1:
        raise ConfigurationError(f"runs of different implementations: {sorted(implementations)}")
    versions = {record.versions for record in records}
    if len(versions) > 1:
        raise ConfigurationError(f"runs with different versions of the kit: {sorted(map(str, versions))}")
    executions = tuple(execution for record in records for execution in record.executions)
    seen: set[tuple[str, str]] = set()
    for execution in executions:
        name = (execution.suite, execution.node_id)
        if name in seen:
            raise ConfigurationError(f"{execution.suite}: {execution.node_id} is in two runs")
        seen.add(name)
    return RunRecord(
        schema_version=SCHEMA_VERSION,
        versions=records[0].versions,
        implementation=records[0].implementation,
        started=min(record.started for record in records),
        environment=_merged_environment(records),
        profile=records[0].profile,
        capabilities=records[0].capabilities,
        executions=executions,
    )


def _merged_environment(records: Sequence[RunRecord]) -> dict[str, str]:
    """A value that differs between the runs is listed with all its values; witnesses are added up."""
    names = dict.fromkeys(name for record in records for name in record.environment)
    return {
        name: str(sum(map(int, values))) if name in WITNESSES else ", ".join(dict.fromkeys(values))
        for name in names
        if (values := [record.environment[name] for record in records if name in record.environment])
    }
