"""StorageKeys: the scope of a cache in storage, the keys of its pages, their grammar; Shard: whose a key is."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from typing import NamedTuple

from hicache.config import CacheConfig, ModelShape, PoolShape, Topology
from hicache.errors import KeyFormError
from hicache.types import Pool

LOG = logging.getLogger(__name__)

VERSION = "v2"
"""Of the form of keys and of the bytes of pages. A change of either raises it: pages of another version are not found.

Scopes of the first version have no version in them.
"""

UNIDENTIFIED = "unidentified"
"""In the scope of a cache that was opened without a fingerprint of its model."""

MAX_CHARACTERS = 200
"""The longest scope, and the longest key: a path with both stays below the limits of file systems."""

_SEGMENT = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
_SCOPE = re.compile(_SEGMENT)
_KEY = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")

MAX_CHECKED = 1 << 14
_checked = set[str]()
"""Keys that were checked before: the keys of a prefix are checked by `has`, and again by `get`."""


def check_scope(scope: str) -> str:
    """Return the scope. Raises KeyFormError unless it is one segment of letters, digits and `._-`, no dot at first."""
    if len(scope) > MAX_CHARACTERS or not _SCOPE.fullmatch(scope):
        raise KeyFormError(f"scope: got {scope!r}, expected one segment of letters, digits and ._-")
    return scope


def check_key(key: str) -> str:
    """Return the key. Raises KeyFormError unless it is a sequence of segments in a scope's form, divided by slashes."""
    if len(key) > MAX_CHARACTERS or not _KEY.fullmatch(key):
        raise KeyFormError(f"key: got {key!r}, expected segments of letters, digits and ._- with slashes between them")
    return key


def check_keys(keys: Sequence[str]) -> None:
    """Raise KeyFormError if one of the keys does not have the form of a key."""
    if not _checked.issuperset(keys):
        if len(_checked) > MAX_CHECKED:
            _checked.clear()
        _checked.update(map(check_key, keys))


_RANKS = re.compile(r"(.+)\.tp(?:all|(\d{1,3})of(\d{1,3}))\.cp(\d{1,3})of(\d{1,3})\.pp(\d{1,3})of(\d{1,3})")


class Shard(NamedTuple):
    """The pool that a key is of, and the number of the rank that writes it: tensor before context before pipeline."""

    pool: str
    rank: int

    @classmethod
    def of_key(cls, key: str) -> Shard:
        """The shard of a key that `StorageKeys` made; for any other key `kv` of rank 0."""
        return _shard_named(key.partition("/")[0])


@lru_cache(1 << 10)
def _shard_named(name: str) -> Shard:
    found = _RANKS.fullmatch(name)
    if found is None:
        return Shard(Pool.KV.value, 0)
    pool, *numbers = found.groups()
    tp_rank, tp_size, cp_rank, cp_size, pp_rank, _ = (int(number) if number else 0 for number in numbers)
    # All tensor-parallel ranks share the pages of "tpall", and the first one writes them.
    return Shard(pool, tp_rank + max(tp_size, 1) * (cp_rank + cp_size * pp_rank))


@dataclass(frozen=True, slots=True)
class StorageKeys:
    """The names of one cache's pages in storage.

    `scope`: the model's name, VERSION, UNIDENTIFIED if it is so, and a digest of everything that decides what the bytes
    of a page mean. `shards`: by pool, the name of this rank's part of a page; ranks with the same bytes share a shard.
    `written`: the pools whose shard this rank writes, so that each shard has one writer.
    """

    scope: str
    shards: dict[str, str]
    written: frozenset[str]

    @classmethod
    def of(cls, config: CacheConfig) -> StorageKeys:
        """The names for a cache with a storage tier."""
        model = config.model
        assert model is not None, "expected a configuration with a model, which storage needs"
        shards = {pool.name: _shard(config.topology, is_shared=_is_shared(model, pool)) for pool in model.pools}
        is_first = config.topology.tp_rank == 0
        written = frozenset(pool.name for pool in model.pools if is_first or not _is_shared(model, pool))
        return cls(_scope_of(config), shards, written)

    def of_pages(self, pool: str, hashes: Iterable[str]) -> list[str]:
        """The key of each page of a pool, by the hash of its prefix."""
        shard = f"{self.shard_of(pool)}/"
        return [shard + page_hash for page_hash in hashes]

    def shard_of(self, pool: str) -> str:
        """The first segment of the keys of a pool."""
        return f"{pool}.{self.shards[pool]}"


def _shard(ranks: Topology, *, is_shared: bool) -> str:
    tensor = "all" if is_shared else f"{ranks.tp_rank}of{ranks.tp_size}"
    return f"tp{tensor}.cp{ranks.cp_rank}of{ranks.cp_size}.pp{ranks.pp_rank}of{ranks.pp_size}"


@cache
def warn_of_no_fingerprint() -> None:
    """Log, once in a process, what a cache risks that was opened without a fingerprint of its model."""
    LOG.warning(
        "storage.model_fingerprint is not given: models of one name and shape share their pages in storage, also if "
        "they differ in weights or in RoPE; hicache.fingerprint_of_model makes one of a model's config.json"
    )


def _scope_of(config: CacheConfig) -> str:
    storage, host, model = config.storage, config.host, config.model
    assert storage is not None, "expected a configuration with a storage tier"
    assert host is not None, "expected a configuration with a host tier, which storage needs"
    assert model is not None, "expected a configuration with a model, which storage needs"
    meaning = (
        ("version", VERSION),
        ("model", storage.model),
        ("fingerprint", storage.model_fingerprint),
        ("page_size", config.page_size),
        ("bigram", config.bigram),
        ("layout", host.layout.value),
    )
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", storage.model)[:64]
    version = VERSION if storage.model_fingerprint is not None else f"{VERSION}-{UNIDENTIFIED}"
    return check_scope(f"{readable}-{version}-{_digest(meaning, model)}")


@lru_cache(1 << 8)
def _digest(meaning: tuple[tuple[str, object], ...], shape: ModelShape) -> str:
    """32 digits for everything that decides what the bytes of a page mean."""
    text = json.dumps({**dict(meaning), "shape": asdict(shape)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _is_shared(model: ModelShape, pool: PoolShape) -> bool:
    """Whether all tensor-parallel ranks have the same bytes: with MLA, if they divide no buffer of the pool."""
    return model.is_mla and all(buffer.tp_axis is None for buffer in pool.buffers)
