"""StorageModel: the objects that a scope may hold, as a dictionary; it checks every answer of a backend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from hicache.errors import InvariantError
from hicache.testing.violation import violation
from hicache.types import HitPolicy

Versions: TypeAlias = frozenset[int | None]
"""The versions of an object that may be present; None: it may be absent."""

ABSENT: Versions = frozenset({None})

Need: TypeAlias = tuple[Sequence[str], HitPolicy, int]
"""The need of one more pool: the key of each page, the hit policy, and the number of trailing pages."""


class StorageModel:
    """One scope. `forgets`: objects may be lost at any time, through eviction or failed reads.

    `versions`: those that any object may have or had.
    Each answer is checked against the earlier ones, and recorded. Raises InvariantError naming the clause.
    """

    def __init__(self, *, forgets: bool) -> None:
        self.forgets = forgets
        self.versions: set[int] = set()
        self._held: dict[str, Versions] = {}

    def may_hold(self, key: str) -> Versions:
        """The versions that may be present."""
        held = self._held.get(key, ABSENT)
        return held | ABSENT if self.forgets else held

    @property
    def keys(self) -> list[str]:
        """The keys of all objects that may be present."""
        return [key for key, held in self._held.items() if held != ABSENT]

    def was_set(self, key: str, version: int, answer: bool) -> None:
        """Record an answer of `set`: an existing object stays (STORE-5), a new one is whole or absent (STORE-4)."""
        held = self.may_hold(key)
        if not answer and not self.forgets:
            raise violation("STORE-3", f"set of {key}", "True, as nothing prevents it", "False")
        kept = held - ABSENT
        if None in held:
            kept |= {version} if answer else {version, None}
        self._held[key] = kept

    def was_interrupted(self, key: str, version: int) -> None:
        """Record a `set` with an unknown end."""
        self.versions.add(version)
        held = self.may_hold(key)
        self._held[key] = held | {version} if None in held else held

    def was_damaged(self, key: str) -> None:
        """Record that an object may be unreadable; it is absent from the next answer on."""
        self._held[key] = self.may_hold(key) | ABSENT

    def was_got(self, key: str, versions: Iterable[int] | None) -> None:
        """Record an answer of `get`: the versions whose bytes were read, or None for False."""
        held = self.may_hold(key)
        if versions is None:
            self._must_be_absent(f"get of {key}", held)
            self._held[key] = held if self.forgets else ABSENT
            return
        found = held & frozenset(versions)
        if not found:
            raise _wrong_version(key, held, versions)
        self._held[key] = found

    def was_looked_for(self, key: str, answer: bool) -> None:
        """Record an answer of `has`."""
        held = self.may_hold(key)
        if answer and held == ABSENT:
            raise violation("STORE-7", f"has({key})", "False, as it was never stored or was removed", "True")
        if answer:
            self._held[key] = held - ABSENT
            return
        self._must_be_absent(f"has({key})", held)
        self._held[key] = held if self.forgets else ABSENT

    def was_cleared(self, answer: bool) -> None:
        """Record an answer of `clear`."""
        if answer:
            self._held.clear()
        elif not self.forgets:
            raise violation("STORE-7", "clear", "True", "False")
        else:
            self._held = {key: held | ABSENT for key, held in self._held.items()}

    def was_asked(self, keys: Sequence[str], needs: Sequence[Need], answer: int) -> None:
        """Record an answer of `exists`: exactly the usable prefix, or a length that may be usable."""
        most = usable(keys, needs, {key for key in self._named(keys, needs) if self.may_hold(key) != ABSENT})
        least = usable(keys, needs, {key for key in self._named(keys, needs) if None not in self.may_hold(key)})
        if not least <= answer <= most:
            raise violation("STORE-2", f"exists of {len(keys)} pages", f"{least} to {most}", answer)

    def _named(self, keys: Sequence[str], needs: Sequence[Need]) -> set[str]:
        return {*keys, *(key for need in needs for key in need[0])}

    def _must_be_absent(self, place: str, held: Versions) -> None:
        if None not in held:
            raise violation("STORE-4", place, f"version {sorted(map(str, held))}, which was stored", "False")


def usable(keys: Sequence[str], needs: Sequence[Need], there: set[str]) -> int:
    """The longest prefix whose pages are all present, with what the policy of each pool needs."""
    return next(
        length
        for length in range(len(keys), -1, -1)
        if there.issuperset(keys[:length]) and all(there.issuperset(_needed_keys(need, length)) for need in needs)
    )


def _needed_keys(need: Need, length: int) -> Sequence[str]:
    keys, policy, trailing = need
    return keys[:length] if policy is HitPolicy.ALL_PAGES else keys[max(0, length - trailing) : length]


def _wrong_version(key: str, held: Versions, versions: Iterable[int]) -> InvariantError:
    expected = f"version {sorted(map(str, held - ABSENT))}" if held != ABSENT else "False, as it was never stored"
    clause = "STORE-5" if held != ABSENT else "STORE-7"
    return violation(clause, f"get of {key}", expected, f"the bytes of version {sorted(versions)}")
