"""LMCache 0.5.6 evicts a chunk when a chunk is stored that it has already, and keeps the memory free.

It needs LMCache, what its engine imports, and torch; no GPU and no model. Run it with
`python docs/reproductions/lmcache_stored_twice.py`. It prints what a look-up finds, and the free memory.
"""

from __future__ import annotations

import logging

import torch
from lmcache.v1.cache_engine import LMCacheEngine
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.gpu_connector.mock_gpu_connector import MockGPUConnector
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.token_database import ChunkedTokenDatabase

CHUNK_TOKENS = 4
LAYERS, HEADS, HEAD_SIZE = 1, 1, 512
CHUNK_BYTES = LAYERS * 2 * CHUNK_TOKENS * HEADS * HEAD_SIZE * torch.float16.itemsize
FIRST, SECOND = list(range(CHUNK_TOKENS)), list(range(100, 100 + CHUNK_TOKENS))

logging.disable(logging.CRITICAL)

shape = (LAYERS, 2, CHUNK_TOKENS, HEADS, HEAD_SIZE)
config = LMCacheEngineConfig.from_defaults(chunk_size=CHUNK_TOKENS, max_local_cpu_size=2 * CHUNK_BYTES / 1024**3)
metadata = LMCacheMetadata("model", 1, 1, 0, 0, torch.float16, shape)
engine = LMCacheEngine(
    config,
    metadata,
    ChunkedTokenDatabase(config, metadata),
    MockGPUConnector(shape),
    lambda tensor, _: tensor,
    lambda value, _: value,
)
engine.post_init()
allocator = engine.storage_manager.local_cpu_backend.memory_allocator.pin_allocator


def show(step: str) -> None:
    """Print what the cache has."""
    found = [engine.lookup(tokens) for tokens in (FIRST, SECOND)]
    free = 2 * CHUNK_BYTES - allocator.total_allocated_size
    print(
        f"{step}: tokens found of the first prompt {found[0]}, of the second {found[1]}; room for {free // CHUNK_BYTES}"
    )


engine.store(FIRST)
engine.store(SECOND)
show("both prompts were stored")
engine.store(SECOND)
show("another request has stored the second prompt")
engine.close()
