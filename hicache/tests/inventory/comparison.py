"""Comparison: what of an earlier inventory is the same, moved, renamed, new or lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from hicache.tests.inventory.sizes import table

Inventory = Mapping[str, Any]

Entry = Mapping[str, Any]
"""What is compared: at least a `name`, `where` it is, a file, and its `clauses`. Its label is `where::name`."""

Renames = Mapping[str, Sequence[str]]
"""Old labels or bare names, and the new ones that stand for each."""

SIMILAR = 0.6
"""From this likeness on, two names of the same clauses and as many cases may be one."""

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
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) == new.get(name):
                continue
            line = f"{what}: {name} was {old.get(name, 'no field')}, is {new.get(name, 'no field')}"
            (self.lost if name in old and name in new else self.notes).append(line)

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
                self.notes.append(f"{name}: said {old['told']!r} before, {[one['told'] for one in new]} now")

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


@dataclass
class Pairing:
    """`same`, `moved`, `similar`: an old entry and its new one. `listed`: an old one and those that a person named.

    A pair of `similar` is a guess: only the names differ, and they are alike.
    """

    same: list[tuple[Entry, Entry]] = field(default_factory=list)
    moved: list[tuple[Entry, Entry]] = field(default_factory=list)
    similar: list[tuple[Entry, Entry]] = field(default_factory=list)
    listed: list[tuple[Entry, list[Entry]]] = field(default_factory=list)
    new: list[Entry] = field(default_factory=list)
    lost: list[Entry] = field(default_factory=list)

    def pairs(self) -> Iterator[tuple[Entry, list[Entry]]]:
        """Each old entry that is still there, with the new ones that stand for it."""
        for old, new in (*self.same, *self.moved, *self.similar):
            yield old, [new]
        yield from self.listed

    def successors(self) -> dict[str, set[str]]:
        """The new labels by the old one."""
        return {label(old): {label(one) for one in new} for old, new in self.pairs()}


def label(entry: Entry) -> str:
    """The name of an entry and its file."""
    return f"{entry['where']}::{entry['name']}" if entry["where"] else str(entry["name"])


def pair(before: Sequence[Entry], now: Sequence[Entry], renames: Renames, threshold: float = SIMILAR) -> Pairing:
    """Pair two lists: by the renames that a person listed, by label, by name, and at last by likeness."""
    pairing, old, new = Pairing(), _Left(before), _Left(now)
    for one in list(old):
        if names := renames.get(label(one), renames.get(one["name"])):
            found = [entry for entry in now if label(entry) in names or entry["name"] in names]
            if found:
                pairing.listed.append((old.take(one), [new.take(entry) for entry in found]))
    for one in list(old):
        if twin := next((entry for entry in new.named(one["name"]) if entry["where"] == one["where"]), None):
            pairing.same.append((old.take(one), new.take(twin)))
    for one in list(old):
        twin = max(new.named(one["name"]), key=lambda entry: _overlap(one, entry), default=None)
        if twin is not None:
            pairing.moved.append((old.take(one), new.take(twin)))
    for one, twin in _similar(list(old), list(new), threshold):
        pairing.similar.append((old.take(one), new.take(twin)))
    pairing.new, pairing.lost = list(new), list(old)
    return pairing


class _Left:
    """The entries that have no partner yet, in their order."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = {id(entry): entry for entry in entries}

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def named(self, name: str) -> list[Entry]:
        return [entry for entry in self._entries.values() if entry["name"] == name]

    def take(self, entry: Entry) -> Entry:
        """Remove an entry; several old ones may be listed as one new one."""
        self._entries.pop(id(entry), None)
        return entry


def _overlap(old: Entry, new: Entry) -> float:
    """How much two entries of one name have in common: clauses first, then cases."""
    scores = [_jaccard(old.get(kind, ()), new.get(kind, ())) for kind in ("clauses", "cases")]
    return 2 * scores[0] + scores[1]


def _jaccard(old: Iterable[str], new: Iterable[str]) -> float:
    both, either = {*old} & {*new}, {*old} | {*new}
    return len(both) / len(either) if either else 1.0


def _similar(before: Sequence[Entry], now: Sequence[Entry], threshold: float) -> list[tuple[Entry, Entry]]:
    """Pairs of alike names, the likest first. Both have the same clauses and as many cases."""
    score = _scorer()
    candidates = [(score(old, new), number, old, new) for number, old in enumerate(before) for new in now]
    candidates = [candidate for candidate in candidates if candidate[0] >= threshold]
    chosen, taken = [], set[int]()
    for _, _, old, new in sorted(candidates, key=lambda candidate: (-candidate[0], candidate[1])):
        if not {id(old), id(new)} & taken:
            taken |= {id(old), id(new)}
            chosen.append((old, new))
    return chosen


def _scorer() -> Callable[[Entry, Entry], float]:
    matcher = SequenceMatcher(autojunk=False)

    def score(old: Entry, new: Entry) -> float:
        if {*old["clauses"]} != {*new["clauses"]} or len(old.get("cases", ())) != len(new.get("cases", ())):
            return 0.0
        matcher.set_seqs(old["name"], new["name"])
        in_one_file: bool = old["where"] == new["where"]
        return matcher.ratio() + 0.1 * in_one_file

    return score
