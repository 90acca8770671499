"""Coverage: which levels of the contract a run verified, and what an adapter has to declare to have more checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import Enum

from hicache.testing.adapter import Capability
from hicache.testing.contract import Clause
from hicache.testing.levels import Level
from hicache.testing.load import OF_THREADS
from hicache.testing.report.gpu import is_on_gpu
from hicache.testing.report.matrix import Overview, Status
from hicache.testing.report.run import Execution, Outcome, RunRecord, levels_not_whole

VIEWS = frozenset(
    {
        *(Capability.SNAPSHOT, Capability.SIZES, Capability.BYTES, Capability.REFUSALS, Capability.TABLES),
        *(Capability.STEPPED, Capability.STEPPED_STORAGE),
    }
)
"""Capabilities that say what an adapter shows of its cache. All others are features, which a cache may lack."""

MODELS_SUITE = "accuracy"


LEVEL_OF_TIER: Mapping[str, Level] = {
    "device": Level.DEVICE,
    "config": Level.DEVICE,
    "host": Level.HOST,
    "storage": Level.STORAGE,
    "ranks": Level.RANKS,
}
"""The level of the clauses of a tier. Clauses of a metadata server are about no cache and belong to no level."""


class Verdict(str, Enum):
    """What a run says of a level."""

    VERIFIED = "verified"
    FAILED = "failed"
    IN_PART = "in part"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class LevelResult:
    """The result of one level. MODELS counts tests, the other levels clauses.

    `applying`: those that apply to the cache: not excepted by its profile, and of features that it has. `checked`: of
    these, those that passed. `known`: those with a known failure. `broken`: the ids of the broken ones. `is_whole`:
    nothing of the level was left out by the user.
    """

    level: Level
    verdict: Verdict
    applying: int
    checked: int
    known: int
    broken: tuple[str, ...]
    is_whole: bool = True

    def __str__(self) -> str:
        unit = "tests" if self.level is Level.MODELS else "clauses"
        if self.verdict is Verdict.NOT_RUN:
            return f"{self.level.value}: not run"
        share = f"{self.checked} of {self.applying} {unit}"
        if self.verdict is Verdict.FAILED and self.level is Level.MODELS:
            return f"{self.level.value}: failed: {share} passed"
        if self.verdict is Verdict.FAILED:
            found = ", ".join(self.broken) or "none of its clauses was found broken, but tests of them ended early"
            return f"{self.level.value}: failed: {found}; {share} passed"
        exceptions = f" except {self.known} with known failures" if self.known else ""
        if self.verdict is Verdict.IN_PART and not self.is_whole:
            return f"{self.level.value}: not verified, a part of the run is missing: {share} were checked"
        if self.verdict is Verdict.IN_PART:
            return f"{self.level.value}: not verified, only {share} were checked"
        return f"{self.level.value}: verified{exceptions}, {share}"


@dataclass(frozen=True, slots=True)
class Coverage:
    """`levels`: the result of each. `checked`, `clauses`: clauses that a test checked, and all of the contract.

    `gains`: capabilities that are not declared, with the number of unchecked clauses that need each. `without_gpu`:
    clauses that were not checked because no test ran on a GPU; no level needs them then.
    """

    levels: tuple[LevelResult, ...]
    checked: int
    clauses: int
    gains: Mapping[str, int]
    without_gpu: tuple[str, ...]

    @property
    def verified(self) -> tuple[LevelResult, ...]:
        """The levels that are verified."""
        return tuple(one for one in self.levels if one.verdict is Verdict.VERIFIED)

    def of(self, level: Level) -> LevelResult:
        """The result of one level."""
        return next(one for one in self.levels if one.level is level)

    def __str__(self) -> str:
        told = f"{self.checked} of {self.clauses} clauses checked"
        if self.without_gpu:
            told += f" ({', '.join(self.without_gpu)} only on a GPU)"
        if self.checked == self.clauses:
            return told
        gains = ", ".join(f"{name} (+{count})" for name, count in self.gains.items())
        return f"{told}, {self.clauses - self.checked} not" + (f": declare {gains}" if gains else "")


@dataclass(frozen=True, slots=True)
class Undeclared:
    """A capability that the adapter does not declare, and what waits for it.

    `clauses`: those not checked whose tests need it. `tests`: skipped tests that need it, and maybe others too.
    """

    name: str
    meaning: str
    clauses: int
    tests: int


CHECKED = (Status.PASSED, Status.PASSED_IN_PART, Status.FAILED, Status.KNOWN_FAILURE)


def coverage(view: Overview) -> Coverage:
    """Compute which levels a run verified."""
    rows = {row.clause.id: row.status for section in view.matrix.sections for row in section.rows}
    clauses = [row.clause for section in view.matrix.sections for row in section.rows]
    lacks = _lacks_by_clause(view.record.executions)
    on_gpu = [clause.id for clause in clauses if clause.gpu and rows[clause.id] not in CHECKED]
    applying = [clause for clause in clauses if _applies(clause, view.record, lacks.get(clause.id, ()))]
    applying = [clause for clause in applying if clause.id not in on_gpu]
    levels = [_of_clauses(level, applying, rows) for level in Level if level is not Level.MODELS]
    unchecked = [clause for clause in clauses if rows[clause.id] not in CHECKED]
    not_whole = levels_not_whole(view.record)
    return Coverage(
        levels=tuple(_narrowed(one) if one.level in not_whole else one for one in (*levels, _of_models(view))),
        checked=len(clauses) - len(unchecked),
        clauses=len(clauses),
        # The tests of an undecided clause ran, and met another defect.
        gains=_gains({one.id for one in unchecked if rows[one.id] is not Status.UNDECIDED}, view.record),
        without_gpu=tuple(on_gpu),
    )


def _narrowed(found: LevelResult) -> LevelResult:
    """The result of a level that was not run whole: it may have failed, but is not verified."""
    verdict = Verdict.IN_PART if found.verdict is Verdict.VERIFIED else found.verdict
    return replace(found, verdict=verdict, is_whole=False)


def _lacks_by_clause(executions: Iterable[Execution]) -> Mapping[str, Sequence[Sequence[str]]]:
    """By clause, what the adapter does not declare of what each of its tests needs."""
    lacks: dict[str, list[Sequence[str]]] = {}
    for execution in executions:
        for clause_id in execution.clauses:
            lacks.setdefault(clause_id, []).append(execution.lacks)
    return lacks


def _applies(clause: Clause, record: RunRecord, lacks: Sequence[Sequence[str]]) -> bool:
    """Whether the cache is of a design that a clause applies to, and has the features that it and one test of it need.

    A door is a feature: a cache of requests alone is not asked for what only verbs can show.
    """
    views = {one.name for one in VIEWS}
    is_served = {one.name for one in clause.needs} <= {*record.capabilities, *views}
    is_testable = not lacks or any(views.issuperset(one) for one in lacks)
    return clause.tier in LEVEL_OF_TIER and record.profile not in clause.exceptions and is_served and is_testable


def _of_clauses(level: Level, applying: Sequence[Clause], statuses: Mapping[str, Status]) -> LevelResult:
    of_level = [clause.id for clause in applying if LEVEL_OF_TIER[clause.tier] is level]
    found = Counter(statuses[clause_id] for clause_id in of_level)
    broken = tuple(clause_id for clause_id in of_level if statuses[clause_id] is Status.FAILED)
    known, checked = found[Status.KNOWN_FAILURE], found[Status.PASSED] + found[Status.PASSED_IN_PART]
    if broken or found[Status.UNDECIDED]:
        verdict = Verdict.FAILED
    elif not checked:
        verdict = Verdict.NOT_RUN
    else:
        verdict = Verdict.VERIFIED if checked + known == len(of_level) else Verdict.IN_PART
    return LevelResult(level, verdict, len(of_level), checked, known, broken)


def _of_models(view: Overview) -> LevelResult:
    outcomes = Counter(one.outcome for one in view.record.executions if one.suite == MODELS_SUITE)
    executed = sum(outcomes.values()) - outcomes[Outcome.SKIPPED]
    if outcomes[Outcome.FAILED]:
        verdict = Verdict.FAILED
    else:
        verdict = Verdict.VERIFIED if outcomes[Outcome.PASSED] else Verdict.NOT_RUN
    return LevelResult(Level.MODELS, verdict, executed, outcomes[Outcome.PASSED], outcomes[Outcome.KNOWN_FAILURE], ())


def _gains(unchecked: AbstractSet[str], record: RunRecord) -> dict[str, int]:
    """Undeclared capabilities by the number of unchecked clauses whose tests need them, the most useful one first.

    A second door is no advice: a cache that has one of them may not be able to have the other. Nor is what a cache on a
    GPU cannot have.
    """
    on_gpu = OF_THREADS if is_on_gpu(record.implementation) else frozenset[Capability]()
    no_advice = {one.name for one in {Capability.VERBS, Capability.REQUESTS, *on_gpu}}
    lacking: dict[str, set[str]] = {}
    for execution in record.executions:
        for clause_id in unchecked & set(execution.clauses):
            for name in set(execution.lacks) - no_advice:
                lacking.setdefault(name, set()).add(clause_id)
    return dict(Counter({name: len(clauses) for name, clauses in lacking.items()}).most_common())


def declared_next(view: Overview) -> tuple[Undeclared, ...]:
    """The capabilities to declare next, the one with the most unchecked clauses first."""
    tests = Counter(name for one in view.record.executions for name in one.lacks if one.outcome is Outcome.SKIPPED)
    gains = coverage(view).gains
    return tuple(Undeclared(name, Capability[name].value, count, tests[name]) for name, count in gains.items())
