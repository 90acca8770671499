"""CrashStates: the files of a store after a crash at each system call of a batch, and what a new process finds there.

The calls are recorded with strace, from the opening of the store to its end. A state has the files as they were before
and a prefix of the calls. Writes that were not synchronised may be missing in it, be zeros, or be torn, as after a loss
of power.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any

from hicache.testing.storage.batch_process import (
    ACKNOWLEDGED,
    BATCH,
    EARLIER,
    bytes_of,
    opened,
    read,
    store,
)

CALLS = (
    *("openat", "mkdir", "rmdir", "link", "linkat", "rename", "unlink", "unlinkat", "symlink", "truncate"),
    *("write", "pwrite64", "writev", "pwritev", "pwritev2", "ftruncate", "fallocate", "fsync", "fdatasync"),
)
"""The system calls that are recorded: those that change files or folders."""

SECTOR = 512
"""What a disk writes as a whole."""

_MODULE = "hicache.testing.storage.batch_process"
_LINE = re.compile(r"^\d+ +(\w+)\((.*)\) += (-?\d+)")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_FILE = re.compile(r"^\d+<((?:\\x[0-9a-f]{2})*)>")
_BEGUN = " <unfinished ...>"
_RESUMED = re.compile(r"^\d+ +<\.\.\. \w+ resumed>(.*)$")
_MAX_BYTES = 1 << 20


class Fate(Enum):
    """What became of a write that was not synchronised."""

    KEPT = "kept"
    MISSING = "missing"
    ZEROS = "zeros"
    TORN = "torn"


@dataclass(frozen=True, slots=True)
class SystemCall:
    """One system call that succeeded. `paths`: relative to the folder. `data`: of a write; `number`: a size of a file.

    `offset`: where a write goes, None for the end of the file. `truncates`: it opens a file and empties it.
    """

    name: str
    paths: tuple[str, ...]
    data: bytes = b""
    offset: int | None = None
    number: int = 0
    truncates: bool = False

    @property
    def is_write(self) -> bool:
        """Whether it writes bytes to a file."""
        return bool(self.data)


@dataclass(slots=True)
class CrashCounts:
    """`states`: distinct ones. `kept`, `lost`: pages of the batch; `failures`: a line for each violation."""

    states: int = 0
    kept: int = 0
    lost: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, other: CrashCounts) -> None:
        """Add the counts of other states."""
        self.states += other.states
        self.kept += other.kept
        self.lost += other.lost
        self.failures += other.failures

    def __str__(self) -> str:
        return f"{self.states:,} states, {self.kept:,} pages kept, {self.lost:,} lost, {len(self.failures)} failures"


class CrashStates:
    """The states of one batch of a backend, whose files are below a folder that this makes.

    `is_synced`: the options make an acknowledged page survive a loss of power.
    """

    def __init__(self, name: str, options: Mapping[str, Any], folder: Path, *, is_synced: bool) -> None:
        self._name, self._options, self._is_synced = name, options, is_synced
        self._base, self._work, self._place = folder / "before", folder / "traced", folder / "after"
        with opened(name, options, self._base) as backend:
            assert store(backend, EARLIER) == [True] * len(EARLIER), f"expected {name} to store the earlier pages"
        shutil.copytree(self._base, self._work)
        self.calls, self.acknowledged = self._traced(folder / "calls")
        self._seen = set[bytes]()

    def run(self, seeds: Sequence[int], *, every: int = 1) -> CrashCounts:
        """Check the states after each prefix of the calls: with all writes, and for each seed with other fates.

        `every`: check only the prefixes whose length is a multiple of it, and the longest.
        """
        counts = CrashCounts()
        for end in sorted({*range(0, len(self.calls), every), len(self.calls)}):
            done = self.calls[:end]
            for fates in self._fates(done, seeds):
                self._make(done, fates)
                if self._is_new():
                    counts.states += 1
                    is_acknowledged = end >= self.acknowledged and (self._is_synced or not fates)
                    self._check(counts, f"after {end} calls, {fates}", is_acknowledged=is_acknowledged)
        return counts

    def _traced(self, log: Path) -> tuple[list[SystemCall], int]:
        """Store the batch in another process; returns its calls, and how many were made when it was acknowledged."""
        command = [sys.executable, "-m", _MODULE, self._name, json.dumps(self._options), str(self._work)]
        strace = ["strace", "-f", "-y", "-xx", "-s", str(_MAX_BYTES), "-e", f"trace={','.join(CALLS)}", "-o", str(log)]
        subprocess.run([*strace, *command], check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - a Python of our own
        return read_trace(log, self._work)

    def _fates(self, done: Sequence[SystemCall], seeds: Sequence[int]) -> Iterator[dict[int, Fate]]:
        """The fates of the writes that are not synchronised: all kept, all missing, all zeros, and drawn ones."""
        yield {}
        loose = unsynced(done)
        if not loose:
            return
        yield dict.fromkeys(loose, Fate.MISSING)
        yield dict.fromkeys(loose, Fate.ZEROS)
        for seed in seeds:
            rng = Random(f"{len(done)}/{seed}")
            yield {number: rng.choice(list(Fate)) for number in loose}

    def _make(self, done: Sequence[SystemCall], fates: Mapping[int, Fate]) -> None:
        shutil.rmtree(self._place, ignore_errors=True)
        shutil.copytree(self._base, self._place)
        for number, call in enumerate(done):
            apply(call, self._place, fates.get(number, Fate.KEPT))

    def _is_new(self) -> bool:
        digest = hashlib.sha256()
        for path in sorted(self._place.rglob("*")):
            digest.update(f"{path.relative_to(self._place)}\0{path.is_dir()}\0".encode())
            if path.is_file():
                digest.update(path.read_bytes())
        is_new = digest.digest() not in self._seen
        self._seen.add(digest.digest())
        return is_new

    def _check(self, counts: CrashCounts, place: str, *, is_acknowledged: bool) -> None:
        """Open the store again: what was acknowledged is there, and what was not is whole or absent."""
        keys = [*EARLIER, *BATCH]
        try:
            with opened(self._name, self._options, self._place) as backend:
                found = read(backend, keys)
                again = store(backend, BATCH)
                after = read(backend, BATCH)
        except Exception as error:  # noqa: BLE001 - a store must open after a crash, any exception is a failure
            counts.failures.append(f"{place}: {error!r}")
            return
        counts.kept += sum(one is not None for one in found[len(EARLIER) :])
        counts.lost += found[len(EARLIER) :].count(None)
        wrong = [key for key, one in zip(keys, found, strict=True) if one not in (None, bytes_of(key))]
        wrong += [key for key, one in zip(BATCH, after, strict=True) if one not in (None, bytes_of(key))]
        lost = [key for key, one in zip(keys, found, strict=True) if one is None] if is_acknowledged else []
        if wrong or lost:
            counts.failures.append(f"{place}: wrong {wrong}, acknowledged and lost {lost}")
        if again != [True] * len(BATCH) or None in after:
            counts.failures.append(f"{place}: not stored again: {again}, {[one is not None for one in after]}")


def unsynced(done: Sequence[SystemCall]) -> list[int]:
    """The numbers of the writes to files that were not synchronised since."""
    loose: dict[int, str] = {}
    for number, call in enumerate(done):
        if call.is_write:
            loose[number] = call.paths[0]
        elif call.name in {"fsync", "fdatasync"}:
            loose = {other: path for other, path in loose.items() if path != call.paths[0]}
        elif call.name in {"link", "linkat", "rename"}:
            # A file is known by its last name.
            loose = {other: call.paths[1] if path == call.paths[0] else path for other, path in loose.items()}
    return list(loose)


def apply(call: SystemCall, folder: Path, fate: Fate) -> None:
    """Do in a folder what a call did. A file that is no longer there is not written to."""
    path = folder / call.paths[0]
    if call.is_write:
        if path.exists():
            _write(path, call, fate)
    elif call.name == "openat":
        path.open("wb" if call.truncates else "ab").close()
    elif call.name == "mkdir":
        path.mkdir()
    elif call.name in {"unlink", "unlinkat", "rmdir"}:
        path.rmdir() if path.is_dir() else path.unlink()
    elif call.name in {"link", "linkat"}:
        (folder / call.paths[1]).hardlink_to(path)
    elif call.name == "rename":
        path.rename(folder / call.paths[1])
    elif call.name in {"ftruncate", "truncate"} and path.exists():
        os.truncate(path, call.number)
    elif call.name == "fallocate" and path.exists():
        os.truncate(path, max(call.number, path.stat().st_size))


def _write(path: Path, call: SystemCall, fate: Fate) -> None:
    if fate is Fate.MISSING:
        return
    data = bytes(len(call.data)) if fate is Fate.ZEROS else call.data
    if fate is Fate.TORN:
        data = data[: len(data) // 2 // SECTOR * SECTOR or len(data) // 2]
    with path.open("r+b") as file:
        file.seek(*((0, os.SEEK_END) if call.offset is None else (call.offset,)))
        file.write(data)


def read_trace(log: Path, folder: Path) -> tuple[list[SystemCall], int]:
    """The calls that changed something below a folder, and how many of them were made when the batch was stored."""
    calls, acknowledged = list[SystemCall](), 0
    for line in _whole_lines(log):
        found = _LINE.match(line)
        if found is None or int(found[3]) < 0:
            continue
        name, rest, result = found[1], found[2], int(found[3])
        if name == "write" and rest.startswith("1<"):
            acknowledged = len(calls) if _bytes(_TEXT.search(rest)) == ACKNOWLEDGED else acknowledged
        elif (call := _call(name, rest, result, folder)) is not None:
            calls.append(call)
    return calls, acknowledged


def _whole_lines(log: Path) -> Iterator[str]:
    """The lines of a trace. A call during which another thread made one is written in two parts."""
    begun: dict[str, str] = {}
    for line in log.read_text().splitlines():
        thread = line.partition(" ")[0]
        if line.endswith(_BEGUN):
            begun[thread] = line.removesuffix(_BEGUN)
        elif (found := _RESUMED.match(line)) is not None:
            yield begun.pop(thread) + found[1]
        else:
            yield line


def _call(name: str, rest: str, result: int, folder: Path) -> SystemCall | None:
    """One call, None if it changes nothing below the folder."""
    texts = [_bytes(text) for text in _TEXT.finditer(rest)]
    descriptor = _FILE.match(rest)
    if name == "openat":
        changes = "O_CREAT" in rest or "O_TRUNC" in rest
        path = _below(texts[0], folder) if changes else None
        return None if path is None else SystemCall(name, (path,), truncates="O_TRUNC" in rest)
    if descriptor is not None:
        return _call_of_file(name, rest, result, _bytes(descriptor), folder, b"".join(texts))
    paths = [_below(text, folder) for text in texts]
    if not paths or None in paths:
        return None
    number = int(rest.rpartition(", ")[2]) if name == "truncate" else 0
    return SystemCall(name, tuple(path for path in paths if path is not None), number=number)


def _call_of_file(name: str, rest: str, result: int, file: bytes, folder: Path, data: bytes) -> SystemCall | None:
    path = _below(file, folder)
    if path is None:
        return None
    numbers = [int(part) for part in re.findall(r", (\d+)(?=[,)]|$)", rest)]
    if name in {"pwrite64", "pwritev"}:
        return SystemCall(name, (path,), data[:result], numbers[-1])
    if name == "pwritev2":
        # Its last argument are flags.
        return SystemCall(name, (path,), data[:result], numbers[-1] if rest.endswith("RWF_DSYNC") else numbers[-2])
    if name in {"write", "writev"}:
        return SystemCall(name, (path,), data[:result])
    if name == "fallocate":
        return SystemCall(name, (path,), number=numbers[-2] + numbers[-1])
    return SystemCall(name, (path,), number=numbers[-1] if name == "ftruncate" else 0)


def _bytes(found: re.Match[str] | None) -> bytes:
    return b"" if found is None else bytes.fromhex(found[1].replace("\\x", ""))


def _below(path: bytes, folder: Path) -> str | None:
    text = os.fsdecode(path)
    return os.path.relpath(text, folder) if text.startswith(f"{folder}/") else None
