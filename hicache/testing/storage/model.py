"""StorageModel: what a scope may hold by now, as a dictionary; the only one that judges a backend's answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from hicache.errors import InvariantError
from hicache.testing.violation import violation
from hicache.types import HitPolicy

Holding: TypeAlias = frozenset[int | None]
"""The versions of an object that may be there; None: it may be absent."""

ABSENT: Holding = frozenset({None})

Need: TypeAlias = tuple[Sequence[str], HitPolicy, int]
"""What one more pool has to have: the key of each page, the policy, and how many pages are trailing."""


class StorageModel:
    """One scope. `forgets`: objects may be gone at any time, as they make room for others or their reading fails.

    Each answer is judged by what came before, and what it tells is kept. Raises InvariantError naming the clause.
    """

    def __init__(self, *, forgets: bool) -> None:
        self.forgets = forgets
        self._held: dict[str, Holding] = {}

    def may_hold(self, key: str) -> Holding:
        """The versions that may be there."""
        held = self._held.get(key, ABSENT)
        return held | ABSENT if self.forgets else held

    @property
    def keys(self) -> list[str]:
        """The keys of all objects that may be there."""
        return [key for key, held in self._held.items() if held != ABSENT]

    def was_set(self, key: str, version: int, answer: bool) -> None:
        """`set` answered: what was there stays (STORE-5), and what was not is there whole, or not at all (STORE-4)."""
        held = self.may_hold(key)
        if not answer and not self.forgets:
            raise violation("STORE-3", f"set of {key}", "True, nothing is in its way", "False")
        kept = held - ABSENT
        if None in held:
            kept |= {version} if answer else {version, None}
        self._held[key] = kept

    def was_interrupted(self, key: str, version: int) -> None:
        """A `set` began of which nobody knows how it ended."""
        held = self.may_hold(key)
        self._held[key] = held | {version} if None in held else held

    def was_damaged(self, key: str) -> None:
        """What may be there may be unreadable: then it is absent from the next answer on."""
        self._held[key] = self.may_hold(key) | ABSENT

    def was_got(self, key: str, versions: Iterable[int] | None) -> None:
        """`get` answered: with bytes that are those of some versions, or with False (None)."""
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
        """`has` answered."""
        held = self.may_hold(key)
        if answer and held == ABSENT:
            raise violation("STORE-7", f"has of {key}", "False: it was never kept, or is gone since", "True")
        if answer:
            self._held[key] = held - ABSENT
            return
        self._must_be_absent(f"has of {key}", held)
        self._held[key] = held if self.forgets else ABSENT

    def was_cleared(self, answer: bool) -> None:
        """`clear` answered."""
        if answer:
            self._held.clear()
        elif not self.forgets:
            raise violation("STORE-7", "clear", "True", "False")
        else:
            self._held = {key: held | ABSENT for key, held in self._held.items()}

    def was_asked(self, keys: Sequence[str], needs: Sequence[Need], answer: int) -> None:
        """`exists` answered: exactly what a prefix needs, or no more than might be there."""
        most = usable(keys, needs, {key for key in self._named(keys, needs) if self.may_hold(key) != ABSENT})
        least = usable(keys, needs, {key for key in self._named(keys, needs) if None not in self.may_hold(key)})
        if not least <= answer <= most:
            raise violation("STORE-2", f"exists of {len(keys)} pages", f"{least} to {most}", answer)

    def _named(self, keys: Sequence[str], needs: Sequence[Need]) -> set[str]:
        return {*keys, *(key for need in needs for key in need[0])}

    def _must_be_absent(self, place: str, held: Holding) -> None:
        if None not in held:
            raise violation("STORE-4", place, f"version {sorted(map(str, held))}, which was kept", "False")


def usable(keys: Sequence[str], needs: Sequence[Need], there: set[str]) -> int:
    """The longest prefix, tried from the longest on: all of its pages there, and of each pool what its policy asks."""
    return next(
        length
        for length in range(len(keys), -1, -1)
        if there.issuperset(keys[:length]) and all(there.issuperset(_asked_of(need, length)) for need in needs)
    )


def _asked_of(need: Need, length: int) -> Sequence[str]:
    keys, policy, trailing = need
    return keys[:length] if policy is HitPolicy.ALL_PAGES else keys[max(0, length - trailing) : length]


def _wrong_version(key: str, held: Holding, versions: Iterable[int]) -> InvariantError:
    expected = f"version {sorted(map(str, held - ABSENT))}" if held != ABSENT else "False: it was never kept"
    clause = "STORE-5" if held != ABSENT else "STORE-7"
    return violation(clause, f"get of {key}", expected, f"the bytes of version {sorted(versions)}")
