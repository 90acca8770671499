"""Block caches with one defect each, and the reports in which the defects were seen.

The reports of vLLM are about its hybrid models: groups of layers whose blocks differ in size and in what a hit needs.
Most of them got wrong either the boundary that a state belongs to, or the unit of a number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hicache.testing.caches.block_cache import (
    NULL_BLOCK,
    Block,
    BlockCache,
    BlockCacheConfig,
    BlockRequest,
    Content,
    Digest,
    keep_no_bytes,
    sha256,
)
from hicache.types import Component, EventKind


class TruncatedState(BlockCache):
    """Publishes the state that a chunk left inside a block as the state at the end of that block.

    vllm#51113: chunk ends were aligned to state blocks only up to the last position that was meant to be cached. Beyond
    it a chunk could end inside a block. When a later chunk crossed the end of this block, the state that was left in
    its table entry was hashed as the state at the end, and every later request resumed from a truncated state.
    """

    def _advance(self, request: BlockRequest, computed: int) -> None:
        left = {group: len(request.tables[group]) - 1 for group in self._groups(Component.MAMBA) if request.tables}
        inside = {group: request.computed % self.block_tokens[group] for group in left}
        super()._advance(request, computed)
        for group, index in left.items():
            if inside[group] and self._whole_blocks(group, computed) > index and self._queue:
                table = request.tables[group]
                table[index] = table.pop()
                table.append(self._allocate())
                self._copy_state(table[index], table[-1])
                self._publish_block(request, group, index)
                request.published[group] = index + 1


class StateIndexInSmallestBlocks(BlockCache):
    """Finds the table entry of the state to resume from in units of the smallest block of all groups.

    vllm#55601 (issue vllm#55600): the entry was computed with the smallest block size of any group, not with that of
    the states. The copy read an unrelated block, or memory behind the table, which is the initial state here.
    """

    def _state_found(self, request: BlockRequest, group: int) -> int:
        index, table = request.cached_tokens // self.config.hash_block - 1, request.tables[group]
        return table[index] if 0 <= index < len(table) else NULL_BLOCK


class StateAfterTheHit(BlockCache):
    """Resumes after n-1 tokens of a prompt of n from the state after all n, so that one token is applied twice.

    vllm#51094: the limit of n-1 tokens was applied to the hit, and not to the boundary of the state, in the mode of
    MAMBA in which hits were not aligned to states. Seen when the prompt is a multiple of the state's block.
    """

    def _longest_hit(self, request: BlockRequest, limit: int) -> tuple[int, list[list[int]]]:
        length, tables = super()._longest_hit(request, len(request.tokens))
        self._beyond = {group: tables[group].pop() for group in self._groups(Component.MAMBA) if length > limit}
        return min(length, limit), tables

    def _state_found(self, request: BlockRequest, group: int) -> int:
        return self._beyond.get(group) or super()._state_found(request, group)


class AttentionHitAlone(BlockCache):
    """Takes the hit of the FULL groups for the hit of the request, and resumes from the last state before it.

    vllm#53505: with a KV connector attached, groups were looked up one by one and the longest hit was reported, on the
    assumption that the connector brings the missing state. It does not, and decoding went on from an earlier state.
    """

    def _table_for(self, request: BlockRequest, group: int, length: int) -> list[int] | None:
        table, size = super()._table_for(request, group, length), self.block_tokens[group]
        if table is not None or self.config.groups[group].kind is not Component.MAMBA:
            return table
        earlier = (super(AttentionHitAlone, self)._table_for(request, group, end) for end in range(length, 0, -size))
        state = next((table[-1] for table in earlier if table is not None), NULL_BLOCK)
        return [*[NULL_BLOCK] * (length // size - 1), state]


class BlocksOfOneRank(BlockCache):
    """Divides the tokens of all ranks by the block size of one rank, and publishes blocks that are not computed.

    vllm#46394: under DCP and PCP a block holds block_size tokens of each rank. Conversions from tokens to blocks that
    left out the number of ranks counted too many blocks by this factor.
    """

    def _publish_tokens(self, request: BlockRequest, computed: int) -> None:
        for group in self._groups(Component.FULL, Component.SWA):
            count = min(
                computed // self.config.groups[group].block_size, self._whole_blocks(group, len(request.tokens))
            )
            for index in range(request.published[group], count):
                if request.tables[group][index] != NULL_BLOCK:
                    self._publish_block(request, group, index)
            request.published[group] = max(count, request.published[group])


class GroupsNotAskedAgain(BlockCache):
    """Asks each group once: a group that shortens the hit does not make the groups before it check the shorter one.

    Of the class of vllm#45614, where the hit that the groups have in common was not one that every group can serve.
    Here SWA has the window before the first hit, and lacks the window before the shorter one that MAMBA allows.
    """

    def _longest_hit(self, request: BlockRequest, limit: int) -> tuple[int, list[list[int]]]:
        length = limit - limit % self.config.alignment
        for kind in (Component.FULL, Component.SWA, Component.MAMBA):
            for group in self._groups(kind):
                while length > 0 and self._table_for(request, group, length) is None:
                    length -= self.config.alignment
        return length, [self._known(request, group, length) for group in range(len(self.config.groups))]

    def _known(self, request: BlockRequest, group: int, length: int) -> list[int]:
        """Return the group's table for the hit, with the null block for what it lacks."""
        table = [NULL_BLOCK] * self._whole_blocks(group, length)
        for index in range(self._first_read(group, length), len(table)):
            copies = self._copies(self._content(request, group, index))
            table[index] = copies[0].id if copies else NULL_BLOCK
        return table


class DuplicateFreedInUse(BlockCache):
    """Frees a computed block when another copy of it is cached, and leaves it in the table of the running request.

    mini-sglang 20fcd7f: of two equal prompts in one batch the second computes pages that the first has cached by then.
    They are freed at the end of the chunk, stay in the request's page table, and a third request gets them.
    """

    def _publish_block(self, request: BlockRequest, group: int, index: int) -> None:
        number = request.tables[group][index]
        if self._copies(self._content(request, group, index)) and self._blocks[number].references == 1:
            super()._free(self._blocks[number])
        else:
            super()._publish_block(request, group, index)

    def _free(self, block: Block) -> None:
        if block.references:
            super()._free(block)


class UseKeepsTheAge(BlockCache):
    """Puts a prefix that was found, when it is released, back in the place of the queue that it had before.

    mini-sglang 20fcd7f: after a match that ends inside a node the upper part keeps the time of its last use. It is
    evicted before prefixes that were not used since: insert [1, 2] and [3], match [1], evict one twice: [1] is gone.
    """

    def __init__(
        self, config: BlockCacheConfig, digest: Digest = sha256, copy_state: Callable[[int, int], None] = keep_no_bytes
    ) -> None:
        super().__init__(config, digest, copy_state)
        self._age: dict[int, int] = {}
        self._clock = 0

    def _drop(self, block: Block) -> None:
        super()._drop(block)
        self._age.pop(block.id, None)

    def _enqueue(self, block: Block) -> None:
        super()._enqueue(block)
        self._clock += 1
        if block.content is not None:
            self._age.setdefault(block.id, self._clock)
        cached = [number for number in self._queue if self._blocks[number].content is not None]
        for number in sorted(cached, key=lambda number: self._age[number]):
            self._queue.move_to_end(number)


class BlankBehindCached(BlockCache):
    """Puts blank blocks at the end of the free queue, so that cached blocks are evicted while blank ones are free.

    nano-vllm bb823b3: every freed block joins the end of one queue, whether it holds a prefix or not.
    """

    def _enqueue(self, block: Block) -> None:
        super()._enqueue(block)
        self._queue.move_to_end(block.id)


class LastCopyTakesTheEntry(BlockCache):
    """Keeps one copy in the hash table, the last that was stored; the prefix is lost when this copy is evicted.

    nano-vllm bb823b3: the later of two equal blocks takes the hash entry and dies with it, while the other, which still
    holds the data, is not found any more.
    """

    def _store(self, block: Block, content: Content) -> None:
        super()._store(block, content)
        entries = self._cached[content.group, content.digest]
        entries[:] = [block]

    def _drop(self, block: Block) -> None:
        content = block.content
        if content is not None and block not in self._cached.get((content.group, content.digest), []):
            block.content = None
        else:
            super()._drop(block)


class RemovedWhileACopyRemains(BlockCache):
    """Reports a prefix as removed with each copy that goes, while another copy still serves it.

    Seen in vLLM's block pool: the event is sent for a copy, and the prefix can still be found in the other one.
    """

    def _drop(self, block: Block) -> None:
        content = block.content
        super()._drop(block)
        if content is not None and self._copies(content):
            self._report(EventKind.REMOVED, content)


class AllocatesBeforeItTakes(BlockCache):
    """Allocates the rest of a request before it takes the blocks of its hit, and evicts its own prefix.

    vllm#42948: the allocation of a request took the least recently used blocks, which held its own prefix.
    """

    def _take(self, request: BlockRequest, found: Sequence[int]) -> None:
        self._grow(request)
        self._touch(found)


class InsistsOnTheHit(BlockCache):
    """Refuses forever a request that fits an empty cache, because it does not fit beside the state of its own hit.

    Seen in BlockCache: nothing else runs, so that no request will free the block which the copy of the state needs.
    """

    def _do_without_hit(self, request: BlockRequest) -> None:
        """Keep the hit."""


class TrustsTheDigest(BlockCache):
    """Compares digests and not tokens, so that a collision serves the blocks of another prefix.

    vllm#12621 (CVE-2025-25183): the hash of a prefix could be predicted, and collisions prepared.
    """

    def _copies(self, content: Content) -> list[Block]:
        return list(self._cached.get((content.group, content.digest), []))
