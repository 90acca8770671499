"""STORE-3, STORE-13: every bit of every file of a small store is flipped, one at a time; bits of zeros are together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from hicache.testing.storage.bit_flips import BitFlips, OpenStore, store_of
from hicache.tests.proof.attack.campaign import SECONDS, Campaign
from hicache.tests.storage.hf3fs.stores import ended_store, killed_store

STORES: Mapping[str, OpenStore] = {
    "file": store_of("file", {}),
    "slotfile": store_of("slotfile", {"capacity_slots": 64}),
    "hf3fs-ended": ended_store,
    "hf3fs-killed": killed_store,
}
"""By name; of hf3fs a store whose metadata service has ended, and one whose service was killed."""

PARTS = 4
"""In how many tests the flips of a store are divided."""


@pytest.mark.skipif(
    SECONDS not in os.environ, reason="takes an hour: tox -e attack; hicache/tests/storage has a sample"
)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("store", STORES)
def test_no_flipped_bit_makes_wrong_bytes_or_ends_the_process(
    campaign: Campaign, store: str, part: int, tmp_path: Path
) -> None:
    flips = BitFlips(tmp_path / "store", STORES[store])
    counts = flips.run(flips.all()[part::PARTS])
    campaign.counts.update(
        {"flips": counts.rounds, "bits": counts.flips, "pages lost": counts.lost, "refused": counts.refused}
    )
    failures = "\n".join(counts.failures[:10])
    assert not counts.failures, f"expected pages or misses, got {counts}:\n{failures}"
