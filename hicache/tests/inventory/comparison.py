"""Compares two inventories: what is the same, moved, renamed, new or lost, and where what stayed covers less."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hicache.tests.inventory.pairing import SIMILAR, Entry, Pairing, Renames, label, pair
from hicache.tests.inventory.sizes import table

Inventory = Mapping[str, Any]

KINDS = ("tests", "laws", "invariants", "mutants", "unseen", "defects", "machines")

THRESHOLDS = {"invariants": 0.0}
"""An invariant of the core is a sentence: any left over may be the same one in other words."""


class Comparison:
    """`lost`: what is missing or covers less now, a line each. `notes`: what is different and no loss."""

    def __init__(self, before: Inventory, now: Inventory, renames: Renames) -> None:
        self.lost: list[str] = []
        self.notes: list[str] = []
        self._before, self._now = before, now
        self.pairings: dict[str, Pairing] = {}
        for kind in KINDS:
            threshold = THRESHOLDS.get(kind, SIMILAR)
            self.pairings[kind] = pair(before.get(kind, ()), now.get(kind, ()), renames, threshold)
            self.lost += [f"{kind}: {label(entry)}" for entry in self.pairings[kind].lost]
        self._judge_tests()
        self._judge_clauses()
        self._judge_configurations()
        for old, new in self.pairings["laws"].pairs():
            self._require_all(f"laws: {label(old)}", "clause", old["clauses"], _union(new, "clauses"))
        for kind in ("mutants", "unseen"):
            self._judge_mutants(kind)
        self._judge_defects()
        self._judge_machines()

    def _require_all(self, what: str, noun: str, before: Iterable[str], now: Iterable[str]) -> None:
        if missing := sorted({*before} - {*now}):
            self.lost.append(f"{what}: {noun} {', '.join(missing)}")

    def _judge_tests(self) -> None:
        listed = {label(old) for old, _ in self.pairings["tests"].listed}
        for old, new in self.pairings["tests"].pairs():
            name = f"tests: {label(old)}"
            cases, others = old["cases"], dict(case for one in new for case in one["cases"].items())
            self._require_all(name, "clause", old["clauses"], _union(new, "clauses"))
            self._require_all(name, "configuration", {*cases.values()} - {""}, others.values())
            if len(cases) > len(others) and label(old) not in listed:
                self.lost.append(f"{name}: {len(cases)} cases before, {len(others)} now")
            elif gone := sorted(cases.keys() - others.keys()):
                self.notes.append(f"{name}: cases {', '.join(gone)} have other ids")
            skipped = sum(one["skipped"] for one in new)
            if skipped > old["skipped"]:
                self.lost.append(f"{name}: {old['skipped']} skipped before, {skipped} now")
            if old.get("limits") is not None and old["limits"] not in [one.get("limits") for one in new]:
                self.lost.append(f"{name}: Hypothesis had {old['limits']}, now {[one.get('limits') for one in new]}")

    def _judge_clauses(self) -> None:
        now = self._now["clauses"]
        for clause, old in self._before["clauses"].items():
            new = now.get(clause, {"items": 0, "tests": {}})
            self._require_all(f"clauses: {clause}", "on configuration", _run_on(old), _run_on(new))
            if new["items"] < old["items"]:
                self.notes.append(f"clauses: {clause}: {old['items']} tests before, {new['items']} now")
            if not new["items"]:
                self.lost.append(f"clauses: {clause}: no test now")

    def _judge_configurations(self) -> None:
        """Configurations, and the profiles of Hypothesis: each by its suite and name, field by field."""
        for kind in ("configurations", "profiles"):
            for suite, old in self._before[kind].items():
                new = self._now[kind].get(suite, {})
                self._require_all(f"{kind}: {suite}", "named", old, new)
                for name in old.keys() & new.keys():
                    self._judge_fields(f"{kind}: {suite}: {name}", old[name], new[name])

    def _judge_fields(self, what: str, old: Mapping[str, str], new: Mapping[str, str]) -> None:
        for field in sorted(old.keys() | new.keys()):
            if old.get(field) == new.get(field):
                continue
            line = f"{what}: {field} was {old.get(field, 'no field')}, is {new.get(field, 'no field')}"
            (self.lost if field in old and field in new else self.notes).append(line)

    def _judge_mutants(self, kind: str) -> None:
        successors = self.pairings["tests"].successors()
        for old, new in self.pairings[kind].pairs():
            name = f"{kind}: {label(old)}"
            self._require_all(name, "clause", old["clauses"], _union(new, "clauses"))
            expected = {killer for test in old["killers"] for killer in _moved(test, successors)}
            found = {killer for one in new for killer in one["killers"]}
            if not expected & found:
                self.lost.append(f"{name}: found by {', '.join(old['killers'])}, now by {', '.join(sorted(found))}")
            elif not {*old["killers"]} & found:
                self.notes.append(f"{name}: its test moved to {', '.join(sorted(expected & found))}")
            if old["told"] not in [one["told"] for one in new]:
                self.notes.append(f"{name}: told {old['told']!r} before, {[one['told'] for one in new]} now")

    def _judge_defects(self) -> None:
        successors = self.pairings["tests"].successors()
        for old, new in self.pairings["defects"].pairs():
            found: dict[str, set[str]] = {}
            for one in new:
                for test, clauses in one["killers"].items():
                    found.setdefault(test, set()).update(clauses)
            for test, clauses in old["killers"].items():
                tests = successors.get(test, set()) & found.keys()
                missing = {*clauses} - set().union(*(found[name] for name in tests))
                if missing or not tests:
                    where = ", ".join(f"{name} {sorted(words)}" for name, words in found.items())
                    line = f"defects: {label(old)}: found by {test} {clauses}, now by {where}"
                    (self.lost if clauses else self.notes).append(line)

    def _judge_machines(self) -> None:
        for old, new in self.pairings["machines"].pairs():
            name = f"machines: {label(old)}"
            budgets = sum((Counter(one["budgets"]) for one in new), Counter[str]())
            for budget, times in old["budgets"].items():
                if budgets[budget] < times:
                    self.lost.append(f"{name}: {times} searches of {budget}, now {budgets[budget]}")
            for kind in ("rules", "initializers", "invariants"):
                gone, came = sorted({*old[kind]} - _union(new, kind)), sorted(_union(new, kind) - {*old[kind]})
                if gone:
                    line = f"{name}: {kind} {', '.join(gone)} gone, {', '.join(came) or 'none'} new"
                    (self.lost if len(gone) > len(came) else self.notes).append(line)

    def lines(self) -> Iterator[str]:
        """The comparison as text."""
        yield f"{'':12}{'before':>8}{'now':>8}{'same':>8}{'moved':>8}{'renamed?':>10}{'listed':>8}{'new':>8}{'lost':>8}"
        for kind, pairing in self.pairings.items():
            totals = [len(self._before.get(kind, ())), len(self._now.get(kind, ())), len(pairing.same)]
            others = [len(pairing.listed), len(pairing.new), len(pairing.lost)]
            counts = f"{len(pairing.moved):8}{len(pairing.similar):10}" + "".join(f"{count:8}" for count in others)
            yield f"{kind:12}" + "".join(f"{count:8}" for count in totals) + counts
        yield from ("", table(self._before["sizes"], self._now["sizes"]))
        for kind, pairing in self.pairings.items():
            yield from _described(kind, pairing)
        yield from ("", f"{len(self.notes)} notes", *(f"  {line}" for line in self.notes))
        yield from ("", f"{len(self.lost)} lost", *(f"  {line}" for line in self.lost))


def _described(kind: str, pairing: Pairing) -> Iterator[str]:
    moves: dict[tuple[str, str], list[str]] = {}
    for old, new in pairing.moved:
        moves.setdefault((old["where"], new["where"]), []).append(old["name"])
    for (source, target), names in sorted(moves.items()):
        yield f"{kind} moved: {source} → {target}: {', '.join(names)}"
    for old, twin in pairing.similar:
        yield f"{kind} renamed? {label(old)} → {label(twin)}"
    for old, several in pairing.listed:
        yield f"{kind} listed: {label(old)} → {', '.join(map(label, several))}"
    for entry in pairing.new:
        yield f"{kind} new: {label(entry)}"


def _union(entries: Iterable[Entry], kind: str) -> set[str]:
    return {value for entry in entries for value in entry[kind]}


def _run_on(clause: Mapping[str, Any]) -> set[str]:
    return {name for names in clause["tests"].values() for name in names} - {""}


def _moved(test: str, successors: Mapping[str, set[str]]) -> Iterator[str]:
    """Where a test is now. `test`: its label, perhaps with a case in brackets."""
    name, bracket, case = test.partition("[")
    for successor in successors.get(name, ()):
        yield f"{successor}{bracket}{case}"
