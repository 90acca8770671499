"""Lmdeploy0180: the adapter of the prefix cache of lmdeploy's PyTorch engine, by the door of requests.

It drives the engine's `Scheduler`, with its block manager and its block trie, as the engine loop does: `schedule`
admits a sequence, `schedule_running` gives it a block before its next token, and `end_session` releases it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np

from hicache.config import CacheConfig
from hicache.engines.imports import add_installed_bare, import_quietly, installed_release
from hicache.engines.stubs import StubFinder
from hicache.errors import ConfigurationError
from hicache.testing.adapter import Admission, CacheAdapter, Capability, PageBytes
from hicache.testing.geometry import GeometricConfig, Geometry, Publish
from hicache.testing.snapshot import BlockPool, BlockSnapshot, CachedBlock
from hicache.types import SHARED, Component, Key, Namespace, Pool, Sizes, Slots, Tokens

FULL = Component.FULL.value
LAYERS, SLOT_BYTES = 2, 8
REQUESTS = 256
"""The sequences that can run at once: more than the suites have."""

RELEASE = "0.18.0"
BARE = ("lmdeploy", "lmdeploy.pytorch")
STUBBED = (
    *("lmdeploy.messages", "lmdeploy.utils", "lmdeploy.vl", "lmdeploy.pytorch.disagg", "lmdeploy.pytorch.engine"),
    *("lmdeploy.pytorch.kv_connector", "lmdeploy.pytorch.model_inputs", "lmdeploy.pytorch.multimodal"),
    "lmdeploy.pytorch.utils",
)
"""Packages and modules that the scheduler imports for their types, their loggers and their events."""


def prepare_lmdeploy() -> None:
    """Make `lmdeploy.pytorch.paging` importable without a GPU. Raises ImportError without this release of lmdeploy."""
    if (found := installed_release("lmdeploy")) != RELEASE:
        raise ImportError(
            f"the adapter drives lmdeploy {RELEASE}, installed is {found}: pip install --no-deps lmdeploy"
        )
    if "lmdeploy" not in sys.modules:
        sys.meta_path.insert(0, StubFinder(STUBBED))
        add_installed_bare(BARE)


class Lmdeploy0180(CacheAdapter):
    """Blocks of FULL by requests. A namespace is the name of an adapter (LoRA), and has a trie of its own."""

    interface = 2
    profile = "blocks"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            *(Capability.REQUESTS, Capability.PAGED, Capability.BYTES, Capability.SNAPSHOT, Capability.SIZES),
            *(Capability.TABLES, Capability.COLLISIONS, Capability.NAMESPACES),
        }
    )

    # The engine evicts first, and then counts what it has.
    departures = frozenset({"EVICT-13"})

    def __init__(self, config: CacheConfig) -> None:
        if config.components != (FULL,) or not isinstance(config, GeometricConfig):
            raise ConfigurationError(f"{config.name}: expected FULL alone, with a geometry")
        self._size, self._blocks = config.page_size, config.capacity_tokens[FULL] // config.page_size
        self._lookahead = config.geometry.lookahead
        self.scheduler = _open_scheduler(self._size, self._blocks)
        self.trie, self.blocks = self.scheduler.block_trie, self.scheduler.block_manager
        self._namespaces: dict[str | None, Namespace] = {None: SHARED}
        self._sessions = 0
        self._memory = np.zeros((LAYERS, self._blocks + 1, self._size, SLOT_BYTES), dtype=np.uint8)

    @classmethod
    def configurations(cls) -> Sequence[CacheConfig]:
        return CONFIGURATIONS

    @classmethod
    @contextmanager
    def colliding(cls) -> Iterator[None]:
        prepare_lmdeploy()
        (trie,) = import_quietly("lmdeploy.pytorch.paging.block_trie", "BlockTrie")
        with patch.object(trie, "_hash_block", staticmethod(lambda *_: 1)):
            yield

    # Requests.

    def lookup(self, key: Key) -> int:
        # A match always leaves out the last token: it is made with one token more, and without its effects.
        sequence = self._open(key, more=1)
        root = self.trie._roots.get(sequence.adapter_name)  # noqa: SLF001
        found = 0 if root is None else self.trie._find_deepest_block_match_step(sequence, root)  # noqa: SLF001
        self._close(sequence)
        return int(found)

    def admit(self, key: Key) -> Admission | None:
        sequence = self._open(key)
        admitted = self.scheduler.schedule(is_prefill=True, prealloc_size=self._lookahead).running
        if not admitted:
            self._close(sequence)
            return None
        self.scheduler.activate_seqs(admitted)
        return Admission(sequence, self.tables(sequence)[FULL], sequence.cached_tokens, None, loading=False)

    def extend(self, request: Any, tokens: Tokens) -> Slots | None:
        # The engine asks for room before each token, and preempts where there is none. Here all are asked for first.
        room = self._lookahead + len(tokens)
        if not self.scheduler.eviction_helper.try_make_capacity_for(request, (), room):
            return None
        for token in tokens:
            request.update_token_ids(token, mode=import_quietly("lmdeploy.pytorch.messages").UpdateTokenMode.DECODE)
            self.scheduler.schedule_running([request], self._lookahead, self._lookahead)
        return self.tables(request)[FULL]

    def checkpoint(self, request: Any, computed_tokens: int) -> Slots:
        return self.tables(request)[FULL]

    def finish(self, request: Any) -> None:
        request.finish()
        self._close(request)

    def abort(self, request: Any) -> None:
        self._close(request)

    def tables(self, request: Any) -> Mapping[str, Slots]:
        first = self.blocks.get_block_table(request) * self._size
        return {FULL: (first[:, None] + np.arange(self._size, dtype=np.int64)).reshape(-1)}

    # The model runner.

    def layers(self, pool: str) -> int:
        return LAYERS if pool == Pool.KV else 0

    def slot_bytes(self, pool: str) -> int:
        return SLOT_BYTES

    def write(self, pool: str, slots: Slots, layer: int, data: PageBytes) -> None:
        self._memory[layer, slots // self._size, slots % self._size] = data

    def read(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        data: PageBytes = self._memory[layer, slots // self._size, slots % self._size]
        return data

    # Read-only.

    def block_snapshot(self) -> BlockSnapshot:
        return BlockSnapshot(tuple(self._cached()), (BlockPool((FULL,), self._blocks, tuple(self._blank())),))

    def sizes(self) -> Mapping[str, Sizes]:
        # The engine counts free blocks alone. A cached block is evictable when the trie alone refers to it.
        free = self.blocks.get_num_free_gpu_blocks()
        evictable = sum(block.references == 0 for block in self._cached())
        counts = evictable, self._blocks - free - evictable, free
        return {FULL: Sizes(*(int(count) * self._size for count in counts))}

    # Internal.

    def _open(self, key: Key, more: int = 0) -> Any:
        """A waiting sequence with a session of its own."""
        name = None if key.namespace == SHARED else repr(key.namespace)
        self._namespaces[name] = key.namespace
        self._sessions += 1
        session = self.scheduler.add_session(self._sessions)
        return session.add_sequence(np.append(key.tokens, key.tokens[:more]), adapter_name=name)

    def _close(self, sequence: Any) -> None:
        self.scheduler.end_session(sequence.session_id)

    def _cached(self) -> Iterator[CachedBlock]:
        """The blocks of the tries. A trie refers to each of its blocks once, besides the sequences."""
        allocator = self.blocks.allocator
        pending = [(root, b"") for root in self.trie._roots.values()]  # noqa: SLF001
        while pending:
            parent, prefix = pending.pop()
            for node in parent.children.values():
                tokens = prefix + node.token_ids.astype("<i4").tobytes()
                number = int(allocator.get_physical_blocks(node.block_id))
                references = int(allocator.get_ref_count(node.block_id)) - 1
                yield CachedBlock(FULL, number, self._namespaces[node.adapter_name], tokens, references)
                pending.append((node, tokens))

    def _blank(self) -> list[int]:
        pool = self.blocks.allocator.get_phy_allocator("gpu")
        numbers: list[int] = pool._free_blocks[pool._num_blocks - pool._free_count :].tolist()  # noqa: SLF001
        return numbers


def _open_scheduler(block_tokens: int, blocks: int) -> Any:
    """The engine's scheduler, empty. Block 0 is its dummy block, and comes on top."""
    prepare_lmdeploy()
    config = import_quietly("lmdeploy.pytorch.config")
    (strategy,) = import_quietly("lmdeploy.pytorch.strategies.ar.sequence", "ARSequenceStrategy")
    (meta,) = import_quietly("lmdeploy.pytorch.messages", "SequenceMeta")
    (scheduler,) = import_quietly("lmdeploy.pytorch.paging.scheduler", "Scheduler")
    # The engine keeps the time of a use in whole seconds, and has no order within one. Here each use is a second later.
    clock = SimpleNamespace(perf_counter=itertools.count().__next__)
    import_quietly("lmdeploy.pytorch.paging.block_manager.base_block_manager").time = clock
    cache_config = config.CacheConfig(
        max_batches=REQUESTS,
        block_size=block_tokens,
        num_cpu_blocks=0,
        num_gpu_blocks=blocks + 1,
        num_reserved_gpu_blocks=1,
        max_prefill_token_num=1 << 20,
        enable_prefix_caching=True,
    )
    return scheduler(config.SchedulerConfig(REQUESTS, 1 << 20), cache_config, meta(block_tokens, strategy()))


def _config(block_tokens: int, pages: int = 24) -> GeometricConfig:
    # The engine has one slot or more beyond the tokens: those of `prefill_interval` decoding steps.
    return GeometricConfig(
        capacity_tokens={FULL: pages * block_tokens},
        page_size=block_tokens,
        components=(FULL,),
        geometry=Geometry({FULL: block_tokens}, lookahead=1, publish=Publish.SCHEDULED),
    )


CONFIGURATIONS: tuple[GeometricConfig, ...] = (_config(16), _config(3), _config(1))
