"""All ranks store their pages in one folder: pages that are equal on all ranks are written by one and read by all."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter
from hicache.testing.contract import clause
from hicache.testing.hybrid_model import reshaped
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.rank_driver import RankDriver
from hicache.testing.ranks.world import RankWorld
from hicache.types import Pool

from .configurations import CP2_TP2, PP2_TP2, TP2, configuration, on_meshes
from .rank_actions import STORAGE_NEEDS
from .shared_files import BACKEND, given
from .stored_prompt import PROMPT, begin, brought, objects, pools, prompt_key

Stored = tuple[dict[str, int], dict[Pool, list[str]], int]
"""How often this rank set each object; the objects of the prompt in each pool; and pages that a prefetch brought."""


def stores(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> Stored:
    """Store a prompt with a state after each page, and prefetch it on every rank."""
    driver = RankDriver(adapter_type, config, world)
    for count in range(1, len(PROMPT) + 1):
        driver.put(prompt_key(driver, PROMPT[:count]))
        driver.drain()
    driver.reset()
    ticket = begin(driver)
    driver.drain()
    came = brought(driver, ticket)
    own = {pool: objects(driver, pool) for pool in pools(driver)}
    driver.end()
    return dict(given), own, came


def share_folder(config: CacheConfig, folder: Path) -> CacheConfig:
    """A model whose ranks have the same KV, and a storage folder that they share."""
    assert config.storage is not None, f"{config.name} has storage"
    storage = replace(config.storage, backend=BACKEND, options={"root": str(folder)})
    return replace(config, model=reshaped(config.model, is_mla=True), storage=storage)


@clause("RANK-6", "FETCH-7", needs=STORAGE_NEEDS)
@on_meshes(TP2, CP2_TP2, PP2_TP2)
def test_pages_that_ranks_share_are_written_once_and_read_by_all(
    launch: Launch, adapter_type: type[CacheAdapter], tmp_path: Path
) -> None:
    config = share_folder(configuration(adapter_type), tmp_path / "pages")
    results = launch.values(stores, adapter_type, config)
    writes = sum((Counter(gave) for gave, _, _ in results), Counter[str]())
    for rank, (_, own, came) in enumerate(results):
        for pool, keys in own.items():
            by_key = [sum(writes[key] for key in writes if name.endswith(f"/{key}")) for name in keys]
            assert by_key == [1] * len(PROMPT), (
                f"RANK-6: expected each page of {pool.value} that rank {rank} holds to be written once, got {by_key}"
            )
        assert came == len(PROMPT), f"FETCH-7: expected {len(PROMPT)} pages to come to rank {rank}, {came} came"
