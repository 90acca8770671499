"""OffloadCache: what is found, pinned, stored, retrieved and evicted, and that bytes come back."""

from __future__ import annotations

import numpy as np
import pytest

from hicache.testing.caches.offload_cache import Bytes, OffloadCache, OffloadCacheConfig
from hicache.types import SHARED, Namespace, Slots, Tokens

LAYERS, SLOT_BYTES, CHUNK = 2, 4, 4


class Pool:
    """The slots of an engine: the bytes at a slot are its number and the layer."""

    def __init__(self) -> None:
        self.memory = np.zeros((LAYERS, 100, SLOT_BYTES), dtype=np.uint8)
        for layer in range(LAYERS):
            self.memory[layer] = np.arange(100)[:, None] + 100 * layer

    def read(self, layer: int, slots: Slots) -> Bytes:
        data: Bytes = self.memory[layer, slots]
        return data

    def write(self, layer: int, slots: Slots, data: Bytes) -> None:
        self.memory[layer, slots] = data


class Objects(dict[str, bytes]):
    """A storage tier in a dictionary."""

    def set(self, name: str, content: bytes) -> bool:
        self.setdefault(name, content)
        return True

    def remove(self, name: str) -> None:
        self.pop(name, None)


def opened(chunks: int, objects: Objects | None = None) -> tuple[OffloadCache, Pool]:
    pool = Pool()
    return OffloadCache(OffloadCacheConfig(CHUNK, chunks * CHUNK, LAYERS, SLOT_BYTES), pool, objects), pool


def prompt(*pages: int) -> Tokens:
    return np.repeat(np.array(pages, dtype=np.int32), CHUNK)


def slots(first: int, count: int) -> Slots:
    return np.arange(first, first + count, dtype=np.int64)


def put(cache: OffloadCache, tokens: Tokens) -> None:
    transfer = cache.store(tokens, SHARED, slots(1, len(tokens)))
    if transfer is not None:
        cache.complete(transfer)
    cache.step()


def found(cache: OffloadCache, *pages: int) -> int:
    return cache.lookup(prompt(*pages), SHARED).tokens // CHUNK


def test_a_store_is_found_when_it_is_applied() -> None:
    cache, _ = opened(4)
    transfer = cache.store(prompt(1, 2), SHARED, slots(1, 8))
    assert transfer is not None, "expected a transfer of two chunks"
    for _ in range(LAYERS):
        assert found(cache, 1, 2) == 0, "expected nothing before the transfer has ended"
        cache.advance(transfer)
    assert found(cache, 1, 2) == 0, "expected nothing before the transfer is applied"
    cache.step()
    assert found(cache, 1, 2, 3) == 2, f"expected two chunks, got {found(cache, 1, 2, 3)}"
    with pytest.raises(ValueError, match="expected a pending transfer"):
        cache.advance(transfer)


def test_only_whole_chunks_are_stored_and_each_of_them_once() -> None:
    cache, _ = opened(4)
    first = cache.store(prompt(1, 2)[:7], SHARED, slots(1, 7))
    assert first is not None, "expected the first chunk to be stored"
    assert len(first.parts) == 1, f"expected one chunk, got {len(first.parts)}"
    assert cache.store(prompt(1), SHARED, slots(9, 4)) is None, "expected no second store of a chunk in flight"
    cache.complete(first)
    cache.step()
    assert cache.store(prompt(1), SHARED, slots(9, 4)) is None, "expected no second store of a chunk that is there"


def test_bytes_come_back_to_other_slots_layer_by_layer() -> None:
    cache, pool = opened(4)
    put(cache, prompt(1, 2))
    lookup = cache.lookup(prompt(1, 2), SHARED)
    cache.pin(lookup)
    transfer = cache.retrieve(lookup, slots(50, 8))
    cache.advance(transfer)
    assert (pool.memory[0, 50:58] == pool.memory[0, 1:9]).all(), "expected layer 0 after one step"
    assert not (pool.memory[1, 50:58] == pool.memory[1, 1:9]).any(), "expected nothing of layer 1 yet"
    cache.complete(transfer)
    cache.step()
    assert (pool.memory[1, 50:58] == pool.memory[1, 1:9]).all(), "expected layer 1 as well"
    assert transfer.arrived == 2 * CHUNK, f"expected two chunks, got {transfer.arrived} tokens"
    assert not any(chunk.pins for chunk in cache.chunks()), "expected no pin after the retrieval"


def test_the_least_recently_used_chunk_goes_and_a_prompt_loses_its_end_first() -> None:
    cache, _ = opened(3)
    put(cache, prompt(1, 2))
    put(cache, prompt(3))
    lookup = cache.lookup(prompt(1, 2), SHARED)
    cache.pin(lookup)
    cache.unpin(lookup)
    put(cache, prompt(4))
    assert (found(cache, 1, 2), found(cache, 3), found(cache, 4)) == (2, 0, 1), "expected chunk 3 to go"
    put(cache, prompt(5))
    assert (found(cache, 1, 2), found(cache, 5)) == (1, 1), "expected the end of the prompt to go"


def test_pinned_chunks_and_the_prompt_itself_stay() -> None:
    cache, _ = opened(2)
    put(cache, prompt(1))
    cache.pin(cache.lookup(prompt(1), SHARED))
    put(cache, prompt(2, 3, 4))
    assert (found(cache, 1), found(cache, 2, 3, 4)) == (1, 1), "expected room for one chunk beside the pinned one"
    put(cache, prompt(2, 3))
    assert found(cache, 2, 3) == 1, "expected a chunk not to evict the one before it"


@pytest.mark.parametrize("parts", [0, 1])
def test_of_a_failed_transfer_the_first_parts_count(parts: int) -> None:
    cache, _ = opened(4)
    stored = cache.store(prompt(1, 2), SHARED, slots(1, 8))
    assert stored is not None, "expected a transfer of two chunks"
    cache.fail(stored, parts)
    cache.step()
    assert found(cache, 1, 2) == parts, f"expected {parts} chunks, got {found(cache, 1, 2)}"
    assert len(cache.free()) == (4 - parts) * CHUNK, "expected the other slots to be free"
    put(cache, prompt(1, 2))
    lookup = cache.lookup(prompt(1, 2), SHARED)
    cache.pin(lookup)
    retrieved = cache.retrieve(lookup, slots(50, 8))
    cache.fail(retrieved, parts)
    cache.step()
    assert retrieved.arrived == parts * CHUNK, f"expected {parts} chunks, got {retrieved.arrived} tokens"


@pytest.mark.parametrize("damage", ["short", "absent"])
def test_an_object_that_is_not_whole_is_a_miss_and_can_be_stored_again(damage: str) -> None:
    objects = Objects()
    cache, pool = opened(2, objects)
    put(cache, prompt(1, 2))
    put(cache, prompt(3, 4))
    assert found(cache, 1, 2) == 2, "expected chunks that left the host to be found in storage"
    name = cache.object_name(cache.identities(prompt(1, 2), SHARED)[1])
    if damage == "short":
        objects[name] = objects[name][:-1]
    else:
        objects.remove(name)
    lookup = cache.lookup(prompt(1, 2), SHARED)
    cache.pin(lookup)
    transfer = cache.retrieve(lookup, slots(50, 8))
    cache.complete(transfer)
    cache.step()
    assert transfer.arrived == CHUNK, f"expected the first chunk alone, got {transfer.arrived} tokens"
    assert (pool.memory[:, 50:54] == pool.memory[:, 1:5]).all(), "expected the bytes of the first chunk"
    assert name not in objects, "expected the damaged object to be gone"
    put(cache, prompt(1, 2))
    assert found(cache, 1, 2) == 2, "expected the chunk to be stored again"


def test_namespaces_share_nothing_even_if_digests_collide() -> None:
    pool = Pool()
    cache = OffloadCache(OffloadCacheConfig(CHUNK, 16, LAYERS, SLOT_BYTES), pool, digest=lambda _: b"0")
    put(cache, prompt(1))
    other = Namespace(lora="a", salt=None, tenant=None)
    assert cache.lookup(prompt(1), other).tokens == 0, "expected nothing in another namespace"
    assert found(cache, 2) == 0, "expected nothing of another prompt"
    assert found(cache, 1) == 1, "expected the prompt itself"


@pytest.mark.parametrize("wrong", [(0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0)], ids=str)
def test_sizes_are_positive(wrong: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="expected positive sizes"):
        OffloadCacheConfig(*wrong)
