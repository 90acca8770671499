"""Room: how many pages a backend keeps at once where no option sets its capacity. It is tried once for each backend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

from hicache.testing.storage.page_bytes import Sheet, page_bytes
from hicache.testing.storage.subject import CAPACITY_BYTES, CAPACITY_PAGES, PAGE, BackendSubject, Place

TRIED_PAGES = 512
"""The pages that are stored to find out. A backend that keeps them has room for every test."""

_kept: dict[str, int | None] = {}


def kept_pages(subject: BackendSubject, folder: Path) -> int | None:
    """How many pages of 4096 bytes stay when 512 are stored; None if all do, or if the capacity is an option.

    Only a backend that counts what it evicts or refuses has a small capacity: any other one loses pages.
    """
    if subject.is_bounded:
        return None
    name = json.dumps([subject.name, subject.options], sort_keys=True, default=str)
    if name not in _kept:
        _kept[name] = _tried(Place(subject, folder))
    return _kept[name]


def has_room(place: Place, pages: int, total_bytes: int) -> bool:
    """Whether a place can keep so many pages, of so many bytes together, at once."""
    kept = kept_pages(place.subject, place.directory.parent)
    return kept is None or (pages <= kept and total_bytes <= kept * PAGE)


def require_room(place: Place, pages: int, page_bytes: int = PAGE) -> None:
    """Skip the test that runs where a place cannot keep so many pages of this size at once."""
    if not has_room(place, pages, pages * page_bytes):
        skip_for_room(place, pages)


def skip_for_room(place: Place, pages: int) -> NoReturn:
    """Skip the test that runs: it needs so many pages."""
    import pytest

    kept = kept_pages(place.subject, place.directory.parent)
    pytest.skip(
        f"{place.subject.name} keeps {kept} pages of {PAGE} bytes, and the test needs {pages}: let an option be "
        f"{CAPACITY_PAGES} or {CAPACITY_BYTES}"
    )


def _tried(place: Place) -> int | None:
    keys, sheet = [f"room/{number}" for number in range(TRIED_PAGES)], Sheet([(PAGE,)])
    try:
        backend = place.open(place.scope("room"))
        for key in keys:
            sheet.write(0, page_bytes("room", key, 0, PAGE))
            backend.set([key], sheet.pages, [])
        kept = sum(backend.has(keys))
        counts = None if kept == TRIED_PAGES else backend.stats()
    except Exception:  # noqa: BLE001 - a backend that raises is found by the tests, which name the clause
        return None
    else:
        return kept if counts is not None and counts.removed + sum(counts.refused.values()) else None
    finally:
        place.close()
