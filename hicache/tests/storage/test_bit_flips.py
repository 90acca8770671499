"""BitFlips: no flipped bit makes a backend serve wrong bytes, raise, end or hang; and a backend that does is found."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from hicache.storage.base import StorageBackend
from hicache.testing.storage.bit_flips import PAGE_BYTES, PATIENCE_S, SCOPE, BitFlips, Flip, store_of
from hicache.tests.kit.storage_backends import FolderStorage, NoDigest

STORES = [("file", {}), ("slotfile", {"capacity_slots": 64})]

FLIPS, SEED = 100, 1

HANG_S = 3.0


@pytest.mark.parametrize(("name", "options"), STORES, ids=["file", "slotfile"])
def test_no_flipped_bit_makes_wrong_bytes_or_ends_the_process(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    campaign = BitFlips(tmp_path / "store", store_of(name, options))
    counts = campaign.run(campaign.sample(FLIPS, SEED))
    failures = "\n".join(counts.failures[:10])
    assert not counts.failures, f"STORE-3, STORE-13: expected pages or misses, got {counts}:\n{failures}"
    assert (counts.rounds, counts.unstored) == (FLIPS, 0), f"STORE-3: a new page can be stored: {counts}"


def test_every_bit_is_flipped_once(tmp_path: Path) -> None:
    campaign = BitFlips(tmp_path, store_of("file", {}))
    sizes = {str(path.relative_to(tmp_path)): path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()}
    bits = [
        (flip.path, offset, flip.bit)
        for flip in campaign.all()
        for offset in range(flip.offset, flip.offset + flip.size)
    ]
    assert len(set(bits)) == len(bits) == 8 * sum(sizes.values()), f"expected each bit once, got {len(bits)} flips"


class Raises(FolderStorage):
    """A damaged object is an exception."""

    def remove_corrupt(self, path: Path) -> None:
        raise ValueError(path)


class Ends(FolderStorage):
    """A damaged object ends the process."""

    def remove_corrupt(self, path: Path) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Hangs(FolderStorage):
    """A damaged object is waited for."""

    def remove_corrupt(self, path: Path) -> None:
        Event().wait()


class Leaks(FolderStorage):
    """A damaged object stays open."""

    def remove_corrupt(self, path: Path) -> None:
        os.open(path, os.O_RDONLY)


def open_folder(kind: Callable[..., StorageBackend], folder: Path) -> AbstractContextManager[StorageBackend]:
    return closing(kind(SCOPE, {"directory": str(folder)}))


@pytest.mark.parametrize(
    ("kind", "found"),
    [(NoDigest, "wrong"), (Raises, "raised"), (Ends, "crashes"), (Hangs, "hangs"), (Leaks, "leaks")],
    ids=["wrong", "raised", "crashes", "hangs", "leaks"],
)
def test_what_a_flip_does_is_counted(kind: type[FolderStorage], found: str, tmp_path: Path) -> None:
    campaign = BitFlips(tmp_path / "store", partial(open_folder, kind))
    in_pages = [flip for flip in campaign.all() if flip.offset < PAGE_BYTES][:2]
    counts = campaign.run(in_pages, HANG_S if kind is Hangs else PATIENCE_S)
    assert getattr(counts, found) == counts.rounds == len(in_pages), f"expected 2 rounds with {found}, got {counts}"
    assert len(counts.failures) == len(in_pages), f"expected a line for each, got {counts.failures}"


def test_zeros_are_flipped_together_and_counted_so(tmp_path: Path) -> None:
    campaign = BitFlips(tmp_path / "store", store_of("slotfile", {"capacity_slots": 64}))
    together = [flip for flip in campaign.all() if flip.size > 1][:1]
    assert [type(flip) for flip in together] == [Flip], "a slot file has zeros behind a page of 64 bytes"
    counts = campaign.run(together)
    assert (counts.rounds, counts.flips, counts.joint) == (1, together[0].size, together[0].size), f"{counts}"
