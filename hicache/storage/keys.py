"""StorageKeys: the scope of a cache in storage, and the key of each page in it; and the grammar of both."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from hicache.config import CacheConfig, Follows, ModelShape, PoolShape, Topology
from hicache.errors import KeyFormError
from hicache.types import Pool

MAX_CHARACTERS = 200
"""Of a scope and of a key: with both, a path stays below what file systems take."""

_SEGMENT = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
_SCOPE = re.compile(_SEGMENT)
_KEY = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")

MAX_CHECKED = 1 << 14
_checked = set[str]()
"""The keys of a prefix are asked for, and then read."""


def check_scope(scope: str) -> str:
    """The scope itself. Raises KeyFormError unless it is one segment of letters, digits and `._-`, no dot in front."""
    if len(scope) > MAX_CHARACTERS or not _SCOPE.fullmatch(scope):
        raise KeyFormError(f"{scope!r} is no scope: one segment of letters, digits and ._- is")
    return scope


def check_key(key: str) -> str:
    """The key itself. Raises KeyFormError unless its segments, divided by slashes, are each as a scope is."""
    if len(key) > MAX_CHARACTERS or not _KEY.fullmatch(key):
        raise KeyFormError(f"{key!r} is no key: segments of letters, digits and ._- with slashes between them are")
    return key


def check_keys(keys: Sequence[str]) -> None:
    """Raises KeyFormError where one of them is no key."""
    if not _checked.issuperset(keys):
        if len(_checked) > MAX_CHECKED:
            _checked.clear()
        _checked.update(map(check_key, keys))


@dataclass(frozen=True, slots=True)
class StorageKeys:
    """The names of one cache's pages in storage.

    `scope`: the model and a fingerprint of all that decides what a page's bytes mean. `shards`: by pool, whose part of
    a page it is: ranks that have the same bytes share a shard. `written`: the pools whose shard this rank writes, so
    that each shard has one writer.
    """

    scope: str
    shards: dict[str, str]
    written: frozenset[str]

    @classmethod
    def of(cls, config: CacheConfig) -> StorageKeys:
        """The names for a cache with a storage tier."""
        storage, host, model = config.storage, config.host, config.model
        assert storage is not None, "names in storage are given to a cache that has one"
        assert host is not None, "storage needs a host tier"
        assert model is not None, "storage needs a model"
        meaning = {
            "model": storage.model,
            "shape": asdict(model),
            "page_size": config.page_size,
            "bigram": config.bigram,
            "layout": host.layout.value,
        }
        fingerprint = hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()[:32]
        readable = re.sub(r"[^A-Za-z0-9_-]+", "-", storage.model)[:64]
        shards = {pool.name: _shard(config.topology, is_shared=_is_shared(model, pool)) for pool in model.pools}
        is_first = config.topology.tp_rank == 0
        written = frozenset(pool.name for pool in model.pools if is_first or not _is_shared(model, pool))
        return cls(check_scope(f"{readable}-{fingerprint}"), shards, written)

    def of_pages(self, pool: str, hashes: Iterable[str]) -> list[str]:
        """The key of each page of a pool, by the hash of its prefix."""
        shard = f"{pool.value if isinstance(pool, Pool) else pool!s}.{self.shards[pool]}/"
        return [shard + page_hash for page_hash in hashes]


def _shard(ranks: Topology, *, is_shared: bool) -> str:
    tensor = "all" if is_shared else f"{ranks.tp_rank}of{ranks.tp_size}"
    return f"tp{tensor}.cp{ranks.cp_rank}of{ranks.cp_size}.pp{ranks.pp_rank}of{ranks.pp_size}"


def _is_shared(model: ModelShape, pool: PoolShape) -> bool:
    """Whether all tensor-parallel ranks have the same bytes. A state is divided whatever the model's attention does."""
    return model.is_mla and pool.follows is not Follows.LAST_STATE
