"""SGLang's storage backends under the backend suite: HiCacheFile, and any other class of HiCacheStorage.

A backend gets the calls of SGLang's cache controller: `batch_get` and `batch_set` with flat pages, `exists`,
`batch_exists_v2` for a prefix over several pools, `clear`. A scope is a model's name. Keys become those of the
controller: `kv.tp0of1.cp0of1.pp0of1/9f86` is the page `9f86`, and the same page of the pool `indexer` is
`9f86.indexer`. Each rank in a key has an instance of its own, opened as that rank. A word that is not a rank becomes
part of the page's name, as `9f86@word`; a key of another form is passed unchanged. `batch_set` has one answer for all
pages, and so has `set`.

Exceptions of a backend: in release 0.5.13 the controller's threads catch none, and end; so they are raised here. In
0.5.23 the controller logs them, and treats the whole batch as missed or not written; so that is the answer here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hicache.engines.sglang.imports import import_from, prepare_sglang
from hicache.errors import ConfigurationError
from hicache.optional_torch import torch
from hicache.storage.base import Pieces, PoolQuery, StorageBackend, StorageStats
from hicache.storage.registry import Options

Answer = TypeVar("Answer")

STORAGE = "sglang.srt.mem_cache.hicache_storage"

_PAGE_OF_A_POOL = re.compile(r"(?P<pool>[\w-]+)(?:\.(?P<rank>[\w.-]+))?/(?P<page>[\w-]+)", re.ASCII)

_RANK = re.compile(r"tp(?:all|(\d+)of(\d+))\.cp(\d+)of(\d+)\.pp(\d+)of(\d+)", re.ASCII)

_ONLY_RANK = "tp0of1.cp0of1.pp0of1"


class SglangStorage(StorageBackend):
    """A backend of SGLang. Options: `class`, as `module:Class`, and its `extra_config`.

    It is opened as SGLang opens a dynamic backend: with its configuration, and a dictionary of further options.
    """

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        try:
            self._raises_through = prepare_sglang().startswith("0.5.13")
        except ImportError as error:
            raise ConfigurationError(f"SGLang's storage cannot be opened: {error}") from error
        self._module: Any = import_from(STORAGE)
        self._open = self._opener(scope, options)
        self.storages: dict[str, Any] = {_ONLY_RANK: self._open(_ONLY_RANK)}

    def _opener(self, scope: str, options: Mapping[str, Any]) -> Callable[[str], Any]:
        read = Options("sglang", options, ("class", "extra_config"))
        module, _, name = read.text("class").partition(":")
        opened, extra = import_from(module, name)[0], read.table("extra_config")
        return lambda rank: opened(self._config(scope, extra, rank), {})

    def _config(self, scope: str, extra: Mapping[str, Any], rank: str) -> Any:
        found = _RANK.fullmatch(rank)
        assert found is not None, f"{rank} is a rank"
        tp_rank, tp_size, cp_rank, cp_size, pp_rank, pp_size = (int(number or 0) for number in found.groups())
        return self._module.HiCacheStorageConfig(
            tp_rank=tp_rank,
            tp_size=max(1, tp_size),
            pp_rank=pp_rank,
            pp_size=pp_size,
            attn_cp_rank=cp_rank,
            attn_cp_size=cp_size,
            is_mla_model=not tp_size,
            enable_storage_metrics=False,
            is_page_first_layout=False,
            model_name=scope,
            extra_config=dict(extra),
        )

    def _of(self, keys: Sequence[str]) -> Any:
        """The instance of the rank that the keys name."""
        ranks = {_rank(key) for key in keys} or {_ONLY_RANK}
        if len(ranks) > 1:
            raise ValueError(f"SGLang reads pages of one rank at a time, not of {sorted(ranks)}")
        rank = ranks.pop()
        if rank not in self.storages:
            self.storages[rank] = self._open(rank)
        return self.storages[rank]

    def has(self, keys: Sequence[str]) -> list[bool]:
        storage = self._of(keys)
        return self._asked(lambda: [storage.exists(_name(key)) for key in keys], [False] * len(keys))

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        storage, names = self._of(keys), [_name(key) for key in keys]
        buffers = [torch.empty(_size(target), dtype=torch.uint8) for target in targets]
        missed: list[Any] = [None] * len(keys)
        pages = self._asked(lambda: storage.batch_get(names, buffers), missed)
        for page, target in zip(pages, targets, strict=False):
            if page is not None:
                _scatter(page, target)
        return [page is not None for page in pages]

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        storage, names = self._of(keys), [_name(key) for key in keys]
        pages = [_gather(source) for source in sources]
        return [self._asked(lambda: storage.batch_set(names, pages), False)] * len(keys)

    def clear(self) -> bool:
        # Most classes return nothing here, and the controller ignores it.
        answers = [self._asked(storage.clear, False) for storage in self.storages.values()]
        return False not in answers

    def exists(self, keys: Sequence[str], queries: Sequence[PoolQuery], prefix_keys: Sequence[str]) -> int:
        pools = [_pool_of(query, keys) for query in queries]
        if not keys or None in pools:
            return super().exists(keys, queries, prefix_keys)
        storage, names = self._of(keys), [_name(key) for key in keys]
        transfers = [self._transfer(pool, query, names) for pool, query in zip(pools, queries, strict=True)]
        return self._asked(lambda: int(storage.batch_exists_v2(names, transfers).kv_hit_pages), 0)

    def stats(self) -> StorageStats:
        return StorageStats(0, 0, 0, {}, 0, 0, {}, 0, 0, 0)

    def close(self) -> None:
        for storage in self.storages.values():
            if hasattr(storage, "close"):
                storage.close()

    def _transfer(self, pool: str | None, query: PoolQuery, names: Sequence[str]) -> Any:
        # Only the number of its keys matters: the length of the window.
        policy = self._module.PoolHitPolicy(query.policy.value)
        return self._module.PoolTransfer(name=pool, keys=list(names[-query.trailing_pages :]), hit_policy=policy)

    def _asked(self, ask: Callable[[], Answer], lost: Answer) -> Answer:
        try:
            return ask()
        except Exception:
            if self._raises_through:
                raise
            return lost


class HiCacheFileBackend(SglangStorage):
    """SGLang's HiCacheFile. Options: `directory`, and `extra_config`, in which 0.5.23 takes `max_size` in bytes."""

    def _opener(self, scope: str, options: Mapping[str, Any]) -> Callable[[str], Any]:
        read = Options("hicachefile", options, ("directory", "extra_config"))
        folder, extra = read.text("directory"), read.table("extra_config")
        return lambda rank: self._module.HiCacheFile(self._config(scope, extra, rank), folder)

    def stats(self) -> StorageStats:
        """The files in the folder of this model, as HiCacheFile counts nothing."""
        names = {f"*{storage.config_suffix}.bin": Path(storage.file_path) for storage in self.storages.values()}
        sizes = [file.stat().st_size for pattern, folder in names.items() for file in folder.glob(pattern)]
        return StorageStats(len(sizes), sum(sizes), 0, {}, 0, 0, {}, 0, 0, 0)


def _rank(key: str) -> str:
    """The rank in a key; without one, the single rank."""
    found = _PAGE_OF_A_POOL.fullmatch(key)
    rank = (found and found["rank"]) or _ONLY_RANK
    return rank if _RANK.fullmatch(rank) else _ONLY_RANK


def _name(key: str) -> str:
    found = _PAGE_OF_A_POOL.fullmatch(key)
    if found is None:
        return key
    word = found["rank"] or ""
    page = found["page"] if _RANK.fullmatch(word) else f"{found['page']}@{word.replace('.', ',')}"
    return page if found["pool"] == "kv" else f"{page}.{found['pool']}"


def _pool_of(query: PoolQuery, keys: Sequence[str]) -> str | None:
    """The pool in which a query asks for the same pages as the keys, or None."""
    if len(query.keys) != len(keys):
        return None
    pools = {found["pool"] for key in query.keys if (found := _PAGE_OF_A_POOL.fullmatch(key)) is not None}
    pool = next(iter(pools), None)
    is_same = len(pools) == 1 and [_name(key) for key in query.keys] == [f"{_name(key)}.{pool}" for key in keys]
    return pool if is_same else None


def _size(page: Pieces) -> int:
    return sum(piece.nbytes for piece in page)


def _gather(source: Pieces) -> torch.Tensor:
    pieces = [torch.from_numpy(np.frombuffer(piece, dtype=np.uint8)) for piece in source]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _scatter(page: torch.Tensor, target: Pieces) -> None:
    data: memoryview = memoryview(page.numpy())  # type: ignore[arg-type]
    begin = 0
    for piece in target:
        piece[:] = data[begin : begin + piece.nbytes]
        begin += piece.nbytes
