"""What tells that the bytes of an object are those that were kept, and kept under this name."""

from __future__ import annotations

from xxhash import xxh3_64, xxh3_64_intdigest

from hicache.storage.base import Pieces


def identity(scope: str, key: str) -> int:
    """A number for a name. The checksum begins with it, so that no object passes for another's."""
    return xxh3_64_intdigest(f"{scope}/{key}".encode())


SLOT_SEED = 0
"""Of the checksums of pages in slots: the index knows whose bytes they are."""


def checksum(pieces: Pieces, seed: int) -> int:
    """63 bits of XXH3 over the bytes of a page, wherever it is cut."""
    if len(pieces) == 1:
        return xxh3_64_intdigest(pieces[0], seed) >> 1
    state = xxh3_64(seed=seed)
    for piece in pieces:
        state.update(piece)
    return state.intdigest() >> 1
