"""Pairing: which entry of an inventory is which of another one: the same, moved, renamed, new or lost.

An entry is a dictionary with at least `name`, `where` (a file) and `clauses`; its label is `where::name`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

Entry = Mapping[str, Any]
Renames = Mapping[str, Sequence[str]]
"""Old labels or bare names, and the new ones that stand for each."""

SIMILAR = 0.6
"""From this likeness on, two names of the same clauses and as many cases may be one."""


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
