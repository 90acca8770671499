"""FaultRuns: short random sequences of verbs on a failing disk, each answer checked against the model."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hicache.errors import InvariantError
from hicache.testing.storage.driver import StorageDriver
from hicache.testing.storage.faults import DiskFaults
from hicache.testing.storage.page_bytes import cut_evenly
from hicache.testing.storage.room import has_room
from hicache.testing.storage.subject import BackendSubject, Place
from hicache.types import HitPolicy

FAULT_PAGE = 256

_PAGES = tuple(f"kv/{number}" for number in range(6))
_STATES = tuple(f"mamba/{number}" for number in range(6))
_MIN_VERBS, _MAX_VERBS = 4, 14
_SHARE_OF_FAULTS = 0.5
_FAULTS = ("error", "partial", "short", "torn", "gone")
_RATE = 0.08
"""The faults that the wrapper injects, and the probability of each."""

_SMALL_CAPACITY_PAGES = 5
"""The capacity in pages of a run with a small capacity."""


@dataclass(frozen=True, slots=True)
class FaultCounts:
    """`faults`: calls that were made to fail. `hits`, `misses`: pages that were read."""

    runs: int
    faults: int
    operations: int
    hits: int
    misses: int

    def __add__(self, other: FaultCounts) -> FaultCounts:
        return FaultCounts(
            self.runs + other.runs,
            self.faults + other.faults,
            self.operations + other.operations,
            self.hits + other.hits,
            self.misses + other.misses,
        )


NO_RUNS = FaultCounts(0, 0, 0, 0, 0)


def fault_run(subject: BackendSubject, folder: Path, seed: int, operations: list[int] | None = None) -> FaultCounts:
    """One run in a folder of its own, which is removed afterwards; the same for the same seed.

    `operations`: gets the number of verbs, also of a run that fails. Raises InvariantError naming the seed and the
    clause.
    """
    run = FaultRun(subject, folder, seed)
    try:
        run.run()
    except InvariantError as error:
        raise InvariantError(f"fault run with seed {seed}: {error}") from error
    else:
        return run.counts
    finally:
        if operations is not None:
            operations.append(run.counts.operations)
        run.close()


class FaultRun:
    """One run of verbs, half of them on a failing disk. Half of the runs use a wrapper that injects faults.

    At the end the same backend is used with a working disk and without the wrapper.
    """

    def __init__(self, subject: BackendSubject, folder: Path, seed: int) -> None:
        self._rng = random.Random(seed)
        self._is_short = subject.is_bounded and self._rng.random() < 1 / 3
        capacity = _SMALL_CAPACITY_PAGES * FAULT_PAGE if self._is_short else 1 << 20
        self._place = Place(subject, folder, page_bytes=FAULT_PAGE, capacity_bytes=capacity)
        names = len(_PAGES) + len(_STATES)
        self._is_short |= not has_room(self._place, names, names * FAULT_PAGE)
        if self._rng.random() < _SHARE_OF_FAULTS:
            self._place.faults = {"seed": seed, **dict.fromkeys(_FAULTS, _RATE)}
        self._forgets = self._is_short or bool(self._place.faults)
        self._store = StorageDriver(self._place, forgets=self._forgets)
        self._disk = DiskFaults(self._rng)
        self._answers = [0, 0]

    @property
    def counts(self) -> FaultCounts:
        """The counts of this run."""
        faults = self._disk.injected + self._place.injected
        return FaultCounts(1, faults, self._store.operations, self._answers[True], self._answers[False])

    def run(self) -> None:
        """Run all verbs. Raises InvariantError naming the clause."""
        verbs = (self._set, self._set, self._get, self._get, self._has, self._exists, self._clear, self._reopen)
        self._set()
        for _ in range(self._rng.randint(_MIN_VERBS, _MAX_VERBS)):
            self._rng.choice(verbs)()
        self._recover()

    def close(self) -> None:
        """Close the backend and remove its files."""
        self._place.close()

    def _recover(self) -> None:
        """Reopen with a working disk, and check that every page can be stored and read."""
        self._place.faults = {}
        for instance in range(len(self._store.instances)):
            self._store.reopen(instance)
        self._get_all()
        for key in (*_PAGES, *_STATES):
            if self._forgets:
                self._store.model.was_damaged(key)
            self._store.model.forgets = False
            self._store.set([key], self._version())
            self._store.get([key])
            self._store.model.forgets = self._is_short
        if not self._is_short:
            self._get_all()

    def _get_all(self) -> None:
        self._count(self._store.get([*_PAGES, *_STATES], instance=self._instance()))

    def _set(self) -> None:
        keys, version, cuts, instance = self._keys(), self._version(), self._cuts(), self._instance()
        with self._perhaps_faulty():
            self._store.set(keys, version, cuts=cuts, instance=instance)

    def _get(self) -> None:
        keys, cuts, instance = self._keys(), self._cuts(), self._instance()
        with self._perhaps_faulty():
            answers = self._store.get(keys, cuts=cuts, instance=instance)
        self._count(answers)

    def _has(self) -> None:
        keys, instance = self._keys(), self._instance()
        with self._perhaps_faulty():
            self._store.has(keys, instance=instance)

    def _exists(self) -> None:
        policy, instance = self._rng.choice(list(HitPolicy)), self._instance()
        with self._perhaps_faulty():
            self._store.exists(_PAGES, [(_STATES, policy, self._rng.randint(1, 3))], instance=instance)

    def _clear(self) -> None:
        instance = self._instance()
        with self._perhaps_faulty():
            self._store.clear(instance=instance)

    def _reopen(self) -> None:
        """Close and reopen an instance, or open one more."""
        if len(self._store.instances) == 1 and self._rng.random() < _SHARE_OF_FAULTS:
            self._store.open()
        else:
            self._store.reopen(self._instance())

    @contextmanager
    def _perhaps_faulty(self) -> Iterator[None]:
        """Perhaps make the disk fail for one verb. Only then may objects be lost despite free capacity."""
        if self._rng.random() >= _SHARE_OF_FAULTS:
            yield
            return
        self._store.model.forgets = True
        with self._disk.on():
            yield
        self._store.model.forgets = self._forgets

    def _keys(self) -> list[str]:
        return self._rng.sample([*_PAGES, *_STATES], self._rng.randint(1, 5))

    def _version(self) -> int:
        return self._rng.randrange(4)

    def _cuts(self) -> tuple[int, ...]:
        return cut_evenly(FAULT_PAGE, self._rng.choice([1, 3, 16]))

    def _instance(self) -> int:
        return self._rng.randrange(len(self._store.instances))

    def _count(self, answers: Sequence[bool]) -> None:
        for answer in answers:
            self._answers[answer] += 1
