"""SglangDsa: SGLang's cache for a model with DSA: the latents of MLA, and the keys of an indexer as a sidecar.

The suites do not run on it: its pages have 64 tokens, and SGLang fixes the sizes of its pools. It is opened to store
an indexer below SGLang, and to read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from hicache.config import BufferShape, CacheConfig, Follows, ModelShape, PoolShape
from hicache.engines.sglang.adapter import Sglang0523Below
from hicache.engines.sglang.imports import import_from
from hicache.engines.sglang.pools import FULL, SglangHostPools, SglangPools, raw_bytes
from hicache.errors import ConfigurationError
from hicache.optional_torch import torch
from hicache.testing.adapter import PageBytes
from hicache.types import Pool, Slots

PAGE_SIZE = 64
"""The only page size that SGLang has for DSA."""

LATENT, ROPE, INDEX_DIM, SCALE_BYTES = 48, 16, 128, 4
"""Elements of a latent, of its part with positions and of the key of an index, and the bytes of that key's scale."""

LAYERS = 2
LATENTS = BufferShape("latent", (1, 1, LATENT + ROPE), "float32")
INDEX = BufferShape("index", (INDEX_DIM + SCALE_BYTES,), "uint8")

MODEL = ModelShape(
    (
        PoolShape(Pool.KV.value, Follows.EVERY_PAGE, LAYERS, (LATENTS,)),
        PoolShape(Pool.INDEXER.value, Follows.EVERY_PAGE, LAYERS, (INDEX,)),
    ),
    is_mla=True,
)
"""The shape of its pools."""


def with_dsa(config: CacheConfig) -> CacheConfig:
    """A configuration of FULL on all tiers, with the same number of pages, in pages and pools of DSA."""
    assert config.host is not None, "expected a configuration with a host tier"
    assert config.storage is not None, "expected a configuration with storage"
    factor = PAGE_SIZE // config.page_size
    tokens, of_host = ({FULL: factor * one.capacity_tokens[FULL]} for one in (config, config.host))
    host = replace(config.host, capacity_tokens=of_host)
    storage = replace(config.storage, limit_tokens=factor * (config.storage.limit_tokens or 0))
    return replace(config, page_size=PAGE_SIZE, capacity_tokens=tokens, host=host, storage=storage, model=MODEL)


class SglangDsaPools(SglangPools):
    """The pools of DSA: a page of the indexer has its keys and then its scales. Its bytes are shown by token."""

    def refuse(self, config: CacheConfig) -> None:
        if config.components != (FULL,) or config.model != MODEL or config.page_size != PAGE_SIZE:
            raise ConfigurationError(f"DSA on SGLang is FULL in pages of {PAGE_SIZE} with {MODEL}, got {config.name}")

    def _open_kv(self) -> Any:
        (pool_type,) = import_from("sglang.srt.mem_cache.memory_pool", "DSATokenToKVPool")
        return pool_type(
            size=self.config.capacity_tokens[FULL],
            page_size=PAGE_SIZE,
            kv_lora_rank=LATENT,
            dtype=torch.float32,
            qk_rope_head_dim=ROPE,
            layer_num=LAYERS,
            device="cpu",
            index_head_dim=INDEX_DIM,
            enable_memory_saver=False,
            kv_cache_dim=LATENT + ROPE,
        )

    def _buffers(self, kv: Any) -> dict[str, list[Sequence[torch.Tensor]]]:
        index = [(part.view(-1, INDEX_DIM + SCALE_BYTES),) for part in kv.index_k_with_scale_buffer]
        return {Pool.KV.value: [(part,) for part in kv.kv_buffer], Pool.INDEXER.value: list(index)}


class SglangDsaHostPools(SglangHostPools):
    """The host pools of DSA, in the layout by page. The indexer has the slots of KV."""

    def read(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        raw = torch.from_numpy(np.array(slots, dtype=np.int64) - PAGE_SIZE)
        page, offset = raw // PAGE_SIZE, raw % PAGE_SIZE
        host = self.group.get_pool(pool)
        if pool == Pool.KV:
            return raw_bytes(host.kv_buffer[page, layer, offset])
        pages = host.index_k_with_scale_buffer[:, layer].reshape(len(host.index_k_with_scale_buffer), PAGE_SIZE, -1)
        return raw_bytes(pages[page, offset])


class Sglang0523Dsa(Sglang0523Below):
    """SGLang 0.5.23 with DSA over HicacheStorage, as a server has it."""

    host_pools_type: ClassVar[type[SglangHostPools]] = SglangDsaHostPools
    copying: ClassVar[Sequence[str]] = (*Sglang0523Below.copying, "pool_host.mla", "pool_host.dsa")

    def open_pools(self) -> SglangPools:
        return SglangDsaPools(self.config, swa_options={})


ADAPTERS: Mapping[str, type[Sglang0523Below]] = {"0.5.23": Sglang0523Dsa}
"""By release. The pools of 0.5.13.post1 for DSA have no host pool of their own for the indexer."""
