"""Caches of chunks, and engines beside one, with one defect each, and the reports in which the defects were seen.

The reports are of LMCache and of vLLM's connectors. Most of them are about what happens between a look-up and the end
of a retrieval, or between the start and the end of a store.
"""

from __future__ import annotations

from collections.abc import Sequence

from hicache.testing.caches.offload import OffloadCacheAdapter, Request
from hicache.testing.caches.offload_cache import Bytes, Chunk, Identity, Lookup, OffloadCache, Part, Transfer
from hicache.types import SHARED, Namespace, Slots, Tokens


class EvictedBeforeRetrieved(OffloadCache):
    """Pins nothing: a chunk that was found may be evicted, and its memory reused, before it was retrieved.

    LMCache#4133, vllm#39702: the window between the look-up and the load is the whole wait of a request.
    """

    def pin(self, lookup: Lookup) -> None:
        self._touch(lookup.chunks)

    def unpin(self, lookup: Lookup) -> None:
        """There is no pin."""


class PinKeptWithoutRetrieval(OffloadCache):
    """Releases pins at the end of a retrieval alone: what was found and not retrieved is never evicted again.

    LMCache#1034: the engine did not retrieve what it had on the device already, and the host filled up.
    """

    def unpin(self, lookup: Lookup) -> None:
        """Only a retrieval releases pins."""

    def _apply_retrieval(self, transfer: Transfer) -> None:
        super()._apply_retrieval(transfer)
        for part in transfer.parts:
            part.chunk.pins -= 1


class PinsOfAllReleased(OffloadCache):
    """Releases all pins of a chunk at the end of a retrieval, those of other requests too.

    LMCache#5090, LMCache#5098: a pin did not say which request holds it, so one request released that of another.
    """

    def unpin(self, lookup: Lookup) -> None:
        for chunk in lookup.chunks:
            chunk.pins = 0


class FoundBeforeItIsCopied(OffloadCache):
    """Lets look-ups find a chunk when its store starts, so that a request retrieves bytes that are not there yet.

    vllm#45704, vllm#35092: a store was taken for done, and what it had not read yet was loaded as garbage.
    """

    def store(self, tokens: Tokens, namespace: Namespace, slots: Slots) -> Transfer | None:
        transfer = super().store(tokens, namespace, slots)
        for part in reversed(transfer.parts if transfer is not None else []):
            self._state.chunks[part.chunk.identity] = part.chunk
        return transfer


class FailedStoreIsKept(OffloadCache):
    """Keeps a chunk whose store failed.

    LMCache#4991: a store that failed stayed visible.
    """

    def _discard(self, part: Part) -> None:
        self._keep(part.chunk)


class CountsWhatWasFound(OffloadCache):
    """Reports as retrieved what was found, also when a part of it did not arrive.

    LMCache#4133: 768 tokens were promised and 651 delivered.
    """

    def _arrived(self, transfer: Transfer) -> int:
        return len(transfer.parts)


class SkipsAGap(OffloadCache):
    """Goes on behind a chunk that is missing, and takes the next one for it.

    LMCache#1279: a chunk may be evicted while the one behind it stays.
    """

    def lookup(self, tokens: Tokens, namespace: Namespace, limit: int | None = None) -> Lookup:
        wanted = self.identities(tokens[:limit], namespace)
        found = tuple(self._state.chunks[identity] for identity in wanted if identity in self._state.chunks)
        return Lookup(found, len(found) * self.config.chunk_tokens)


class ShortReadIsServed(OffloadCache):
    """Serves an object that is too short, with the old contents of the buffer behind it.

    LMCache#207, LMCache#3292: files that were read while they were written, or were cut off, gave wrong answers.
    """

    def _read(self, chunk: Chunk, layer: int) -> Bytes | None:
        if chunk.slots is None and self._objects is not None:
            name, size = self.object_name(chunk.identity), self.config.chunk_tokens * self.config.slot_bytes
            content = self._objects.get(name)
            if content is not None and len(content) < size * self.config.layers:
                self._objects.remove(name)
                self._objects.set(name, content.ljust(size * self.config.layers, b"\0"))
        return super()._read(chunk, layer)


class NamespaceLeftOut(OffloadCache):
    """Names chunks by their tokens alone, so that two adapters of a model share KV.

    LMCache#2961: the LoRA adapter was not part of the key.
    """

    def identities(self, tokens: Tokens, namespace: Namespace) -> list[Identity]:
        return super().identities(tokens, SHARED)


class TrustsTheDigest(OffloadCache):
    """Compares digests and no tokens, so that a collision serves the chunk of another prompt.

    vllm#12621 (CVE-2025-25183): the hash of a prefix could be predicted, and collisions prepared.
    """

    def lookup(self, tokens: Tokens, namespace: Namespace, limit: int | None = None) -> Lookup:
        by_digest = {chunk.identity[:2]: chunk for chunk in self.chunks()}
        found: list[Chunk] = []
        for identity in self.identities(tokens[:limit], namespace):
            if identity[:2] not in by_digest:
                break
            found.append(by_digest[identity[:2]])
        return Lookup(tuple(found), len(found) * self.config.chunk_tokens)


class UseKeepsTheAge(OffloadCache):
    """Evicts in the order in which chunks were stored, and ignores later uses.

    LMCache#1600: a look-up did not refresh the chunks that it found.
    """

    def _touch(self, chunks: Sequence[Chunk]) -> None:
        """A use changes nothing."""


class FreedWhileMoving(OffloadCacheAdapter):
    """The engine frees the slots of a request that has ended while a transfer still reads or writes them.

    vllm#46951: blocks were given to another request while an older store of them was pending.
    """

    def _busy(self) -> set[int]:
        return set()


class StoresWhatIsScheduled(OffloadCacheAdapter):
    """The engine stores chunks by the tokens that are scheduled, and not by those that are computed.

    vllm#36052: with asynchronous scheduling the number of scheduled tokens includes some that are not confirmed.
    """

    def _store(self, request: Request, tokens: int) -> None:
        super()._store(request, len(request.key.tokens))
