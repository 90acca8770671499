"""Coverage: which levels of the contract a run verified, and what an adapter has to declare to have more checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import Enum

from hicache.testing.adapter import METHODS, WITH_VERBS, Capability
from hicache.testing.contract import Clause
from hicache.testing.levels import Level
from hicache.testing.load import OF_THREADS
from hicache.testing.report.gpu import is_on_gpu
from hicache.testing.report.matrix import Overview, Status
from hicache.testing.report.run import NO_PROFILE, Execution, Outcome, RunRecord, counted, first_line, levels_not_whole

VIEWS = frozenset(
    {
        *(Capability.SNAPSHOT, Capability.SIZES, Capability.BYTES, Capability.REFUSALS, Capability.TABLES),
        *(Capability.STEPPED, Capability.STEPPED_STORAGE),
    }
)
"""Capabilities that say what an adapter shows of its cache. All others are features, which a cache may lack."""

MODELS_SUITE = "accuracy"
MACHINES_SUITE = "properties"


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
class NextStep:
    """What brings the most clauses of a level that is not verified.

    `names`: capabilities, one if a single one brings clauses. `methods`: those to write for them. `clauses`: those that
    can be checked then, and cannot yet.
    """

    level: Level
    names: tuple[str, ...]
    methods: int
    clauses: int

    def __str__(self) -> str:
        *others, last = self.names
        names = f"{', '.join(others)} and {last}" if others else last
        methods = counted(self.methods, "method") if self.methods else "no method"
        return f"next for level {self.level.value}: declare {names} ({methods}): {counted(self.clauses, 'more clause')}"


@dataclass(frozen=True, slots=True)
class Coverage:
    """`levels`: the result of each. `applying`: the number of clauses in each status, of those that apply to the cache.

    These are the clauses of all levels together; all shares are of them. `others`: the number of all other clauses of
    the contract. `gains`: capabilities that are not declared, with the number of unchecked clauses that need each.
    `steps`: what to declare next, for levels that are not verified and did not fail. `without_gpu`: clauses that were
    not checked because no test ran on a GPU; no level needs them then.
    """

    levels: tuple[LevelResult, ...]
    applying: Mapping[Status, int]
    others: int
    gains: Mapping[str, int]
    steps: tuple[NextStep, ...]
    without_gpu: tuple[str, ...]

    @property
    def verified(self) -> tuple[LevelResult, ...]:
        """The levels that are verified."""
        return tuple(one for one in self.levels if one.verdict is Verdict.VERIFIED)

    def of(self, level: Level) -> LevelResult:
        """The result of one level."""
        return next(one for one in self.levels if one.level is level)

    @property
    def passed(self) -> int:
        """The clauses that apply and passed, whole or in part."""
        return self.applying[Status.PASSED] + self.applying[Status.PASSED_IN_PART]

    def next_steps(self, required: Iterable[Level]) -> tuple[NextStep, ...]:
        """What to declare next: for each of these levels; where they need nothing, for the first other level."""
        own = tuple(one for one in self.steps if one.level in {*required})
        return own or self.steps[:1]

    def __str__(self) -> str:
        counts = {
            "broken": self.applying[Status.FAILED],
            "with a known failure": self.applying[Status.KNOWN_FAILURE],
            "undecided": self.applying[Status.UNDECIDED],
            "not checked": self.applying[Status.SKIPPED] + self.applying[Status.NOT_EXECUTED],
        }
        shown = [f"{self.passed} of {counted(sum(self.applying.values()), 'clause')} that apply passed"]
        text = ", ".join([*shown, *(f"{count} {name}" for name, count in counts.items() if count)])
        on_gpu = f" ({', '.join(self.without_gpu)} only on a GPU)" if self.without_gpu else ""
        return f"{text}; {self.others} others do not apply{on_gpu}"


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
    on_gpu = [clause.id for clause in clauses if clause.gpu and rows[clause.id] not in CHECKED]
    applying = applying_clauses(view)
    of_levels = [_of_clauses(level, applying, rows) for level in Level if level is not Level.MODELS]
    not_whole = levels_not_whole(view.record)
    levels = tuple(_narrowed(one) if one.level in not_whole else one for one in (*of_levels, _of_models(view)))
    # The tests of an undecided clause ran, and met another defect.
    waiting = [clause for clause in clauses if rows[clause.id] not in (*CHECKED, Status.UNDECIDED)]
    statuses = Counter(rows[clause.id] for clause in applying)
    return Coverage(
        levels=levels,
        applying={status: statuses[status] for status in Status},
        others=len(clauses) - len(applying),
        gains=_gains({one.id for one in waiting}, view.record),
        steps=tuple(_next_steps(levels, waiting, applying, view.record)),
        without_gpu=tuple(on_gpu),
    )


def applying_clauses(view: Overview) -> list[Clause]:
    """The clauses that apply to the subject of a run; of a storage backend, all that the run is about."""
    rows = {row.clause.id: row for section in view.matrix.sections for row in section.rows}
    clauses = [row.clause for row in rows.values()]
    if view.record.profile == NO_PROFILE:
        return clauses
    lacks = _lacks_by_clause(view.record.executions)
    found = [clause for clause in clauses if _applies(clause, view.record, lacks.get(clause.id, ()))]
    return [clause for clause in found if not clause.gpu or rows[clause.id].status in CHECKED]


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
    of_level = [clause.id for clause in applying if LEVEL_OF_TIER.get(clause.tier) is level]
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


def untried(view: Overview) -> str:
    """Empty if a state machine or a test of eviction ran, or the run has none; else that none ran, and what to declare.

    Without both no test has shown what the cache does once its pool is full.
    """
    tests = [one for one in view.record.executions if one.clauses and _fills_the_pool(one)]
    if not tests or any(one.outcome is not Outcome.SKIPPED for one in tests):
        return ""
    views = {one.name for one in VIEWS}
    lacking = [one.lacks for one in tests if one.lacks and views.issuperset(one.lacks)]
    finding = "no sequence of operations was tried, and no eviction"
    if not lacking:
        return f"{finding}: {first_line(tests[-1].reason)}"
    fewest = min(lacking, key=lambda names: (len(names), names))
    return f"{finding}: declare {' and '.join(fewest)}"


def _fills_the_pool(execution: Execution) -> bool:
    return execution.suite == MACHINES_SUITE or any(name.startswith("EVICT-") for name in execution.clauses)


def _gains(unchecked: AbstractSet[str], record: RunRecord) -> dict[str, int]:
    """Undeclared capabilities by the number of unchecked clauses whose tests need them, the most useful one first."""
    no_advice = _no_advice(record)
    lacking: dict[str, set[str]] = {}
    for execution in record.executions:
        for clause_id in unchecked & set(execution.clauses):
            for name in set(execution.lacks) - no_advice:
                lacking.setdefault(name, set()).add(clause_id)
    return dict(Counter({name: len(clauses) for name, clauses in lacking.items()}).most_common())


def _no_advice(record: RunRecord) -> set[str]:
    """The capabilities that are not advised: a second door, which a cache may not have, and what a GPU cannot have."""
    on_gpu = OF_THREADS if is_on_gpu(record.implementation) else frozenset[Capability]()
    return {one.name for one in {Capability.VERBS, Capability.REQUESTS, *on_gpu}}


def _next_steps(
    levels: Iterable[LevelResult], waiting: Sequence[Clause], applying: Sequence[Clause], record: RunRecord
) -> Iterator[NextStep]:
    """For each level that is not verified, and did not fail: what brings the most of its clauses.

    Where nothing of a level ran and nothing brings a clause that applies, the clauses of features that it lacks count.
    """
    for one in levels:
        of_level = [clause for clause in waiting if LEVEL_OF_TIER.get(clause.tier) is one.level]
        if one.verdict in (Verdict.IN_PART, Verdict.NOT_RUN):
            needed = [clause for clause in of_level if clause in applying]
            choices = (needed, of_level) if one.verdict is Verdict.NOT_RUN else (needed,)
            steps = (_next_step(one.level, clauses, record) for clauses in choices)
            yield from [step for step in steps if step is not None][:1]


def _next_step(level: Level, clauses: Sequence[Clause], record: RunRecord) -> NextStep | None:
    """The fewest capabilities that let more of the clauses be checked; of equally few, those that bring most."""
    missing = _missing_sets(clauses, record)
    sets = {names for of_clause in missing.values() for names in of_clause}
    if not sets:
        return None
    gains = {names: sum(any(one <= names for one in of_clause) for of_clause in missing.values()) for names in sets}
    best = min(sets, key=lambda names: (len(names), -gains[names], sorted(names)))
    return NextStep(level, tuple(sorted(best)), _methods_to_write(best, record), gains[best])


def _missing_sets(clauses: Sequence[Clause], record: RunRecord) -> dict[str, set[frozenset[str]]]:
    """By clause, what each of its tests lacks; where no test of any was collected, what the clause itself lacks."""
    no_advice = _no_advice(record)
    missing: dict[str, set[frozenset[str]]] = {clause.id: set() for clause in clauses}
    collected = [(name, one.lacks) for one in record.executions for name in one.clauses if name in missing]
    needed = [(clause.id, {one.name for one in clause.needs}.difference(record.capabilities)) for clause in clauses]
    for name, lacks in collected or needed:
        if lacks and no_advice.isdisjoint(lacks):
            missing[name].add(frozenset(lacks))
    return missing


def _methods_to_write(names: Iterable[str], record: RunRecord) -> int:
    others = {method for name in record.capabilities for method in METHODS.get(Capability[name], ())}
    if Capability.VERBS.name not in {*record.capabilities, *names}:
        others |= WITH_VERBS
    return len({method for name in names for method in METHODS.get(Capability[name], ())} - others)


def declared_next(view: Overview) -> tuple[Undeclared, ...]:
    """The capabilities to declare next, the one with the most unchecked clauses first."""
    tests = Counter(name for one in view.record.executions for name in one.lacks if one.outcome is Outcome.SKIPPED)
    gains = coverage(view).gains
    return tuple(Undeclared(name, Capability[name].value, count, tests[name]) for name, count in gains.items())
