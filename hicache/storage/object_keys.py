"""StorageKeys: the scope of a cache in storage, and the key of each page in it; and the grammar of both."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from hicache.config import CacheConfig
from hicache.errors import KeyFormError
from hicache.types import Pool

MOST_CHARACTERS = 200
"""Of a scope and of a key: with both, a path stays below what file systems take."""

_SEGMENT = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
_SCOPE = re.compile(_SEGMENT)
_KEY = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")

MOST_CHECKED = 1 << 14
_checked = set[str]()
"""The keys of a prefix are asked for, and then read."""


def check_scope(scope: str) -> str:
    """The scope itself. Raises KeyFormError unless it is one segment of letters, digits and `._-`, no dot in front."""
    if len(scope) > MOST_CHARACTERS or not _SCOPE.fullmatch(scope):
        raise KeyFormError(f"{scope!r} is no scope: one segment of letters, digits and ._- is")
    return scope


def check_key(key: str) -> str:
    """The key itself. Raises KeyFormError unless its segments, divided by slashes, are each as a scope is."""
    if len(key) > MOST_CHARACTERS or not _KEY.fullmatch(key):
        raise KeyFormError(f"{key!r} is no key: segments of letters, digits and ._- with slashes between them are")
    return key


def check_keys(keys: Sequence[str]) -> None:
    """Raises KeyFormError where one of them is no key."""
    if not _checked.issuperset(keys):
        if len(_checked) > MOST_CHECKED:
            _checked.clear()
        _checked.update(map(check_key, keys))


@dataclass(frozen=True, slots=True)
class StorageKeys:
    """Names for the pages of one cache.

    `scope`: the model and a fingerprint of all that decides what a page's bytes mean. `shards`: by pool, whose part of
    a page it is: ranks that hold the same bytes share a shard. `written`: the pools whose shard this rank writes, so
    that each shard has one writer.
    """

    scope: str
    shards: dict[Pool, str]
    written: frozenset[Pool]

    @classmethod
    def of(cls, config: CacheConfig) -> StorageKeys:
        """The names for a cache with a storage tier."""
        storage, host = config.storage, config.host
        assert storage is not None, "names in storage are given to a cache that has one"
        assert host is not None, "storage needs a host tier"
        meaning = {
            "model": storage.model,
            "shape": asdict(config.model),
            "page_size": config.page_size,
            "bigram": config.bigram,
            "layout": host.layout.value,
        }
        fingerprint = hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()[:32]
        readable = re.sub(r"[^A-Za-z0-9_-]+", "-", storage.model)[:64]
        written = frozenset(pool for pool in Pool if config.topology.tp_rank == 0 or not _is_shared(config, pool))
        return cls(check_scope(f"{readable}-{fingerprint}"), {pool: _shard(config, pool) for pool in Pool}, written)

    def keys(self, pool: Pool, hashes: Iterable[str]) -> list[str]:
        """The key of each page of a pool, by the hash of its prefix."""
        shard = f"{pool.value}.{self.shards[pool]}/"
        return [shard + page_hash for page_hash in hashes]


def _shard(config: CacheConfig, pool: Pool) -> str:
    ranks = config.topology
    tensor = "all" if _is_shared(config, pool) else f"{ranks.tp_rank}of{ranks.tp_size}"
    return f"tp{tensor}.cp{ranks.cp_rank}of{ranks.cp_size}.pp{ranks.pp_rank}of{ranks.pp_size}"


def _is_shared(config: CacheConfig, pool: Pool) -> bool:
    """Whether all tensor-parallel ranks hold the same bytes. A state is divided whatever the model's attention does."""
    return config.model.is_mla and pool is not Pool.MAMBA
