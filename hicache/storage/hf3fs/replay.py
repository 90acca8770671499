"""replayed: the namespaces of a metadata service after the changes of its journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hicache.storage.hf3fs.pages import Change
from hicache.storage.hf3fs.snapshot import MAX_PAGES, Snapshot, check_pages, free_pages


def replayed(snapshots: Mapping[str, Snapshot], lines: Sequence[Mapping[str, Any]]) -> dict[str, Snapshot]:
    """Apply the lines of a journal to the namespaces of its file.

    The file may be newer than a line, so lines about a namespace that was dropped later are left out: there may be
    nothing that they apply to. Raises ValueError, KeyError or TypeError for lines that do not fit.
    """
    found = dict(snapshots)
    dropped = {line["state"]: number for number, line in enumerate(lines) if line.get("dropped")}
    for state in dropped:
        found.pop(state, None)
    changed = set[str]()
    for number, line in enumerate(lines):
        if number > dropped.get(line["state"], -1):
            _replay(found, line)
            changed.add(line["state"])
    for state in changed:
        found[state] = _with_free_pages(state, found[state])
    return found


def _replay(snapshots: dict[str, Snapshot], line: Mapping[str, Any]) -> None:
    """Apply one line. Free pages are found after all lines."""
    state = line["state"]
    if "num_pages" in line:
        if not 0 < line["num_pages"] <= MAX_PAGES:
            raise ValueError(f"{state}: expected up to {MAX_PAGES} pages, got {line['num_pages']}")
        snapshots.setdefault(state, Snapshot(line["num_pages"], range(line["num_pages"]), {}, {}))
        return
    snapshot, change = snapshots[state], Change(**{name: value for name, value in line.items() if name != "state"})
    if change.cleared:
        snapshot.keys.clear()
    for key in change.removed:
        snapshot.keys.pop(key, None)
    for page in change.freed:
        snapshot.reserved.pop(page, None)
    for page, key in change.taken:
        snapshot.reserved[page] = (page, key, change.reservation)
    for key, page in change.confirmed:
        snapshot.keys[key] = page
        snapshot.reserved.pop(page, None)


def _with_free_pages(state: str, snapshot: Snapshot) -> Snapshot:
    found = Snapshot(snapshot.num_pages, free_pages(snapshot), snapshot.keys, snapshot.reserved)
    check_pages(state, found)
    return found
