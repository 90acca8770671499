"""HicacheStorage: every storage backend of this package as the storage of an SGLang server.

SGLang opens it by its name, as a dynamic backend with the zero-copy interface (`interface_v1`). The import needs no
SGLang; the class is made when it is asked for, as its base class is SGLang's.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from threading import Lock
from typing import Any, TypeVar

from hicache.errors import ConfigurationError
from hicache.optional_torch import torch
from hicache.storage.answers import Reading, is_cleared, pages_done, pages_usable
from hicache.storage.base import BATCH_PAGES, Pieces, PoolQuery, StorageBackend, accepted_pages
from hicache.storage.registry import Options, open_backend
from hicache.storage.staged import registered
from hicache.types import HitPolicy

T = TypeVar("T")

LOG = logging.getLogger(__name__)

STORAGE = "sglang.srt.mem_cache.hicache_storage"
"""The module of SGLang with the interface of its storage."""

KV, STATES = "kv", "mamba"

OWN = ("backend", "options")
"""The keys of SGLang's extra configuration that belong to this module."""

POLICIES = frozenset(policy.value for policy in HitPolicy)
"""The policies that decide how long a prefix is. SGLang has others, which never do."""

SHAPE = (
    *("page_size", "layer_num", "start_layer", "head_num", "head_dim", "v_head_dim", "kv_cache_dim", "size_per_token"),
    *("temporal_dtype", "temporal_state_shape", "conv_dtype", "conv_state_shapes", "indexer_dtype"),
    "storage_format_tag",
)
"""The attributes of SGLang's host pools that decide what the bytes of a page mean, besides dtype and layout."""


class HostPoolPages:
    """Passes SGLang's calls on to a backend, which reads and writes the memory of SGLang's host pools.

    `extra_config` of SGLang's storage configuration has `backend`, the name of a backend, and `options`, a table.
    Raises ConfigurationError without `interface_v1`, and for what `hicache.storage.registry.open_backend` refuses.
    Nothing else raises in SGLang's threads, as they would end: an error is logged once, and its pages are not there.

    The key of a page names its pool, the rank, what its bytes mean, and the page as SGLang's hash; `names` has them.
    """

    mem_pool_host: Any
    registered_pools: dict[str, Any]

    def __init__(self, storage_config: Any, _: Mapping[str, Any]) -> None:
        extra: Mapping[str, Any] = storage_config.extra_config or {}
        options = Options("of SGLang", {name: extra[name] for name in OWN if name in extra}, OWN, ("options",))
        if not extra.get("interface_v1"):
            options.refuse("interface_v1", extra.get("interface_v1"), "1: pages are not copied")
        self.config = storage_config
        self.scope = scope_of(storage_config.model_name or "")
        self.backend: StorageBackend = open_backend(options.text("backend"), self.scope, options.table("options"))
        self.registered_pools = {}
        self._is_announced = self._has_failed = False
        self._lock = Lock()

    # What SGLang calls.

    def on_host_pools_registered(self) -> None:
        """Tell the backend of all pools. Raises ConfigurationError for a pool that it or this class refuses."""
        with self._lock:
            if not self._is_announced:
                hosts = {KV: self._host(KV), **{str(name): host for name, host in self.registered_pools.items()}}
                sizes = {f"{name}.{self._shard(name)}": _page_bytes(name, host) for name, host in hosts.items()}
                self.backend.register_pools(sizes)
                regions = [_memory_of(part) for host in hosts.values() for part in _tensors(host)]
                self.backend = registered(self.backend, regions, lambda *_: None)
                self._is_announced = True

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        """How many of the first pages of KV are stored."""
        return self._usable(keys, list, extra_info)

    def batch_exists_v2(self, keys: Sequence[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        """How many of the first pages can be used with all pools, as SGLang's PoolTransferResult."""
        transfers = [one for one in pool_transfers or () if one.hit_policy.value in POLICIES]
        pages = self._usable(keys, lambda: [self._query(one, keys) for one in transfers], extra_info)
        result = import_module(STORAGE).PoolTransferResult
        found = result(pages, {KV: pages} | {one.name: pages for one in transfers})
        if self._has_ranks and "restorable_prefix_pages" in {field.name for field in fields(result)}:
            found.restorable_prefix_pages = self._restorable(keys[:pages], transfers)
        return found

    def batch_get_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Read pages of KV into the host pool."""
        return self._move("get", KV, keys, host_indices, extra_info)

    def batch_set_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Store pages of KV from the host pool."""
        return self._move("set", KV, keys, host_indices, extra_info)

    def batch_get_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        """Read pages of several pools."""
        return {one.name: self._move("get", one.name, one.keys, one.host_indices, extra_info) for one in transfers}

    def batch_set_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        """Store pages of several pools."""
        return {one.name: self._move("set", one.name, one.keys, one.host_indices, extra_info) for one in transfers}

    def batch_get(self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        """Read pages into tensors, one for each; None for a page that is not there. SGLang does so for draft models."""
        pages = [[_memory_of(one)] for one in target_locations]
        done = self._asked(lambda: self._pass_on("get", self._flat_names(keys), pages, []), [False] * len(keys))
        return [one if is_done else None for one, is_done in zip(target_locations, done, strict=True)]

    def batch_set(
        self, keys: Sequence[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """Store tensors, one for each page."""
        whole = [value.contiguous() for value in values]
        pages = [[_memory_of(value)] for value in whole]
        return all(self._asked(lambda: self._pass_on("set", self._flat_names(keys), pages, []), [False] * len(keys)))

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """Read a page into a tensor, or None."""
        return self.batch_get([key], [target_location])[0]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Store a tensor."""
        return self.batch_set([key], [value])

    def exists(self, key: str) -> bool:
        """Whether a page that was stored from a tensor is there."""
        return all(self._there(self._flat_names([key])))

    def clear(self) -> bool:
        """Remove all pages of this model."""
        return bool(self._asked(lambda: self._read(is_cleared(self.backend.clear())), lost=0))

    def close(self) -> None:
        """Close the backend."""
        self.backend.close()

    # The names of pages.

    def names(self, pool: str, hashes: Sequence[str]) -> list[str]:
        """The key of each page of a pool."""
        shard, meaning = self._shard(pool), self.meaning_of(self._host(pool))
        return [f"{pool}.{shard}/{meaning}/{page}" for page in hashes]

    def meaning_of(self, host: Any) -> str:
        """What the bytes of a host pool's pages mean: pools that differ in it share no page."""
        shape = [type(host).__name__, *(str(getattr(host, name, None)) for name in SHAPE)]
        dtype = str(host.dtype).removeprefix("torch.")
        return f"{host.layout}-{dtype}-{hashlib.sha256('/'.join(shape).encode()).hexdigest()[:16]}"

    def _flat_names(self, keys: Sequence[str]) -> list[str]:
        """The keys of pages that are tensors. SGLang names those of other pools HASH.POOL."""
        parts = [key.partition(".") for key in keys]
        return [f"{pool or KV}.{self._shard(pool or KV)}/flat/{page}" for page, _, pool in parts]

    def _shard(self, pool: str) -> str:
        """Which part of a page this rank has. States are divided between the ranks also where KV is not."""
        config = self.config
        is_shared = config.is_mla_model and pool != STATES
        tensor = "all" if is_shared else f"{config.tp_rank}of{config.tp_size}"
        ranks = f"tp{tensor}.cp{config.attn_cp_rank}of{config.attn_cp_size}.pp{config.pp_rank}of{config.pp_size}"
        size = getattr(config, "dcp_size", 1)  # since 0.5.23
        return ranks if size == 1 else f"dcp{config.dcp_rank}of{size}.{ranks}"

    # Questions to the backend.

    def _usable(self, keys: Sequence[str], queries: Callable[[], Sequence[PoolQuery]], extra_info: Any) -> int:
        def ask() -> int:
            self.on_host_pools_registered()
            answer = self.backend.exists(self.names(KV, keys), queries(), self._before(extra_info))
            return self._counted(answer, len(keys))

        return self._asked(ask, lost=0)

    def _query(self, transfer: Any, keys: Sequence[str]) -> PoolQuery:
        # Only the number of its keys matters: the length of the window.
        names = self.names(transfer.name, keys)
        return PoolQuery(names, HitPolicy(transfer.hit_policy.value), max(1, len(transfer.keys or ())))

    def _restorable(self, keys: Sequence[str], transfers: Sequence[Any]) -> list[int]:
        """Every number of pages that all pools accept: the ranks take the largest that each of them has."""
        accepted = set(range(1, len(keys) + 1))
        for query in [self._query(one, keys) for one in transfers]:
            accepted &= set(accepted_pages(self._there(query.keys), query.policy, query.trailing_pages))
        return sorted(accepted)

    @property
    def _has_ranks(self) -> bool:
        return bool(max(self.config.tp_size, self.config.attn_cp_size, self.config.pp_size) > 1)

    def _move(self, verb: str, pool: str, keys: Sequence[str] | None, indices: Any, extra_info: Any) -> list[bool]:
        """Read or store pages at these host slots, of which SGLang passes `page_size` for each page."""

        def ask() -> list[bool]:
            self.on_host_pools_registered()
            pages = [] if indices is None else _pages_at(pool, self._host(pool), indices)
            return self._pass_on(verb, self.names(pool, keys or ()), pages, self._before(extra_info))

        return self._asked(ask, lost=[False] * len(keys or ()))

    def _pass_on(self, verb: str, names: Sequence[str], pages: Sequence[Pieces], before: Sequence[str]) -> list[bool]:
        """Call `get` or `set` of the backend, in parts of BATCH_PAGES. No page after one that fails is done."""
        done = begin = 0
        while begin == done < len(names):
            end = begin + BATCH_PAGES
            answer = getattr(self.backend, verb)(names[begin:end], pages[begin:end], before)
            done += self._read(pages_done(answer, len(names[begin:end])))
            begin = end
        return [page < done for page in range(len(names))]

    def _there(self, names: Sequence[str]) -> list[bool]:
        return self._asked(lambda: [one is True for one in self.backend.has(names)], [False] * len(names))

    def _asked(self, ask: Callable[[], T], lost: T) -> T:
        """The answer, or `lost` where it raises: a thread of SGLang would end with the error."""
        try:
            return ask()
        except Exception as error:  # noqa: BLE001
            self._log_once(repr(error))
            return lost

    def _counted(self, answer: int, keys: int) -> int:
        return self._read(pages_usable(answer, keys))

    def _read(self, reading: Reading) -> int:
        if reading.flaw:
            self._log_once(reading.flaw)
        return reading.pages

    def _log_once(self, flaw: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            LOG.error("the storage below SGLang failed, which is logged once: %s", flaw)

    def _before(self, extra_info: Any) -> list[str]:
        return self.names(KV, (extra_info and extra_info.prefix_keys) or ())

    def _host(self, pool: str) -> Any:
        """SGLang's host pool of this name. A cache with KV alone has one, and registers it without a name."""
        is_alone = pool == KV and pool not in self.registered_pools
        return self.mem_pool_host if is_alone else self.registered_pools[pool]


def scope_of(model_name: str) -> str:
    """The scope of a model: its name as far as a scope may have it, and a hash of the whole name."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", model_name)[:64]
    return f"{readable}-{hashlib.sha256(model_name.encode()).hexdigest()[:32]}"


def _pages_at(pool: str, host: Any, indices: Any) -> list[Pieces]:
    """The memory of each page at these host slots, as the host pool reports it. Raises ConfigurationError."""
    found = host.get_page_buffer_meta(indices)
    if found is None:
        raise ConfigurationError(f"SGLang's host pool {pool!r} has no memory of its own, and cannot be stored")
    pieces = [_view(start, size) for start, size in zip(*found, strict=True)]
    pages = len(indices) // host.page_size
    each = len(pieces) // max(1, pages)
    return [pieces[page * each : (page + 1) * each] for page in range(pages)]


def _page_bytes(pool: str, host: Any) -> int:
    (page,) = _pages_at(pool, host, torch.arange(host.page_size))
    return sum(piece.nbytes for piece in page)


def _tensors(host: Any) -> list[Any]:
    """The tensors of a host pool."""
    if hasattr(host, "get_hybrid_pool_buffer"):
        return list(host.get_hybrid_pool_buffer())
    return [host.kv_buffer]


def _memory_of(tensor: Any) -> memoryview:
    return _view(tensor.data_ptr(), tensor.nbytes)


def _view(start: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(start)).cast("B")


def __getattr__(name: str) -> Any:
    # The base class is SGLang's, which need not be installed to import this module.
    if name != "HicacheStorage":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = type(name, (HostPoolPages, import_module(STORAGE).HiCacheStorage), {"__doc__": HostPoolPages.__doc__})
    globals()[name] = made
    return made
