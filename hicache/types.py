"""The types that every layer shares: tiers, components, pools, keys, and the results of each verb."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from hicache.errors import KeyFormError

Slots: TypeAlias = npt.NDArray[np.int64]
"""Slots of a pool, one per token: int64, shape [tokens]."""

Tokens: TypeAlias = npt.NDArray[np.int32]
"""Token ids: int32, shape [tokens]."""


class HasArray(Protocol):
    """What NumPy reads as an array: its own, and a tensor of another library in CPU memory."""

    def __array__(self) -> npt.NDArray[Any]:
        """The same values."""


TokenIds: TypeAlias = Sequence[int] | HasArray
"""Token ids as a caller has them: integers from 0 to 2**31 - 1, of any width, shape [tokens]."""

Handle: TypeAlias = Any
"""A position in a cache's tree. Opaque: only the cache that gave it out may look inside."""

PADDING_SLOT = 0
"""The slot that padded tokens write to. It is never allocated."""


class Tier(str, Enum):
    """Where data is."""

    DEVICE = "device"
    HOST = "host"
    STORAGE = "storage"


class Component(str, Enum):
    """What a tree node can have, in component order: dropping one drops those after it on the same node."""

    FULL = "full"
    SWA = "swa"
    MAMBA = "mamba"


class TransferKind(str, Enum):
    """Which way a transfer moves bytes: device to host, or host to device."""

    BACKUP = "backup"
    LOAD = "load"


class TransferPhase(str, Enum):
    """How far a transfer has come. Each ends exactly once: done, failed or aborted."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    ABORTED = "aborted"

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self in (TransferPhase.DONE, TransferPhase.FAILED, TransferPhase.ABORTED)


class Pool(str, Enum):
    """The pools that the first models have. A model may name others, so the name of a pool is any text."""

    KV = "kv"
    SWA = "swa"
    MAMBA = "mamba"
    INDEXER = "indexer"

    def __str__(self) -> str:
        """The name, as of a pool that a model names."""
        return self.value

    def __format__(self, format_spec: str) -> str:
        """The name, in a message too."""
        return format(self.value, format_spec)


class StorageKind(str, Enum):
    """What storage does for a cache: say how long a prefix it has, read pages for a prefetch, or store pages."""

    QUERY = "query"
    PREFETCH = "fetch"
    STORE = "persist"


class HitPolicy(str, Enum):
    """Which objects of a pool a prefix in storage needs."""

    ALL_PAGES = "all_pages"
    TRAILING_PAGES = "trailing_pages"


class StopPolicy(str, Enum):
    """How long a request waits for its prefetch from storage: not at all, to its end, or for a limited time."""

    BEST_EFFORT = "best_effort"
    WAIT_COMPLETE = "wait_complete"
    TIMEOUT = "timeout"


ADMISSION = "admission"
"""What refuses, beside the components, a part of a match: an admission that cannot use it."""

COMPONENT_POOL: Mapping[str, Pool] = {
    Component.FULL.value: Pool.KV,
    Component.SWA.value: Pool.SWA,
    Component.MAMBA.value: Pool.MAMBA,
}
"""The pool whose slots each component allocates. A sidecar pool lives in the slots of another pool."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """Who may share a prefix. Two different namespaces share nothing, on any tier.

    `lora`: the adapter that computed the KV. `salt`: of the request, which keeps its prefixes from others. `tenant`:
    the customer. Each is a text or None. Raises KeyFormError for anything else.
    """

    lora: str | None = None
    salt: str | None = None
    tenant: str | None = None

    def __post_init__(self) -> None:
        for text in (self.lora, self.salt, self.tenant):
            if text is not None and not _is_text(text):
                raise KeyFormError(f"the fields of a namespace are texts or None, got {text!r}")


def _is_text(text: object) -> bool:
    """Whether it is a text that has an encoding. One with a part of a surrogate pair has none."""
    try:
        return isinstance(text, str) and text.encode() is not None
    except UnicodeEncodeError:
        return False


SHARED = Namespace()
"""The namespace of requests that name none."""


@dataclass(frozen=True, slots=True)
class Media:
    """An image or another medium. The tokens from `start` to `end` stand for it. `digest`: of its content."""

    start: int
    end: int
    digest: str


@dataclass(frozen=True, slots=True, eq=False)
class Key:
    """A prompt: token ids, int32, shape [tokens], the namespace they are valid in, and the media they stand for."""

    tokens: Tokens
    namespace: Namespace
    media: tuple[Media, ...] = ()

    def identity(self) -> Tokens:
        """The token ids, with an id below 0 for each that stands for a medium, of its content and the place in it."""
        if not self.media:
            return self.tokens
        tokens = self.tokens.copy()
        for medium in self.media:
            for at in range(medium.start, min(medium.end, len(tokens))):
                digest = sha256(f"{at - medium.start} {medium.digest}".encode()).digest()
                tokens[at] = -1 - int.from_bytes(digest[:4], "little") % 2**31
        return tokens


@dataclass(frozen=True, slots=True)
class MatchResult:
    """What a prompt found.

    `device_indices`: slots of the FULL component from the root to the device anchor, int64, [tokens].
    `device_anchor`: the deepest node at which every component is valid on the device.
    `best_match`: the deepest node at which every component is valid on device or host.
    `host_hit_length`: FULL tokens past the device anchor that are on the host alone: what a load-back brings in.
    `component_host_hit_lengths`: the same for each other component, in its own unit (SWA tokens, MAMBA states).
    `branching_seqlen`: where a state should be kept so that the next such prompt matches further, or None.
    `tokens_refused`: FULL tokens past the best match, by the component that cut them: how much shorter the match became
    with it than with those before it, in component order. A component that cut nothing may be absent.
    `full_kv_hit_length`: FULL tokens from the root on device or host, without other components; None: not known.
    """

    device_indices: Slots
    device_anchor: Handle
    best_match: Handle
    host_hit_length: int
    component_host_hit_lengths: Mapping[str, int]
    branching_seqlen: int | None
    # Adapters that were written before it was there give none.
    tokens_refused: Mapping[str, int] = field(default_factory=dict)
    full_kv_hit_length: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class NodeInfo:
    """What a handle stands for.

    `tokens`: of the node itself, int32; with bigram keys one more than its length. `namespace`: who may share it.
    `parent`: the handle before it, None for the root. `children`: the handles after it. `start`, `length`: FULL tokens
    (pairs, with bigram keys) from the root to its beginning, and in it.
    """

    tokens: Tokens
    namespace: Namespace
    parent: Handle | None
    children: tuple[Handle, ...]
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class InsertResult:
    """What became of an insert.

    `prefix_length`: tokens that the tree held already.
    `accepted_length`: tokens that a match of the same key returns from now on.
    `node`: where the key ends in the tree, or as much of it as the tree took; a match may end before.
    `state_adopted`: the tree took the caller's state; when False the caller still owns it.
    """

    prefix_length: int
    accepted_length: int
    node: Handle
    state_adopted: bool


@dataclass(frozen=True, slots=True)
class EvictResult:
    """What an eviction freed on its tier.

    `freed`: tokens per component (states for MAMBA). `victims`: nodes that lost data. `refused`: victims that stayed,
    because they had to be backed up first and that was not possible.
    """

    freed: Mapping[str, int]
    victims: int
    refused: int


@dataclass(frozen=True, slots=True, eq=False)
class LoadBack:
    """A load-back that was started.

    `indices`: the FULL slots from the device anchor to the node, in order, int64 [tokens]; what is under way may be
    read layer by layer as it arrives. `ticket`: to be claimed once it has ended, or abandoned.
    """

    indices: Slots
    ticket: Handle


@dataclass(frozen=True, slots=True)
class Sizes:
    """The size counters of one component on one tier, in tokens (states for MAMBA).

    `evictable`: the tree's, and not locked. `protected`: the tree's, and locked. `free`: allocated to no one.
    """

    evictable: int
    protected: int
    free: int


class EventKind(str, Enum):
    """What happened to blocks on a tier."""

    STORED = "stored"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Event:
    """One change of residency.

    `blocks`: one identity per page in order, unique over all prefixes and namespaces: for the reference the hex digest
    of the page's hash chain. For MAMBA the one block whose end the state belongs to.
    """

    kind: EventKind
    tier: Tier
    component: str
    namespace: Namespace
    blocks: tuple[str, ...]


NO_SLOTS: Slots = np.empty(0, dtype=np.int64)
