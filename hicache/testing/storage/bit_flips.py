"""BitFlips: flips every bit of every file of a small store, and counts what was lost, wrong, raised or hung."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from hicache.errors import ConfigurationError
from hicache.storage.base import StorageBackend
from hicache.storage.registry import open_backend
from hicache.testing.process_starts import EVENT as PROCESS_STARTED
from hicache.testing.storage.page_bytes import Sheet, page_bytes

PAGES, PAGE_BYTES = 60, 64

SCOPE = "flips-1"

KEYS = tuple(f"kv.all/{number * 0x9E3779B97F4A7C15 % (1 << 64):016x}" for number in range(1, PAGES + 1))
NEW_KEY = "kv.all/0123456789abcdef"

BLOCK_BYTES, RUN_BYTES = 64, 4096
"""Adjacent blocks that are zero are flipped together, up to a run of this size: one bit of each byte at a time."""

PATIENCE_S = 60.0
"""How long one round may take before it counts as a hang."""

OpenStore = Callable[[Path], AbstractContextManager[StorageBackend]]
"""Opens the store in a folder, which has all its files, and closes it. A function that can be pickled."""


def store_of(name: str, options: Mapping[str, Any]) -> OpenStore:
    """Opens a backend of the registry, with the folder as its option `root`."""
    return partial(_open_store, name, dict(options))


def _open_store(name: str, options: dict[str, Any], folder: Path) -> AbstractContextManager[StorageBackend]:
    return closing(open_backend(name, SCOPE, {"root": str(folder), **options}))


class Flip(NamedTuple):
    """One bit of each of `size` bytes of a file, from `offset` on. `path`: below the folder of the store."""

    path: str
    offset: int
    bit: int
    size: int


class FlipOutcome(NamedTuple):
    """What came of one round. `raised`: an exception other than a refusal to open, or nothing.

    `refused`: ConfigurationError at opening. `lost`, `wrong`: pages. `stored`: a new page was stored and read.
    `leaked`: file descriptors.
    """

    refused: bool
    lost: int
    wrong: int
    stored: bool
    leaked: int
    raised: str


@dataclass(slots=True)
class FlipCounts:
    """The sum of all rounds. `flips`: bits; `joint`: those of them that were flipped together with others.

    `lossy`: rounds that lost a page; `refused`: rounds in which the store could not be opened, which lose every page;
    `unstored`: rounds, not refused, in which a new page could not be stored and read again. `failures`: a line for each
    round with wrong bytes, an exception, a crash, a hang or a leak.
    """

    rounds: int = 0
    flips: int = 0
    joint: int = 0
    lossy: int = 0
    lost: int = 0
    refused: int = 0
    unstored: int = 0
    wrong: int = 0
    raised: int = 0
    crashes: int = 0
    hangs: int = 0
    leaks: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, flip: Flip, outcome: FlipOutcome | None, ended: str = "") -> None:
        """Count a round. `outcome`: None if the process ended or hung, which `ended` says."""
        self.rounds += 1
        self.flips += flip.size
        self.joint += flip.size if flip.size > 1 else 0
        if outcome is None:
            self.crashes += not ended.startswith("hang")
            self.hangs += ended.startswith("hang")
            self.failures.append(f"{flip}: {ended}")
            return
        self.lossy += outcome.lost > 0
        self.lost += outcome.lost
        self.refused += outcome.refused
        self.unstored += not outcome.refused and not outcome.stored
        self.wrong += outcome.wrong
        self.raised += bool(outcome.raised)
        self.leaks += outcome.leaked > 0
        if outcome.wrong or outcome.raised or outcome.leaked > 0:
            self.failures.append(f"{flip}: {outcome}")

    def __str__(self) -> str:
        names = [name for name in self.__dataclass_fields__ if name != "failures"]
        return ", ".join(f"{getattr(self, name):,} {name}" for name in names)


class BitFlips:
    """A store of 60 pages of 64 bytes in `folder`, which this makes, and its files as they are after it was closed."""

    def __init__(self, folder: Path, open_store: OpenStore) -> None:
        self._folder = folder
        self._open_store = open_store
        with open_store(folder) as backend:
            sheet = _sheet(KEYS)
            assert backend.set(KEYS, sheet.pages, ()) == [True] * PAGES, f"expected {backend} to store {PAGES} pages"
        self._files = _read_files(folder)

    def all(self) -> list[Flip]:
        """Every bit of every file. Blocks of zeros are flipped together."""
        return [flip for path, content in self._files.items() for flip in _flips_of(path, content)]

    def sample(self, count: int, seed: int) -> list[Flip]:
        """As many flips, drawn by a seed, the same number of every file as far as it has so many."""
        rng = Random(seed)
        drawn = {path: list(_flips_of(path, content)) for path, content in self._files.items() if content}
        for flips in drawn.values():
            rng.shuffle(flips)
        turns = [flip for path in drawn for flip in enumerate(drawn[path])]
        return [flip for _, flip in sorted(turns, key=lambda turn: turn[0])[:count]]

    def run(self, flips: Sequence[Flip], patience_s: float = PATIENCE_S) -> FlipCounts:
        """Run a round for each flip, in a process that is replaced if it ends or hangs."""
        counts, rest = FlipCounts(), list(flips)
        while rest:
            done, ended = self._run_until_it_ends(rest, counts, patience_s)
            if done < len(rest):
                counts.add(rest[done], None, ended)
            rest = rest[done + 1 :]
        _write_files(self._folder, self._files)
        return counts

    def _run_until_it_ends(self, flips: Sequence[Flip], counts: FlipCounts, patience_s: float) -> tuple[int, str]:
        """Run flips in a new process. Returns how many were done, and why it ended before the last."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        work = (theirs, self._folder, self._open_store, self._files, flips)
        process = context.Process(target=_run_rounds, args=work, daemon=True)
        sys.audit(PROCESS_STARTED)
        process.start()
        theirs.close()
        done, ended = 0, ""
        try:
            while done < len(flips):
                if not ours.poll(patience_s):
                    ended = f"hang of {patience_s} s"
                    break
                counts.add(flips[done], FlipOutcome(*ours.recv()))
                done += 1
        except EOFError:
            process.join()
            ended = f"the process ended with {process.exitcode}"
        finally:
            ours.close()
            process.kill()
            process.join()
        return done, ended


def _run_rounds(
    answers: Connection, folder: Path, open_store: OpenStore, files: Mapping[str, bytes], flips: Sequence[Flip]
) -> None:
    logging.disable()
    for flip in flips:
        _write_files(folder, files)
        _apply(folder, flip)
        descriptors = _descriptors()
        outcome = _round(folder, open_store)
        leaked = _descriptors() - descriptors
        answers.send(tuple(outcome._replace(leaked=leaked)))


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _round(folder: Path, open_store: OpenStore) -> FlipOutcome:
    """Open the store, read all pages, store and read a new one, and close it."""
    lost, wrong, stored = PAGES, 0, False
    try:
        with open_store(folder) as backend:
            backend.has(KEYS)
            read = _read(backend, KEYS)
            lost = read.count(None)
            wrong = sum(found not in (None, _bytes_of(key)) for key, found in zip(KEYS, read, strict=True))
            stored = backend.set([NEW_KEY], _sheet([NEW_KEY]).pages, ()) == [True]
            (found,) = _read(backend, [NEW_KEY])
            stored = stored and found is not None
            wrong += found not in (None, _bytes_of(NEW_KEY))
    except ConfigurationError:
        return FlipOutcome(refused=True, lost=PAGES, wrong=0, stored=False, leaked=0, raised="")
    except Exception as error:  # noqa: BLE001 - what a damaged file may not cause is counted
        return FlipOutcome(refused=False, lost=lost, wrong=wrong, stored=stored, leaked=0, raised=repr(error))
    return FlipOutcome(refused=False, lost=lost, wrong=wrong, stored=stored, leaked=0, raised="")


def _read(backend: StorageBackend, keys: Sequence[str]) -> list[bytes | None]:
    sheet = Sheet([[PAGE_BYTES]] * len(keys))
    answers = backend.get(keys, sheet.pages, ())
    return [sheet.read(number) if answer else None for number, answer in enumerate(answers)]


def _bytes_of(key: str) -> bytes:
    return page_bytes(SCOPE, key, 0, PAGE_BYTES)


def _sheet(keys: Sequence[str]) -> Sheet:
    sheet = Sheet([[PAGE_BYTES]] * len(keys))
    for number, key in enumerate(keys):
        sheet.write(number, _bytes_of(key))
    return sheet


def _flips_of(path: str, content: bytes) -> Iterator[Flip]:
    for begin, size in _runs_of(content):
        together = size > BLOCK_BYTES or not any(content[begin : begin + size])
        for place in range(begin, begin + size, size if together else 1):
            yield from (Flip(path, place, bit, size if together else 1) for bit in range(8))


def _runs_of(content: bytes) -> Iterator[tuple[int, int]]:
    """The offset and size of each run of zero blocks, and of each other block."""
    begin = 0
    for end in range(BLOCK_BYTES, len(content) + BLOCK_BYTES, BLOCK_BYTES):
        is_zero = not any(content[end - BLOCK_BYTES : end])
        goes_on = is_zero and not any(content[end : end + BLOCK_BYTES]) and end - begin < RUN_BYTES
        if goes_on and end < len(content):
            continue
        yield begin, min(end, len(content)) - begin
        begin = end


def _apply(folder: Path, flip: Flip) -> None:
    with (folder / flip.path).open("r+b") as file:
        file.seek(flip.offset)
        flipped = bytes(byte ^ 1 << flip.bit for byte in file.read(flip.size))
        file.seek(flip.offset)
        file.write(flipped)


def _read_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make the folder hold these files, and no others."""
    folders = {str(parent) for path in files for parent in Path(path).parents}
    for place, below, names in os.walk(folder):
        inside = os.path.relpath(place, folder)
        for name in names:
            if os.path.normpath(f"{inside}/{name}") not in files:
                Path(place, name).unlink()
        for name in [*below]:
            if os.path.normpath(f"{inside}/{name}") not in folders:
                below.remove(name)
                shutil.rmtree(Path(place, name))
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        # A new file: what an earlier round left open keeps the old one.
        target.unlink(missing_ok=True)
        target.write_bytes(content)
