"""Every file of a store of hf3fs: no flipped bit, and no other damage, makes wrong bytes or an exception."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from hicache.errors import ConfigurationError
from hicache.storage.base import StorageBackend
from hicache.storage.hf3fs.catalogue import Catalogue
from hicache.testing.storage.bit_flips import KEYS, BitFlips
from hicache.tests.storage.hf3fs.stores import METADATA, ended_store, killed_store

FLIPS, SEED = 150, 1

OpenStore = Callable[[Path], AbstractContextManager[StorageBackend]]


@pytest.mark.parametrize("open_store", [ended_store, killed_store], ids=["ended", "killed"])
def test_no_flipped_bit_makes_wrong_bytes_or_ends_the_process(open_store: OpenStore, tmp_path: Path) -> None:
    campaign = BitFlips(tmp_path / "store", open_store)
    counts = campaign.run(campaign.sample(FLIPS, SEED))
    failures = "\n".join(counts.failures[:10])
    assert not counts.failures, f"STORE-3, STORE-13: expected pages or misses, got {counts}:\n{failures}"
    assert (counts.rounds, counts.unstored) == (FLIPS, 0), f"STORE-3: a new page can be stored: {counts}"
    assert counts.refused > 0, f"STORE-10: what is damaged in the metadata is noticed, got {counts}"


@pytest.mark.parametrize("name", [METADATA, f"{METADATA}-wal"])
@pytest.mark.parametrize("seed", range(3))
def test_damage_of_the_metadata_is_refused_or_costs_pages(tmp_path: Path, name: str, seed: int) -> None:
    dice, folder = random.Random(seed), tmp_path / "store"
    open_store = ended_store if name == METADATA else killed_store
    with open_store(folder) as backend:
        campaign_keys = list(KEYS)
        stored = backend.set(campaign_keys, [[memoryview(bytes(64))] for _ in campaign_keys], ())
        assert all(stored), f"expected room for {len(campaign_keys)} pages"
    files = {path: path.read_bytes() for path in folder.glob(f"{METADATA}*")}
    served = 0
    for _ in range(100):
        for path, content in files.items():
            path.write_bytes(content)
        damaged = bytearray(files[folder / name])
        begin = dice.randrange(len(damaged))
        damaged[begin : begin + dice.randrange(1, 80)] = dice.randbytes(dice.randrange(40))
        (folder / name).write_bytes(damaged)
        try:
            catalogue = Catalogue(folder / METADATA)
        except ConfigurationError:
            assert (folder / name).read_bytes() == damaged, "STORE-10: a refused file stays unchanged"
            continue
        served += 1
        usage = catalogue.usages("0:").values()
        assert all(one.num_pages == sum(one[1:]) for one in usage), f"STORE-10: each page once, got {[*usage]}"
        catalogue.close()
    # SQLite takes a log up to its first damaged part, as after a crash.
    assert served < 100 or name != METADATA, "STORE-10: damage is noticed"
