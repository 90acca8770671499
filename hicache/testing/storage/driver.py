"""StorageDriver: calls a backend, and checks each answer and each page of bytes against the model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from hicache.errors import InvariantError
from hicache.storage.base import BATCH_PAGES, PoolQuery, StorageBackend
from hicache.testing.plugin.failures import record_call
from hicache.testing.storage.model import Need, StorageModel
from hicache.testing.storage.page_bytes import Sheet, page_bytes
from hicache.testing.storage.room import has_room, skip_for_room
from hicache.testing.storage.subject import Place
from hicache.testing.violation import violation

Answer = TypeVar("Answer")

_HASH = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{24,}\b")
"""The hash in a key, of which the beginning is shown."""


class StorageDriver:
    """One scope in one place, with at least one open instance.

    `page_size`: bytes of every page. `forgets`: the backend may lose objects, see StorageModel. `operations`: the
    number of verbs called. Each verb raises InvariantError, naming the clause, for an answer that violates it. Where an
    object is missing that the place has no room for, the test is skipped instead.
    """

    def __init__(self, place: Place, *, scope: str = "a", page_size: int | None = None, forgets: bool = False) -> None:
        self.place = place
        self.scope = place.scope(scope)
        self.page_size = place.page_bytes if page_size is None else page_size
        self.model = StorageModel(forgets=forgets)
        self.instances: list[StorageBackend] = []
        self.operations = 0
        self.open()

    def open(self) -> StorageBackend:
        """Open one more instance of the same scope."""
        backend = self.place.open(self.scope)
        self.instances.append(backend)
        return backend

    def reopen(self, instance: int = 0) -> None:
        """Close an instance and open another in its place."""
        self._call("close", self.instances[instance].close)
        self.instances[instance] = self.place.open(self.scope)

    def bytes_of(self, key: str, version: int) -> bytes:
        """The bytes of a version of an object."""
        return page_bytes(self.scope, key, version, self.page_size)

    def sheet(self, keys: Sequence[str], cuts: Sequence[int] | None = None) -> Sheet:
        """Blank memory with a page for each key, each cut into pieces of the given sizes, or whole."""
        return Sheet([cuts or (self.page_size,)] * len(keys))

    def source(self, keys: Sequence[str], version: int, cuts: Sequence[int] | None = None) -> Sheet:
        """Memory that holds a version of each key."""
        self.model.versions.add(version)
        sheet = self.sheet(keys, cuts)
        for number, key in enumerate(keys):
            sheet.write(number, self.bytes_of(key, version))
            self.place.given[self.scope, key] = self.page_size
        return sheet

    def set(
        self, keys: Sequence[str], version: int = 0, *, cuts: Sequence[int] | None = None, instance: int = 0
    ) -> list[bool]:
        """Store a version of each key."""
        sheet = self.source(keys, version, cuts)
        answers = self._call("set", self.instances[instance].set, keys, sheet.pages, [])
        self._check_shape("set", keys, answers)
        for number, (key, answer) in enumerate(zip(keys, answers, strict=True)):
            if sheet.read(number) != self.bytes_of(key, version):
                raise violation("STORE-6", f"set of {key}", "an unchanged source", "other bytes in it")
            with self._absence(is_absent=not answer):
                self.model.was_set(key, version, answer)
        return answers

    def get(self, keys: Sequence[str], *, cuts: Sequence[int] | None = None, instance: int = 0) -> list[bool]:
        """Read each key, and check the bytes."""
        sheet = self.sheet(keys, cuts)
        answers = self._call("get", self.instances[instance].get, keys, sheet.pages, [])
        self._check_shape("get", keys, answers)
        if not sheet.has_its_guards:
            raise violation("STORE-3", f"get of {len(keys)} pages", "no write outside its targets", "other bytes")
        for number, (key, answer) in enumerate(zip(keys, answers, strict=True)):
            versions = self._versions_of(key, sheet.read(number)) if answer else None
            with self._absence(is_absent=not answer):
                self.model.was_got(key, versions)
        return answers

    def has(self, keys: Sequence[str], *, instance: int = 0) -> list[bool]:
        """Ask whether each key is present."""
        answers = self._call("has", self.instances[instance].has, keys)
        self._check_shape("has", keys, answers)
        for key, answer in zip(keys, answers, strict=True):
            with self._absence(is_absent=not answer):
                self.model.was_looked_for(key, answer)
        return answers

    def exists(self, keys: Sequence[str], needs: Sequence[Need] = (), *, instance: int = 0) -> int:
        """Ask for the longest usable prefix."""
        queries = [PoolQuery(*need) for need in needs]
        answer = self._call("exists", self.instances[instance].exists, keys, queries, [])
        if type(answer) is not int:
            raise violation("STORE-12", "exists", f"an int from 0 to {len(keys)}", repr(answer))
        with self._absence(is_absent=answer < len(keys)):
            self.model.was_asked(keys, needs, answer)
        return answer

    def clear(self, *, instance: int = 0) -> bool:
        """Remove all objects of the scope."""
        answer = self._call("clear", self.instances[instance].clear)
        if type(answer) is not bool:
            raise violation("STORE-12", "clear", "a bool", repr(answer))
        self.model.was_cleared(answer)
        return answer

    def get_all(self, keys: Sequence[str], *, instance: int = 0) -> list[bool]:
        """Read any number of keys, in batches."""
        batches = [keys[begin : begin + BATCH_PAGES] for begin in range(0, len(keys), BATCH_PAGES)]
        return [answer for batch in batches for answer in self.get(batch, instance=instance)]

    def get_unequal(self, keys: Sequence[str], targets: int, *, instance: int = 0) -> None:
        """Call `get` with another number of targets than keys (STORE-6)."""
        sheet = self.sheet(range(targets))  # type: ignore[arg-type]
        answers = self._call("get", self.instances[instance].get, keys, sheet.pages, [])
        self._check_refusal("get", keys, answers)
        if not (sheet.is_blank and sheet.has_its_guards):
            raise violation("STORE-6", f"get of {len(keys)} keys into {targets} targets", "no target touched", "bytes")

    def set_unequal(self, keys: Sequence[str], sources: int, version: int, *, instance: int = 0) -> None:
        """Call `set` with another number of sources than keys (STORE-6)."""
        sheet = self.source([f"other/{number}" for number in range(sources)], version)
        answers = self._call("set", self.instances[instance].set, keys, sheet.pages, [])
        self._check_refusal("set", keys, answers)

    @contextmanager
    def _absence(self, *, is_absent: bool) -> Iterator[None]:
        """The block compares an answer with the model. Skip the test if the place has no room for what is absent."""
        try:
            yield
        except InvariantError:
            given = self.place.given
            if is_absent and not has_room(self.place, len(given), sum(given.values())):
                skip_for_room(self.place, len(given))
            raise

    def _call(self, verb: str, function: Callable[..., Answer], *arguments: object) -> Answer:
        self.operations += 1
        asked = self._shown(function, arguments)
        try:
            answer = function(*arguments)
        except Exception as error:
            record_call(self, (verb, *asked, error))
            raise violation("STORE-3", verb, "an answer also after a fault", f"the exception {error!r}") from error
        record_call(self, (verb, *asked, answer))
        return answer

    def _shown(
        self, function: Callable[..., object], arguments: Sequence[object]
    ) -> tuple[tuple[object, ...], dict[str, int]]:
        """The arguments of a call as a failure shows them: keys and queries, no pages; of several instances, which."""
        lists = [one for one in arguments if isinstance(one, (list, tuple)) and one]
        shown = [
            [_HASH.sub(r"\1…", key) if isinstance(key, str) else key for key in one]
            for one in lists
            if isinstance(one[0], (str, PoolQuery))
        ]
        of = [number for number, one in enumerate(self.instances) if one is getattr(function, "__self__", None)]
        return tuple(shown), {"instance": of[0]} if of and len(self.instances) > 1 else {}

    def _check_shape(self, verb: str, keys: Sequence[str], answers: Sequence[bool]) -> None:
        if type(answers) is not list or len(answers) != len(keys) or not all(type(one) is bool for one in answers):
            raise violation("STORE-12", f"{verb} of {len(keys)} keys", "a list with a bool for each key", repr(answers))

    def _check_refusal(self, verb: str, keys: Sequence[str], answers: Sequence[bool]) -> None:
        if answers != [False] * len(keys):
            raise violation("STORE-6", f"{verb} of {len(keys)} keys and another number of pages", "False each", answers)

    def _versions_of(self, key: str, data: bytes) -> list[int]:
        # The possible versions come first; the others only serve to name whose bytes were found.
        for candidates in (self.model.may_hold(key), self.model.versions):
            versions = [one for one in candidates if one is not None and data == self.bytes_of(key, one)]
            if versions:
                return versions
        raise violation("STORE-3", f"get of {key}", "the bytes of one of its versions", self._described(data))

    def _described(self, data: bytes) -> str:
        """A description of bytes: the page they match in part, if any."""
        for key in self.model.keys:
            for version in self.model.versions:
                whole = self.bytes_of(key, version)
                same = np.count_nonzero(np.frombuffer(whole, np.uint8) == np.frombuffer(data, np.uint8))
                if same > self.page_size // 8:
                    return f"{same} of {self.page_size} bytes of {key} version {version}, and {data[:8].hex()}… in all"
        return f"{data[:16].hex()}…, which match no page"
