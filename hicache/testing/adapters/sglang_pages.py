"""SglangPages: a backend of this project as SGLang's storage, which copies straight from and to its host pools.

SGLang opens it by name, as a dynamic backend with the zero-copy interface (`interface_v1`).
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hicache.config import StorageConfig
from hicache.storage.base import Pieces, PoolQuery, StorageBackend
from hicache.storage.registry import open_backend
from hicache.testing.adapters.sglang_import import import_from
from hicache.testing.adapters.sglang_workers import Gate
from hicache.types import HitPolicy

STORAGE = "sglang.srt.mem_cache.hicache_storage"

KV = "kv"

OPENED = "SglangStorageOfPages"
"""The class that SGLang opens: a subclass of SglangPages and HiCacheStorage."""


class SglangPages:
    """Passes the calls of SGLang on to a backend of this project, page by page.

    `gate`: every call passes it. A key names the pool, the rank and the page, as far as SGLang passes them to a
    backend; the scope is the model's name.
    """

    registered_pools: Mapping[str, Any]

    def __init__(self, storage_config: Any, _: Mapping[str, Any]) -> None:
        extra = storage_config.extra_config
        self.gate: Gate = Gate(is_open=True)
        self._shard = shard_of(storage_config)
        self._backend: StorageBackend = open_backend(extra["backend"], scope_of(storage_config), extra["options"])
        self._has_regions = False

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        self.gate.enter()
        return self._backend.exists(self._names(KV, keys), (), self._before(extra_info))

    def batch_exists_v2(self, keys: Sequence[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        self.gate.enter()
        queries = [self._query(transfer, keys) for transfer in pool_transfers or ()]
        pages = self._backend.exists(self._names(KV, keys), queries, self._before(extra_info))
        (result,) = import_from(STORAGE, "PoolTransferResult")
        return result(pages, {KV: pages} | {transfer.name: pages for transfer in pool_transfers or ()})

    def batch_get_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        self.gate.enter()
        return self._get(KV, keys, host_indices, extra_info)

    def batch_set_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        self.gate.enter()
        return self._set(KV, keys, host_indices, extra_info)

    def batch_get_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        self.gate.enter()
        return {one.name: self._get(one.name, one.keys, one.host_indices, extra_info) for one in transfers}

    def batch_set_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        self.gate.enter()
        return {one.name: self._set(one.name, one.keys, one.host_indices, extra_info) for one in transfers}

    def clear(self) -> bool:
        return self._backend.clear()

    def close(self) -> None:
        self._backend.close()

    def _get(self, pool: str, keys: Sequence[str], indices: Any, extra_info: Any) -> list[bool]:
        pages = self._memory(pool, indices)
        return self._backend.get(self._names(pool, keys), pages, self._before(extra_info))

    def _set(self, pool: str, keys: Sequence[str], indices: Any, extra_info: Any) -> list[bool]:
        pages = self._memory(pool, indices)
        return self._backend.set(self._names(pool, keys), pages, self._before(extra_info))

    def _memory(self, pool: str, indices: Any) -> list[Pieces]:
        """The memory of each page at these host slots, as reported by SGLang's pool."""
        if not self._has_regions:
            self._backend.register([_region(part) for host in self.registered_pools.values() for part in _parts(host)])
            self._has_regions = True
        if indices is None:
            return []  # SGLang's own backends return a different number of answers here
        host = self.registered_pools[pool]
        starts, sizes = host.get_page_buffer_meta(indices)
        pieces = [_view(start, size) for start, size in zip(starts, sizes, strict=True)]
        pages = len(indices) // host.page_size
        each = len(pieces) // max(1, pages)
        return [pieces[first * each : (first + 1) * each] for first in range(pages)]

    def _query(self, transfer: Any, keys: Sequence[str]) -> PoolQuery:
        # Only the number of its keys matters: the length of the window.
        names = self._names(transfer.name, keys)
        return PoolQuery(names, HitPolicy(transfer.hit_policy.value), max(1, len(transfer.keys or ())))

    def _names(self, pool: str, keys: Sequence[str]) -> list[str]:
        return page_names(pool, self._shard, keys)

    def _before(self, extra_info: Any) -> list[str]:
        return self._names(KV, (extra_info and extra_info.prefix_keys) or ())


def backend_options(config: StorageConfig) -> str:
    """SGLang's configuration of its storage, as JSON, so that it opens this backend over the configured one."""
    extra = config.extra
    fields = {
        "backend_name": "pages",
        "module_path": __name__,
        "class_name": OPENED,
        "interface_v1": 1,
        "backend": config.backend,
        "options": dict(extra.options),
        "prefetch_threshold": extra.prefetch_threshold,
        "prefetch_timeout_base": extra.prefetch_timeout_base,
        "prefetch_timeout_per_ki_token": extra.prefetch_timeout_per_ki_token,
        "hicache_storage_pass_prefix_keys": extra.hicache_storage_pass_prefix_keys,
    }
    return json.dumps(fields)


def scope_of(storage_config: Any) -> str:
    """The scope of a cache's objects: the model's name as far as a scope may have it, and a hash of the whole name."""
    name = storage_config.model_name
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:64]
    return f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def shard_of(storage_config: Any) -> str:
    """The name of the shard of a page, as far as SGLang passes it to a backend."""
    config = storage_config
    tensor = "all" if config.is_mla_model else f"{config.tp_rank}of{config.tp_size}"
    return f"tp{tensor}.cp{config.attn_cp_rank}of{config.attn_cp_size}.pp{config.pp_rank}of{config.pp_size}"


def page_names(pool: str, shard: str, hashes: Sequence[str]) -> list[str]:
    """The key of each page of a pool."""
    return [f"{pool}.{shard}/{page}" for page in hashes]


def _parts(host: Any) -> list[Any]:
    """The tensors of a host pool."""
    return [host.temporal_buffer, *host.conv_buffer] if hasattr(host, "temporal_buffer") else [host.kv_buffer]


def _region(part: Any) -> memoryview:
    return _view(part.data_ptr(), part.nbytes)


def _view(start: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(start)).cast("B")


def __getattr__(name: str) -> Any:
    # The base class is SGLang's, which need not be installed to import this module.
    if name == OPENED:
        return type(OPENED, (_Complete, import_from(STORAGE, "HiCacheStorage")[0]), {})
    raise AttributeError(name)


class _Complete(SglangPages):
    """Adds SGLang's calls for a single page, which it never makes."""

    def get(self, *_: Any) -> Any:
        raise NotImplementedError("SGLang was configured to read pages with batch_get_v1")

    batch_get = set = batch_set = exists = get
