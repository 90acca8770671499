"""STORE-3, STORE-4: a crash after each system call of a batch, with and without the writes that were not synced."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hicache.testing.storage.crash_states import CrashStates
from hicache.testing.storage.subject import METADATA_URL
from hicache.tests.proof.attack.campaign import SECONDS, Campaign

STORES: Mapping[str, tuple[str, dict[str, Any], bool]] = {
    "file": ("file", {}, False),
    "file-synced": ("file", {"fsync": True}, True),
    "slotfile": ("slotfile", {"capacity_slots": 64}, False),
    "slotfile-synced": ("slotfile", {"capacity_slots": 64, "fsync": True}, True),
    "hf3fs": ("hf3fs", {"page_bytes": 600, "capacity_pages": 64, "metadata_url": METADATA_URL}, False),
}
"""The name of the backend, its options besides `root`, and whether what it acknowledges survives a loss of power."""

EVERY = 12
"""In `tox -e self` only the states after every twelfth call are checked, without drawn fates of writes."""

MIN_STATES = 1000
"""How many states `tox -e attack` checks at least."""

SEEDS = 10
"""How many fates of the writes are drawn at a time until there are so many states."""

MAX_SEEDS = 200


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace, which records the system calls, is not installed")
@pytest.mark.parametrize("store", STORES)
def test_a_store_after_a_crash_has_what_was_acknowledged_and_no_torn_page(
    campaign: Campaign, store: str, tmp_path: Path
) -> None:
    name, options, is_synced = STORES[store]
    states = CrashStates(name, options, tmp_path, is_synced=is_synced)
    if SECONDS not in os.environ:
        counts, least = states.run((), every=EVERY), len(states.calls) // EVERY
    else:
        counts, least = states.run(range(SEEDS)), MIN_STATES
        for first in range(SEEDS, MAX_SEEDS, SEEDS):
            if counts.states < least:
                counts.add(states.run(range(first, first + SEEDS)))
    campaign.counts.update(
        {"calls": len(states.calls), "states": counts.states, "pages kept": counts.kept, "pages lost": counts.lost}
    )
    assert not counts.failures, f"STORE-3: {counts}:\n" + "\n".join(counts.failures[:20])
    assert counts.states >= least, f"expected at least {least} states, got {counts}"
