"""BlockCache: a prefix cache of hashed blocks, the second reference beside the tree.

The design is that of vLLM's KV cache manager. It has no tree and no locks. One pool of physical blocks is shared by all
groups of layers. A block with computed tokens is entered in a hash table under the hash of its whole prefix, and stays
there after its last reader left, until its memory is needed. Blocks without a reader wait in the free queue: blank ones
at the head, then cached ones, least recently used first. Allocation takes from the head.

What differs from the tree: two requests that compute the same block keep both copies; a block may outlive its parent;
a request's table is never rewritten, it grows at the end, and blocks that the request no longer reads turn into the
null block. Everything is synchronous, and nothing here is shared with the tree, its pools or its managers.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from hicache.testing.geometry import Publish
from hicache.types import SHARED, Component, EventKind, Namespace, Slots, Tokens

NULL_BLOCK = 0
"""The block that stands in a table for a block that is not needed. It is never allocated, cached or counted."""

Digest = Callable[[bytes], bytes]


def sha256(data: bytes) -> bytes:
    """Return the SHA-256 digest of the data."""
    return hashlib.sha256(data).digest()


def keep_no_bytes(source: int, target: int) -> None:
    """Copy no state: for a cache that is used without memory behind its blocks."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group of layers that share one table.

    `block_size`: tokens in a block on one rank; for MAMBA the distance between two states that can be cached.
    `window`: for SWA the number of tokens that a token reads, itself included; 0 for the other kinds.
    """

    kind: Component
    block_size: int
    window: int = 0

    @property
    def reach(self) -> int:
        """The window in effect. A state is read as a window of 2: it belongs to the token before the next one."""
        return {Component.FULL: sys.maxsize, Component.SWA: self.window, Component.MAMBA: 2}[self.kind]


@dataclass(frozen=True, slots=True)
class BlockCacheConfig:
    """The geometry and the rules of a BlockCache. Raises ValueError when they contradict each other.

    `num_blocks`: physical blocks, the null block included. `context_parallel`: the ranks of DCP and PCP that share the
    tokens of a block; it multiplies the tokens of FULL and SWA blocks, not those of MAMBA, whose state every rank has
    whole (vllm#40996). `lookahead`: slots that every request has beyond its tokens, for speculative decoding.
    `hit_whole_prompt`: a hit may be all n tokens of a prompt; else at most n-1, since one must be computed to sample.
    `publish_on_abort`: an aborted request publishes the blocks that it computed.
    """

    num_blocks: int
    groups: tuple[Group, ...]
    context_parallel: int = 1
    lookahead: int = 0
    hit_whole_prompt: bool = False
    publish: Publish = Publish.CHUNK
    publish_on_abort: bool = False

    def __post_init__(self) -> None:
        if self.num_blocks < 2 or not self.groups:  # noqa: PLR2004 - the null block and one more
            raise ValueError(f"expected 2 blocks and 1 group at least, found {self.num_blocks} and {self.groups}")
        if self.context_parallel < 1 or self.lookahead < 0 or any(group.block_size < 1 for group in self.groups):
            raise ValueError(f"sizes must be positive, found {self}")
        for group in self.groups:
            if (group.kind is Component.SWA) != (group.window > 1):
                raise ValueError(f"expected a window of 2 tokens or more for SWA and 0 otherwise, found {group}")
        if any(tokens % self.hash_block for tokens in self.block_tokens):
            raise ValueError(f"tokens per block {self.block_tokens}: expected multiples of the smallest")

    @property
    def block_tokens(self) -> tuple[int, ...]:
        """By group, the tokens of one block over all ranks: the unit of every length in tokens."""
        return tuple(
            group.block_size * (1 if group.kind is Component.MAMBA else self.context_parallel) for group in self.groups
        )

    @property
    def hash_block(self) -> int:
        """The tokens that one link of the hash chain covers: the smallest block."""
        return min(self.block_tokens)

    @property
    def alignment(self) -> int:
        """The unit of hits: every group has a block that ends there."""
        return math.lcm(*self.block_tokens)


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """What a block caches: the last tokens of `prefix`, or the state after them.

    `digest`: of the hash chain at the end of the prefix. `parent`: at the block's start, None at the prompt's start.
    """

    group: int
    digest: bytes
    parent: bytes | None
    namespace: Namespace
    prefix: Tokens

    def equals(self, other: Content) -> bool:
        """Whether namespace and all tokens are the same. Digests may collide and are not trusted."""
        return self.namespace == other.namespace and np.array_equal(self.prefix, other.prefix)


@dataclass(slots=True, eq=False)
class Block:
    """A physical block. `references`: its entries in tables, and `pins`. `content`: None if blank or not published."""

    id: int
    references: int = 0
    pins: int = 0
    content: Content | None = None


@dataclass(slots=True, eq=False)
class BlockRequest:
    """A running request, also its handle.

    `tables`: by group the block ids in order; of MAMBA the last is the request's own state, after `computed` tokens.
    `cached_tokens`: the hit at admission. `published`: by group, how many blocks of the table were published or found.
    `digests`: the hash chain; the first link is the namespace's.
    """

    namespace: Namespace
    tokens: Tokens
    digests: list[bytes]
    tables: list[list[int]] = field(default_factory=list)
    published: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    computed: int = 0


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """A prefix of a group that became cached, or whose last copy went. `tokens`: the block's own token ids."""

    kind: EventKind
    group: int
    digest: bytes
    parent: bytes | None
    namespace: Namespace
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShownBlock:
    """A block in the snapshot. `references`: in tables. `prefix`: int32 little-endian; None, as `group`, if blank."""

    id: int
    references: int
    group: int | None
    namespace: Namespace | None
    digest: bytes | None
    prefix: bytes | None
    pins: int


@dataclass(frozen=True, slots=True)
class RequestView:
    """A running request in the snapshot."""

    namespace: Namespace
    tokens: bytes
    cached_tokens: int
    computed: int
    tables: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class BlockCacheSnapshot:
    """The whole cache as values that can be compared. `free`: the free queue, the next block to be taken first."""

    blocks: tuple[ShownBlock, ...]
    free: tuple[int, ...]
    requests: tuple[RequestView, ...]


class BlockCache:
    """A prefix cache of hashed blocks.

    `digest`: the hash function; a weak one costs time, never correctness. `copy_state`: called with a source and a
    target block before the request may write the target; the source NULL_BLOCK stands for the initial state.
    """

    def __init__(
        self, config: BlockCacheConfig, digest: Digest = sha256, copy_state: Callable[[int, int], None] = keep_no_bytes
    ) -> None:
        self.config = config
        self.block_tokens = config.block_tokens
        self._digest = digest
        self._copy_state = copy_state
        self._blocks = [Block(number) for number in range(config.num_blocks)]
        self._queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, config.num_blocks))
        self._cached: dict[tuple[int, bytes], list[Block]] = {}
        self._requests: list[BlockRequest] = []
        self._preempted: list[BlockRequest] = []
        self._events: list[BlockEvent] = []

    # Requests.

    def match(self, tokens: Tokens, namespace: Namespace = SHARED, limit: int | None = None) -> int:
        """Return the tokens that a request would find now, at most `limit` (None: as at admission). Changes nothing."""
        request = self._open(tokens, namespace)
        return self._longest_hit(request, self._hit_limit(request) if limit is None else min(limit, len(tokens)))[0]

    def admit(self, tokens: Tokens, namespace: Namespace = SHARED) -> BlockRequest | None:
        """Find the longest cached prefix and allocate the rest; None, with no effect, when the pool is short.

        The blocks of the prefix are taken before any is allocated, so that a request never evicts its own prefix.
        If nothing else runs and the request does not fit beside the state of its hit, it does without the hit.
        """
        if not len(tokens):
            raise ValueError("expected a prompt of 1 token at least, found none")
        request = self._open(tokens, namespace)
        return request if self._admit(request) else None

    def resume(self, request: BlockRequest) -> bool:
        """Admit a request that was preempted, with all its tokens; False, with no effect, when the pool is short."""
        if request not in self._preempted:
            raise ValueError(f"expected a preempted request, found another one, with {len(request.tokens)} tokens")
        is_admitted = self._admit(request)
        if is_admitted:
            self._preempted.remove(request)
        return is_admitted

    def _admit(self, request: BlockRequest) -> bool:
        request.cached_tokens, request.tables = self._longest_hit(request, self._hit_limit(request))
        request.computed = request.cached_tokens
        if not self._fits_beside_hit(request) and not self._requests:
            self._do_without_hit(request)
        if not self._fits_beside_hit(request):
            return False
        request.published = [len(table) for table in request.tables]
        self._take(request, _found(request))
        for group in self._groups(Component.MAMBA):
            table = request.tables[group]
            self._copy_state(self._state_found(request, group), table[-1])
        self._requests.append(request)
        if self.config.publish is Publish.SCHEDULED:
            self._publish_tokens(request, len(request.tokens))
        return True

    def extend(self, request: BlockRequest, tokens: Tokens) -> bool:
        """Append tokens to a running request; False, with no effect, when the pool is short."""
        self._check_running(request)
        length = len(request.tokens) + len(tokens)
        if self._missing(request, length) > len(self._queue):
            return False
        request.tokens = np.concatenate([request.tokens, np.asarray(tokens, np.int32)])
        self._extend_chain(request)
        self._grow(request)
        if self.config.publish is Publish.SCHEDULED:
            self._publish_tokens(request, length)
        return True

    def checkpoint(self, request: BlockRequest, computed: int) -> None:
        """Record that the first `computed` tokens are computed; publish them, and free what is not read any more.

        A state is published when `computed` is a multiple of its block size, and when a block is free in which the
        request can go on; without one the request keeps the state for itself.
        """
        self._advance(request, computed)
        if self.config.publish is not Publish.REQUEST:
            self._publish_tokens(request, computed)
        self._release_window(request)
        if self.config.publish is not Publish.REQUEST:
            self._publish_states(request, last=False)

    def finish(self, request: BlockRequest, computed: int | None = None) -> None:
        """Publish the computed tokens (None: all of them) and release everything that the request holds."""
        self._advance(request, len(request.tokens) if computed is None else computed)
        self._publish_tokens(request, request.computed)
        self._publish_states(request, last=True)
        self._close(request)

    def abort(self, request: BlockRequest) -> None:
        """Release everything that the request holds; what is published already stays cached."""
        if request in self._preempted:
            self._preempted.remove(request)
            return
        self._check_running(request)
        if self.config.publish_on_abort:
            self._publish_tokens(request, request.computed)
            self._publish_states(request, last=True)
        self._close(request)

    def preempt(self, request: BlockRequest) -> None:
        """Release everything that the request holds, until it is resumed; what is published already stays cached."""
        self._check_running(request)
        self._close(request)
        self._preempted.append(request)

    def pin(self, tokens: Tokens, namespace: Namespace = SHARED) -> list[int]:
        """Keep the cached prefix of a prompt from eviction; returns its blocks, which `unpin` takes."""
        request = self._open(tokens, namespace)
        request.tables = self._longest_hit(request, len(tokens))[1]
        numbers = _found(request)
        self._touch(numbers)
        for number in numbers:
            self._blocks[number].pins += 1
        return numbers

    def unpin(self, numbers: list[int]) -> None:
        """Remove a pin; the end of the prompt is evicted first."""
        for number in reversed(numbers):
            self._blocks[number].pins -= 1
            self._free(self._blocks[number])

    # The cache as a whole.

    def evict(self, count: int) -> int:
        """Drop what the first `count` cached blocks of the free queue hold; returns how many blocks that were."""
        victims = [number for number in self._queue if self._blocks[number].content is not None][:count]
        for number in victims:
            self._drop(self._blocks[number])
        for number in reversed(victims):
            self._enqueue(self._blocks[number])
        return len(victims)

    def reset(self) -> bool:
        """Drop all cached content; False, with no effect, while a request is running."""
        if self._requests:
            return False
        self.evict(len(self._queue))
        return True

    def take_events(self) -> list[BlockEvent]:
        """Return the events since the last call, oldest first."""
        events, self._events = self._events, []
        return events

    # Read-only.

    def digests(self, tokens: Tokens, namespace: Namespace = SHARED) -> list[bytes]:
        """Return the digest at the end of each whole hash block of a prompt, as events name it."""
        return self._open(tokens, namespace).digests[1:]

    def slots(self, request: BlockRequest, group: int) -> Slots:
        """Return one slot per token of the table's blocks, lookahead included: block id * tokens per block + offset."""
        size = self.block_tokens[group]
        first = np.asarray(request.tables[group], np.int64) * size
        return (first[:, None] + np.arange(size, dtype=np.int64)).reshape(-1)

    def state(self, request: BlockRequest) -> int | None:
        """Return the block with the request's own state, of the first MAMBA group, or None without one."""
        self._check_running(request)
        return next((request.tables[group][-1] for group in self._groups(Component.MAMBA)), None)

    def snapshot(self) -> BlockCacheSnapshot:
        """Return the state of every block, the free queue and the running requests, as values."""
        return BlockCacheSnapshot(
            blocks=tuple(_block_view(block) for block in self._blocks),
            free=tuple(self._queue),
            requests=tuple(
                RequestView(
                    namespace=request.namespace,
                    tokens=_token_bytes(request.tokens),
                    cached_tokens=request.cached_tokens,
                    computed=request.computed,
                    tables=tuple(tuple(table) for table in request.tables),
                )
                for request in self._requests
            ),
        )

    # The lookup.

    def _open(self, tokens: Tokens, namespace: Namespace) -> BlockRequest:
        """Return a request that holds nothing yet, with its hash chain."""
        identity = json.dumps([namespace.lora, namespace.salt, namespace.tenant]).encode()
        request = BlockRequest(namespace, np.array(tokens, np.int32), [self._digest(identity)])
        self._extend_chain(request)
        return request

    def _extend_chain(self, request: BlockRequest) -> None:
        """Hash the whole hash blocks of the tokens that are not hashed yet: each with the digest before it."""
        size = self.config.hash_block
        for end in range(len(request.digests) * size, len(request.tokens) + 1, size):
            own = _token_bytes(request.tokens[end - size : end])
            request.digests.append(self._digest(request.digests[-1] + own))

    def _content(self, request: BlockRequest, group: int, index: int) -> Content:
        """Return what the block at this index of the group's table holds once it is computed."""
        size = self.block_tokens[group]
        links = size // self.config.hash_block
        parent = request.digests[index * links] if index else None
        prefix = request.tokens[: (index + 1) * size]
        return Content(group, request.digests[(index + 1) * links], parent, request.namespace, prefix)

    def _copies(self, content: Content) -> list[Block]:
        """Return the blocks that cache this content, the oldest entry first."""
        entries = self._cached.get((content.group, content.digest), [])
        return [block for block in entries if block.content is not None and block.content.equals(content)]

    def _longest_hit(self, request: BlockRequest, limit: int) -> tuple[int, list[list[int]]]:
        """Return the longest prefix that every group can serve, and the table of each group for it."""
        length = limit - limit % self.config.alignment
        while length > 0:
            tables = self._tables_for(request, length)
            if tables is not None:
                return length, tables
            length -= self.config.alignment
        return 0, [[] for _ in self.config.groups]

    def _hit_limit(self, request: BlockRequest) -> int:
        """Return the tokens that a hit may have at most."""
        return len(request.tokens) - (0 if self.config.hit_whole_prompt else 1)

    def _tables_for(self, request: BlockRequest, length: int) -> list[list[int]] | None:
        """Return the tables for a hit of this length, or None when a group lacks a block that the next token reads."""
        tables: list[list[int]] = [[] for _ in self.config.groups]
        for group in sorted(range(len(tables)), key=lambda index: self.config.groups[index].reach):
            table = self._table_for(request, group, length)
            if table is None:
                return None
            tables[group] = table
        return tables

    def _table_for(self, request: BlockRequest, group: int, length: int) -> list[int] | None:
        """Return one group's table for a hit of this length, or None; searched from the end, where most misses are."""
        first, count = self._first_read(group, length), self._whole_blocks(group, length)
        table = [NULL_BLOCK] * count
        for index in reversed(range(first, count)):
            copies = self._copies(self._content(request, group, index))
            if not copies:
                return None
            table[index] = copies[0].id
        return table

    # Units: tokens to blocks.

    def _groups(self, *kinds: Component) -> list[int]:
        return [index for index, group in enumerate(self.config.groups) if group.kind in kinds]

    def _whole_blocks(self, group: int, tokens: int) -> int:
        """Return how many blocks this many tokens fill."""
        return tokens // self.block_tokens[group]

    def _first_read(self, group: int, computed: int) -> int:
        """Return the first block that the token after `computed` tokens reads."""
        return max(0, computed - self.config.groups[group].reach + 1) // self.block_tokens[group]

    def _table_length(self, group: int, tokens: int, computed: int) -> int:
        """Return the entries that the table of a request with this many tokens has; with one for its own state."""
        if self.config.groups[group].kind is Component.MAMBA:
            return self._whole_blocks(group, computed) + 1
        return -(-(tokens + self.config.lookahead) // self.block_tokens[group])

    def _state_found(self, request: BlockRequest, group: int) -> int:
        """Return the block with the state at the end of the hit: the entry before the request's own state."""
        index = self._whole_blocks(group, request.cached_tokens) - 1
        return request.tables[group][index] if index >= 0 else NULL_BLOCK

    # The life of a request.

    def _missing(self, request: BlockRequest, tokens: int) -> int:
        """Return the blocks that the tables lack for this many tokens."""
        return sum(
            max(0, self._table_length(group, tokens, request.computed) - len(table))
            for group, table in enumerate(request.tables)
        )

    def _fits_beside_hit(self, request: BlockRequest) -> bool:
        """Whether the blocks that the tables lack can be allocated while the blocks of the hit stay."""
        idle = sum(not self._blocks[number].references for number in _found(request))
        return self._missing(request, len(request.tokens)) <= len(self._queue) - idle

    def _do_without_hit(self, request: BlockRequest) -> None:
        """Let a request that runs alone start anew: no other request will end and free the missing block."""
        request.cached_tokens, request.computed, request.tables = 0, 0, [[] for _ in request.tables]

    def _take(self, request: BlockRequest, found: Sequence[int]) -> None:
        """Take the blocks of the hit, then allocate the others."""
        self._touch(found)
        self._grow(request)

    def _grow(self, request: BlockRequest) -> None:
        """Allocate the blocks that the tables lack."""
        for group, table in enumerate(request.tables):
            while len(table) < self._table_length(group, len(request.tokens), request.computed):
                table.append(self._allocate())

    def _advance(self, request: BlockRequest, computed: int) -> None:
        """Move the request's own states to the entry in which the next token falls."""
        self._check_running(request)
        if not request.computed <= computed <= len(request.tokens):
            raise ValueError(f"expected {request.computed} to {len(request.tokens)} computed tokens, found {computed}")
        request.computed = computed
        for group in self._groups(Component.MAMBA):
            table = request.tables[group]
            own = table.pop()
            table.extend([NULL_BLOCK] * (self._whole_blocks(group, computed) - len(table)))
            table.append(own)

    def _publish_tokens(self, request: BlockRequest, computed: int) -> None:
        """Enter the whole blocks of FULL and SWA that hold computed tokens, and never lookahead, in the hash table."""
        for group in self._groups(Component.FULL, Component.SWA):
            count = self._whole_blocks(group, computed)
            for index in range(request.published[group], count):
                if request.tables[group][index] != NULL_BLOCK:
                    self._publish_block(request, group, index)
            request.published[group] = max(count, request.published[group])

    def _publish_states(self, request: BlockRequest, *, last: bool) -> None:
        """Enter the state after the computed tokens, and go on in a copy of it; `last`: the request ends here."""
        for group in self._groups(Component.MAMBA):
            table, count = request.tables[group], self._whole_blocks(group, request.computed)
            aligned = request.computed % self.block_tokens[group] == 0
            if not aligned or count <= request.published[group] or not (last or self._queue):
                continue
            table[count - 1] = table.pop()
            if not last:
                table.append(self._allocate())
                self._copy_state(table[count - 1], table[count])
            request.published[group] = count
            self._publish_block(request, group, count - 1)

    def _publish_block(self, request: BlockRequest, group: int, index: int) -> None:
        """Enter one block of a table in the hash table."""
        self._store(self._blocks[request.tables[group][index]], self._content(request, group, index))

    def _release_window(self, request: BlockRequest) -> None:
        """Release the blocks that no later token reads; the null block takes their place."""
        self._release(
            request,
            [
                (group, index)
                for group, table in enumerate(request.tables)
                for index in range(min(len(table), self._first_read(group, request.computed)))
            ],
        )

    def _release(self, request: BlockRequest, entries: Sequence[tuple[int, int]]) -> None:
        """Release these entries (group, index), the end of the prompt first, so that it is evicted first."""
        for group, index in sorted(entries, key=lambda entry: -(entry[1] + 1) * self.block_tokens[entry[0]]):
            number = request.tables[group][index]
            request.tables[group][index] = NULL_BLOCK
            if number != NULL_BLOCK:
                self._free(self._blocks[number])

    def _close(self, request: BlockRequest) -> None:
        self._requests.remove(request)
        self._release(
            request, [(group, index) for group, table in enumerate(request.tables) for index in range(len(table))]
        )
        request.tables = []

    def _check_running(self, request: BlockRequest) -> None:
        if request not in self._requests:
            raise ValueError(f"expected a running request, found one that ended, with {len(request.tokens)} tokens")

    # The pool.

    def _touch(self, numbers: Sequence[int]) -> None:
        """Add a reader to cached blocks; those without one leave the free queue."""
        for number in numbers:
            self._blocks[number].references += 1
            self._queue.pop(number, None)

    def _allocate(self) -> int:
        """Take the block at the head of the free queue, and drop what it caches."""
        number, _ = self._queue.popitem(last=False)
        block = self._blocks[number]
        if block.content is not None:
            self._drop(block)
        block.references = 1
        return number

    def _free(self, block: Block) -> None:
        """Remove a reader; the last one leaves the block to the free queue."""
        if block.references < 1:
            raise ValueError(f"block {block.id}: expected a reader to remove, found {block.references} references")
        block.references -= 1
        if not block.references:
            self._enqueue(block)

    def _enqueue(self, block: Block) -> None:
        """Put a block without readers in the free queue: a cached one at the end, a blank one at the head."""
        self._queue[block.id] = None
        self._queue.move_to_end(block.id, last=block.content is not None)

    def _store(self, block: Block, content: Content) -> None:
        """Enter a block in the hash table, beside other copies of the same content."""
        if not self._copies(content):
            self._report(EventKind.STORED, content)
        block.content = content
        self._cached.setdefault((content.group, content.digest), []).append(block)

    def _drop(self, block: Block) -> None:
        """Remove a block from the hash table; the prefix is gone when it was the last copy."""
        content, block.content = block.content, None
        if content is None:
            raise ValueError(f"block {block.id}: expected cached content to drop, found none")
        key = (content.group, content.digest)
        self._cached[key].remove(block)
        if not self._cached[key]:
            del self._cached[key]
        if not self._copies(content):
            self._report(EventKind.REMOVED, content)

    def _report(self, kind: EventKind, content: Content) -> None:
        own = content.prefix[-self.block_tokens[content.group] :]
        event = BlockEvent(kind, content.group, content.digest, content.parent, content.namespace, tuple(own.tolist()))
        self._events.append(event)


def _found(request: BlockRequest) -> list[int]:
    """Return the blocks in the tables of a request that was not admitted yet: those of its hit."""
    return [number for table in request.tables for number in table if number != NULL_BLOCK]


def _token_bytes(tokens: Tokens) -> bytes:
    return tokens.astype("<i4").tobytes()


def _block_view(block: Block) -> ShownBlock:
    content = block.content
    if content is None:
        return ShownBlock(block.id, block.references, None, None, None, None, pins=0)
    prefix = _token_bytes(content.prefix)
    references = block.references - block.pins
    return ShownBlock(block.id, references, content.group, content.namespace, content.digest, prefix, block.pins)
